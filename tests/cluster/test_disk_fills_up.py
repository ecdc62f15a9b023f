"""A small file system that fills up under a node, really: each step of the ladder, and back down again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from tests.cluster.test_http_listener import Http
from tests.conftest import NodeFactory
from tests.support.batches import batch
from tests.support.clients import Admin, Confluent
from tests.support.faults import Fault, fault_proxy
from tests.support.processes import Node, free_port, wait_until
from tests.support.small_disk import Ballast, small_disk
from tests.support.stores import Store
from tests.support.tiers import EARLIEST, EARLIEST_LOCAL, LATEST, LATEST_TIERED, offset
from tests.support.wire import RawConnection, produce_request

KAFKA_STORAGE_ERROR = 56
MIB = 1 << 20
TIERED = {"remote_storage_enable": "true", "segment_bytes": str(MIB)}
LADDER = {
    "firn.disk.watermarks.enable": "true",
    "firn.disk.reserve.bytes": str(MIB),
    "firn.disk.check.interval.ms": "50",
}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", 48 * MIB) as folder:
        yield folder


class Writer:
    """Batches of some 20 kB on one connection, one after the other, and what a node said of them."""

    def __init__(self, node: Node, topic: str, partition: int = 0) -> None:
        self.node, self.topic, self.partition = node, topic, partition
        self.values: dict[int, bytes] = {}
        self.throttled_ms: list[int] = []
        self.messages: set[str] = set()
        self._number = 0

    def write(self, connection: RawConnection) -> int:
        """One batch; its error code."""
        value = b"%08d" % self._number * 2500
        self._number += 1
        answer = connection.call(produce_request(self.topic, self.partition, batch([value])))
        self.throttled_ms.append(round(answer.throttle_time.total_seconds() * 1000))
        (found,) = answer.responses[0].partition_responses
        if int(found.error_code) == 0:
            self.values[int(found.base_offset)] = value
        elif found.error_message is not None:
            self.messages.add(found.error_message)
        return int(found.error_code)

    def fill(self, most: int = 3000, http: Http | None = None) -> None:
        """Until it is refused. With `http` the last of it no faster than the node looks at its disk."""
        left = float(most * MIB)
        with RawConnection(self.node.bootstrap) as connection:
            for number in range(most):
                if http is not None and number % 25 == 0:
                    left = seen_after(http, left)
                if (code := self.write(connection)) != 0:
                    assert code == KAFKA_STORAGE_ERROR
                    return
        raise AssertionError(f"{most} batches were taken")

    @property
    def size(self) -> int:
        """Bytes that were acknowledged."""
        return sum(map(len, self.values.values()))

    def takes_one(self) -> bool:
        with RawConnection(self.node.bootstrap) as connection:
            return self.write(connection) == 0

    def check(self) -> None:
        """All that was acknowledged is there at its offset, and nothing else."""
        end = offset(self.node.bootstrap, self.topic, self.partition, LATEST)
        found = Confluent().read(self.node.bootstrap, self.topic, self.partition, 0, end)
        assert {at: row.value for at, row in enumerate(found)} == self.values


def step(http: Http) -> int:
    (found,) = [value for (name, _), value in http.samples().items() if name == "firn_disk_step"]
    return int(found)


def sample(http: Http, name: str) -> float:
    return sum(value for (found, _), value in http.samples().items() if found == name)


def seen_after(http: Http, before: float) -> float:
    """What is seen to be left of the disk, once little is: less than `before`."""
    if before < 8 * MIB:
        wait_until("the disk to be looked at again", lambda: sample(http, "firn_log_dir_free_bytes") < before)
    return sample(http, "firn_log_dir_free_bytes")


def disks(http: Http) -> Any:
    return http.json("/readyz")["checks"]["disks"]


@pytest.mark.thorough
@pytest.mark.timeout(400)  # after an outage the store is asked again every half a minute
def test_a_disk_climbs_the_ladder_while_the_bucket_is_away_and_comes_down_when_it_is_back(
    start_node: NodeFactory, disk: Path, moto_store: Store
) -> None:
    port = free_port()
    with fault_proxy(moto_store.endpoint or "") as proxy:
        settings = {
            "log.dirs": str(disk / "data"),
            "firn.http.listener": f":{port}",
            "firn.disk.throttle.max.ms": "20",
            **LADDER,
        }
        node = start_node(moto_store.through(proxy.endpoint), **settings)
        http = Http(port)
        Admin(node.bootstrap).create("events", 1, **TIERED)
        wait_until("the disk to be looked at", lambda: disks(http)["state"] == "ok" and step(http) == 0)
        writer = Writer(node, "events")
        wait_until("the first record to be taken", writer.takes_one)

        proxy.mode = Fault.REFUSE
        fill_up_to_the_last_step(http, writer)
        assert_nothing_is_freed(node, http, writer)
        # The metadata log goes on, and a client retries until its record is accepted.
        Admin(node.bootstrap).create("another", 1)
        patient = confluent_kafka.Producer(
            {"bootstrap.servers": node.bootstrap, "message.timeout.ms": 300_000, "linger.ms": 0}
        )
        told: list[tuple[Any, int]] = []
        patient.produce("events", b"patient", on_delivery=lambda e, m: told.append((e, m.offset())))
        patient.poll(1)
        assert told == []

        proxy.mode = Fault.PASS
        await_room(http, writer)
        assert patient.flush(60) == 0
        ((error, at),) = told
        assert error is None
        writer.values[at] = b"patient"
        assert offset(node.bootstrap, "events", 0, EARLIEST_LOCAL) > 0
        assert offset(node.bootstrap, "events", 0, EARLIEST) == 0
        writer.check()
        node.stop()
        assert_steps_are_logged(node)
        node.start()
        writer.check()
        assert writer.takes_one()
        node.stop()


def fill_up_to_the_last_step(http: Http, writer: Writer) -> None:
    writer.fill(http=http)
    assert max(writer.throttled_ms) == 20, "who is refused comes back later"
    between = [one for one in writer.throttled_ms if 0 < one < 20]
    assert between, "before that, producers were slowed down"
    assert any("records are refused until there is room" in one for one in writer.messages)
    wait_until("the step to be told", lambda: step(http) == 4)
    assert disks(http)["state"] == "degraded"
    assert "records are refused" in disks(http)["why"]
    assert sample(http, "firn_log_dir_free_bytes") > MIB // 2, "what is kept for the metadata log is there"


def assert_nothing_is_freed(node: Node, http: Http, writer: Writer) -> None:
    """Everything that is not in the bucket is still in the log, and readable."""
    assert offset(node.bootstrap, "events", 0, EARLIEST) == 0
    assert sample(http, "firn_disk_freed_segments_total") == 0
    assert offset(node.bootstrap, "events", 0, EARLIEST_LOCAL) == 0
    writer.check()


def await_room(http: Http, writer: Writer) -> None:
    wait_until("records to be taken again", writer.takes_one, 120, every=0.5)
    wait_until("the ladder to be left", lambda: step(http) <= 1, 120, every=0.5)
    assert disks(http)["state"] == "ok"
    assert sample(http, "firn_disk_freed_segments_total") > 0


def assert_steps_are_logged(node: Node) -> None:
    said = node.stderr_path.read_text()
    for words in (
        "local copies of what the bucket has go early",
        "producers are slowed down",
        "are refused",
    ):
        assert f"{words}" in said
    assert said.count("log directory ") < 60, "told of steps, not of looks"


@pytest.mark.timeout(240)
def test_segments_that_no_append_would_seal_are_sealed_so_that_a_full_disk_comes_free(
    start_node: NodeFactory, disk: Path, disk_store: Store
) -> None:
    """Segments are larger than the disk: nothing could be copied, and nothing go, until they are sealed."""
    node = start_node(
        disk_store, **{"log.dirs": str(disk / "data"), "firn.disk.throttle.max.ms": "1", **LADDER}
    )
    Admin(node.bootstrap).create("events", 1, remote_storage_enable="true", segment_bytes=str(256 * MIB))
    writer = Writer(node, "events")
    wait_until("the first record to be taken", writer.takes_one)

    def has_written_more_than_there_is_room_for() -> bool:
        with RawConnection(node.bootstrap) as connection:
            while writer.size < 72 * MIB and writer.write(connection) == 0:
                pass
        return writer.size >= 72 * MIB

    wait_until("records to be taken again", has_written_more_than_there_is_room_for, 120)
    writer.check()
    node.stop()


def test_a_disk_filled_by_another_program_is_freed_of_archived_segments(
    start_node: NodeFactory, disk: Path, disk_store: Store
) -> None:
    """Not even a checkpoint can be written; what may go without one makes the room for it."""
    node = start_node(disk_store, **{"log.dirs": str(disk / "data"), **LADDER})
    Admin(node.bootstrap).create("events", 1, **TIERED)
    writer = Writer(node, "events")
    wait_until("the first record to be taken", writer.takes_one)
    with RawConnection(node.bootstrap) as connection:
        for _ in range(500):
            assert writer.write(connection) == 0
    active = offset(node.bootstrap, "events", 0, LATEST) - 60  # a segment and more
    wait_until("uploads", lambda: offset(node.bootstrap, "events", 0, LATEST_TIERED) > active)
    Ballast(disk)
    wait_until("local copies to go", lambda: offset(node.bootstrap, "events", 0, EARLIEST_LOCAL) > 0)
    wait_until("records to be taken again", writer.takes_one)
    writer.check()
    node.stop()


def test_a_directory_that_is_full_to_the_last_byte_refuses_alone_and_recovers_without_a_restart(
    start_node: NodeFactory, disk: Path, tmp_path: Path
) -> None:
    """Without the ladder and without a reserve, it is the disk itself that refuses."""
    first = tmp_path / "first"
    node = start_node(
        **{
            "log.dirs": f"{first},{disk}",
            "firn.disk.watermarks.enable": "false",
            "firn.disk.reserve.bytes": "0",
        }
    )
    for name in ("one", "two"):
        Admin(node.bootstrap).create(name, 1, segment_bytes=str(MIB))
    writers = {name: Writer(node, name) for name in ("one", "two")}
    (struck,) = (one for name, one in writers.items() if (disk / f"{name}-0").is_dir())
    (spared,) = (one for name, one in writers.items() if (first / f"{name}-0").is_dir())
    ballast = Ballast(disk, 40 * MIB)
    struck.fill()
    assert struck.messages == {"the disk is full"}
    for _ in range(3):
        assert not struck.takes_one()
        assert spared.takes_one()
    struck.check()
    ballast.drop()
    wait_until("records to be taken again", struck.takes_one)
    for _ in range(100):
        assert struck.takes_one()
    for one in (struck, spared):
        one.check()
    node.kill()
    node.start()
    for one in (struck, spared):
        one.check()
        assert one.takes_one()
    node.stop()


def test_records_without_a_bucket_leave_room_for_the_metadata_log(
    start_node: NodeFactory, disk: Path
) -> None:
    """One directory, nothing tiered: only the reserve counts, and the node goes on."""
    node = start_node(
        **{
            "log.dirs": str(disk / "data"),
            "firn.disk.watermarks.enable": "true",
            "firn.disk.reserve.bytes": str(8 * MIB),
            "firn.disk.throttle.max.ms": "1",
        }
    )
    Admin(node.bootstrap).create("plain", 1, segment_bytes=str(MIB))
    ballast = Ballast(disk, 20 * MIB)
    writer = Writer(node, "plain")
    writer.fill()
    assert writer.size > 16 * MIB, "up to the reserve"
    for number in range(20):
        Admin(node.bootstrap).create(f"more-{number}", 1)
    writer.check()
    ballast.drop()
    wait_until("records to be taken again", writer.takes_one)
    writer.check()
    node.stop()
