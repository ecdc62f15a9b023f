"""A disk without room in a cluster: others lead what it holds, its reserve is kept, and it comes back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from service.cli.main import main
from service.client.blocking_client import BlockingClient
from service.wire.api import ApiKey, request_module
from tests.cluster.test_http_listener import Http
from tests.conftest import BRISK
from tests.support.clients import Admin
from tests.support.processes import free_port, wait_until
from tests.support.quorums import Cluster
from tests.support.replicas import check_equal, states, wait_in_sync
from tests.support.small_disk import Ballast, small_disk

MIB = 1 << 20
SIZE = 96 * MIB
RESERVE = 16 * MIB
TOPIC = "events"
PARTITIONS = 3
EVERY = range(1, 4)
PREFERRED_LEADER_NOT_AVAILABLE = 80
ELECTION_NOT_NEEDED = 84
SETTINGS = {
    **BRISK,
    "firn.disk.reserve.bytes": str(RESERVE),
    "firn.disk.check.interval.ms": "100",
    "offsets.topic.num.partitions": "1",
}


class Small:
    """Three nodes, some of them on disks of their own of 96 MiB."""

    def __init__(self, cluster: Cluster, disks: dict[int, Path], https: dict[int, Http]) -> None:
        self.cluster, self.disks, self.https = cluster, disks, https

    def left(self, node_id: int) -> int:
        found = os.statvfs(self.disks[node_id])
        return found.f_bavail * found.f_frsize

    def fill(self, node_id: int, leave: int) -> Ballast:
        """Somebody else's file leaves so much."""
        return Ballast(self.disks[node_id], self.left(node_id) - leave)

    def led_by(self, node_id: int, seen_by: int) -> list[int]:
        found = states(self.cluster.members[seen_by], TOPIC)
        return [number for number, one in found.items() if one.leader == node_id]

    def in_sync(self, node_id: int, seen_by: int) -> list[int]:
        found = states(self.cluster.members[seen_by], TOPIC)
        return [number for number, one in found.items() if node_id in one.isr]

    def write(self, count: int, size: int = 100, within_ms: int = 60_000) -> None:
        """Records to each partition in turn; all are acknowledged by all that are in sync."""
        failed: list[Any] = []
        settings = {"acks": "all", "linger.ms": 1, "message.timeout.ms": within_ms}
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap, **settings})
        for number in range(count):
            producer.produce(
                TOPIC, os.urandom(size), partition=number % PARTITIONS,
                on_delivery=lambda error, _: failed.append(error) if error is not None else None,
            )  # fmt: skip
            if len(producer) > 2_000:
                producer.poll(1)
        assert producer.flush(90) == 0
        assert not failed, failed[:3]

    def elect_preferred(self, partitions: Iterable[int]) -> set[int]:
        """Error numbers that the controller answers."""
        module = request_module(ApiKey.ELECT_LEADERS)
        asked = module.TopicPartitions(topic=TOPIC, partitions=tuple(partitions))
        request = module.ElectLeadersRequest(
            election_type=0, topic_partitions=(asked,), timeout=timedelta(seconds=20)
        )
        host, _, port = self.cluster.members[1].bootstrap.rpartition(":")
        with BlockingClient(host, int(port), "test", timeout_s=30) as client:
            answer = client.request(ApiKey.ELECT_LEADERS, request)
        (found,) = answer.replica_election_results
        return {int(one.error_code) for one in found.partition_result}

    def disk_check(self, node_id: int) -> Any:
        return self.https[node_id].json("/readyz")["checks"]["disks"]


@contextmanager
def small_nodes(folder: Path, small: Iterable[int], settings: dict[str, str] = SETTINGS) -> Iterator[Small]:
    with ExitStack() as stack:
        nodes = folder / "nodes"
        disks = {one: stack.enter_context(small_disk(nodes / f"node-{one}", SIZE)) for one in small}
        cluster = stack.enter_context(Cluster(nodes, settings=settings))
        https = {}
        for node_id, member in cluster.members.items():
            port = free_port()
            https[node_id] = Http(port)
            member.settings["firn.http.listener"] = f":{port}"
        cluster.start()
        yield Small(cluster, disks, https)


def described(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    """`firn cluster describe`: its exit code, and what is wrong."""
    capsys.readouterr()
    code = main(["cluster", "describe", "--format", "json", "--bootstrap-server", bootstrap])
    return code, json.loads(capsys.readouterr().out)["wrong"]


def test_a_leader_in_its_reserve_hands_over_and_leads_again_once_there_is_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_nodes(tmp_path, [2]) as nodes:
        cluster = nodes.cluster
        Admin(cluster.bootstrap).replicate(TOPIC, PARTITIONS, 3, min_insync_replicas="2")
        wait_in_sync(cluster, TOPIC)
        nodes.write(300)
        before = nodes.led_by(2, seen_by=1)
        assert before, "each node leads some"
        ballast = nodes.fill(2, leave=RESERVE // 2)
        nodes.write(300)
        wait_until("its leaderships to move", lambda: not nodes.led_by(2, seen_by=1))
        wait_until("it to be out of sync", lambda: not nodes.in_sync(2, seen_by=1))
        nodes.write(300, within_ms=15_000)  # less than replica.lag.time.max.ms
        assert not nodes.in_sync(2, seen_by=1)
        # It takes none back meanwhile.
        assert nodes.elect_preferred(before) == {PREFERRED_LEADER_NOT_AVAILABLE}
        assert not nodes.led_by(2, seen_by=1)
        # Everybody says so.
        code, wrong = described(cluster.bootstrap, capsys)
        assert code == 1
        (said,) = [one for one in wrong if one.startswith("node 2: log directory ")]
        assert "records are refused until there is room, and replicas do not follow here" in said
        check = nodes.disk_check(2)
        assert check["state"] == "degraded"
        assert "replicas do not follow here" in check["why"]
        assert nodes.https[2].one("firn_replicas_resting") >= PARTITIONS
        assert nodes.https[1].one("firn_replicas_resting") == 0
        ballast.drop()
        wait_in_sync(cluster, TOPIC)
        wait_until("it to be electable", lambda: nodes.elect_preferred(before) <= {0, ELECTION_NOT_NEEDED})
        assert nodes.led_by(2, seen_by=1) == before
        nodes.write(300)
        wait_until("none to rest", lambda: nodes.https[2].one("firn_replicas_resting") == 0)
        assert not [one for one in described(cluster.bootstrap, capsys)[1] if "log directory" in one]
        check_equal(cluster, TOPIC, range(PARTITIONS))


@pytest.mark.thorough
def test_leaders_stay_where_no_replica_has_room_and_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_nodes(tmp_path, EVERY) as nodes:
        cluster = nodes.cluster
        Admin(cluster.bootstrap).replicate(TOPIC, PARTITIONS, 3, min_insync_replicas="1")
        wait_in_sync(cluster, TOPIC)
        nodes.write(300)
        ballasts = {one: nodes.fill(one, leave=RESERVE // 2) for one in EVERY}

        def told() -> dict[int, int]:
            """Partitions that are led without room, as each node says."""
            found = {one: sum(nodes.https[one].values("firn_disk_led_without_room")) for one in EVERY}
            return {one: int(count) for one, count in found.items() if count}

        # While the disks fill one after the other, the last one may be handed what the others led.
        wait_until("all to be told", lambda: sum(told().values()) == PARTITIONS)
        words = "led here all the same: no other in-sync replica of theirs has room"
        _, wrong = described(cluster.bootstrap, capsys)
        for one in EVERY:
            assert (words in nodes.disk_check(one)["why"]) == (one in told())
            assert (words in cluster.members[one].said()) == (one in told())
        assert sum(words in one for one in wrong) == len(told())
        assert {one: len(nodes.led_by(one, seen_by=1)) for one in told()} == told()
        spared = min(set(EVERY) - told().keys(), default=3)
        ballasts[spared].drop()
        wait_until(
            "the one with room to lead all", lambda: len(nodes.led_by(spared, seen_by=1)) == PARTITIONS
        )
        nodes.write(300)
        for one in set(EVERY) - {spared}:
            ballasts[one].drop()
        wait_in_sync(cluster, TOPIC)
        check_equal(cluster, TOPIC, range(PARTITIONS))


def test_the_reserve_is_kept_from_what_leaders_elsewhere_send(tmp_path: Path) -> None:
    with small_nodes(tmp_path, [3]) as nodes:
        cluster = nodes.cluster
        Admin(cluster.bootstrap).replicate(
            TOPIC, PARTITIONS, 3, min_insync_replicas="2", segment_bytes="4194304"
        )
        wait_in_sync(cluster, TOPIC)
        written, left = 0, SIZE
        while written < 2 * SIZE:
            nodes.write(12_000, size=1_000)
            written += 12 * MIB
            left = min(left, nodes.left(3))
        assert RESERVE // 2 <= left < RESERVE * 9 // 8, "it fills up to the reserve"
        assert nodes.in_sync(3, seen_by=1) == []
        assert nodes.https[3].one("firn_replicas_resting") >= PARTITIONS
        # What the reserve is for goes on.
        for number in range(5):
            Admin(cluster.bootstrap).create(f"more-{number}", 1)
        wait_until("it to know them", lambda: states(cluster.members[3], "more-4"))
        assert cluster.members[3].is_running
