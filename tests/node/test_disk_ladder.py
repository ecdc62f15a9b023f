"""Each step of the disk watermarks, on a whole node with a disk of settable free space."""

from __future__ import annotations

import contextlib
import itertools
import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from errno import EIO, ENOSPC
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.base.clock import SystemClock
from service.base.disk import Space
from service.health.readiness import Check, HealthState
from service.hot.disk_watermarks import Step
from service.records.builder import BatchBuilder
from service.wire.api import ApiKey, request_module
from tests.node.conftest import NodeThread, Talk
from tests.node.test_one_thing_fails import alter
from tests.support.processes import wait_until
from tests.support.roomy_disk import RoomyDisk
from tests.support.world import make_world

NOW = 1_700_000_000_000
STORAGE_ERROR = ErrorCode.kafka_storage_error
TIERED = {"remote_storage_enable": "true", "internal_segment_bytes": "65536"}


@pytest.fixture
def disk() -> RoomyDisk:
    return RoomyDisk()


class Ladder:
    """A node with a cold tier in a folder that can be taken away, and a client of it."""

    def __init__(self, node: NodeThread, disk: RoomyDisk, bucket: Path) -> None:
        self.node, self.disk, self.bucket = node, disk, bucket
        self.client = node.client()
        self.talk = Talk(self.client)
        wait_until("the disks to be looked at", lambda: self.broker.disks.standings())

    @property
    def broker(self) -> Any:
        return self.node.node.parts.broker

    def create(self, name: str, **configs: Any) -> Any:
        created = self.talk.create(name, **configs)
        assert created.error_code == 0, created.error_message
        topic_id = created.topic_id
        self.talk.produce_in_the_end(topic_id, [b"first"], NOW)
        return topic_id

    def leave(self, percent: float, step: Step, directory: Path | None = None) -> None:
        """Return once the node stands on `step` with so much left."""
        self.disk.leave(percent, directory)
        path = directory or self.node.data
        left = self.disk.left(path)
        wait_until(f"{left} bytes to be seen in {path}", lambda: self.standing(path).usable == left)
        self.wait_for(step, directory)

    def wait_for(self, step: Step, directory: Path | None = None) -> None:
        path = directory or self.node.data
        wait_until(f"{path} to be at {step.name}", lambda: self.standing(path).step is step)

    def standing(self, path: Path) -> Any:
        return self.broker.disks.standings()[path]

    def produce(self, topic_id: Any, size: int = 10, acks: int = -1) -> tuple[Any, int]:
        """The partition's answer, and the throttle time (ms)."""
        builder = BatchBuilder()
        builder.add(NOW, None, b"x" * size)
        module = request_module(ApiKey.PRODUCE)
        data = module.PartitionProduceData(index=0, records=bytes(builder.build()))
        answer = self.talk(
            ApiKey.PRODUCE,
            "ProduceRequest",
            transactional_id=None,
            acks=acks,
            timeout=1000,
            topic_data=(module.TopicProduceData(topic_id=topic_id, partition_data=(data,)),),
        )
        throttle_ms = round(answer.throttle_time.total_seconds() * 1000)
        return answer.responses[0].partition_responses[0], throttle_ms

    def fill(self, topic_id: Any, segments: int) -> None:
        """So many sealed segments, and one that is begun."""
        for _ in range(segments + 1):
            assert self.produce(topic_id, 60_000)[0].error_code == 0

    def partition(self, topic_id: Any) -> Any:
        return self.broker.replicas.get(topic_id, 0)

    def disks(self) -> Check:
        (found,) = [one for one in self.node.node.parts.health(0).checks if one.what == "disks"]
        return found


@pytest.fixture
def climb(
    start: Callable[..., NodeThread], disk: RoomyDisk, tmp_path: Path
) -> Iterator[Callable[..., Ladder]]:
    ladders: list[Ladder] = []

    def make(**settings: str) -> Ladder:
        bucket = tmp_path / "bucket"
        bucket.mkdir()
        usual = {
            "firn_disk_watermarks_enable": "true",
            "firn_disk_check_interval_ms": "50",
            "firn_disk_throttle_max_ms": "40",
        }
        url = f"file://{bucket}"
        node = start(make_world(SystemClock(), disk), firn_remote_url=url, **{**usual, **settings})
        ladders.append(Ladder(node, disk, bucket))
        return ladders[-1]

    yield make
    disk.hangs.set()
    for ladder in ladders:
        ladder.client.close()


def away(ladder: Ladder) -> None:
    """The bucket is not there any more; what is being written at this moment may make it once more."""
    for number in itertools.count():
        with contextlib.suppress(FileNotFoundError):
            ladder.bucket.rename(ladder.bucket.with_name(f"elsewhere-{number}"))
        with contextlib.suppress(IsADirectoryError):
            ladder.bucket.write_text("not a directory")
            return


def back(ladder: Ladder) -> None:
    """All that was ever in it is there again."""
    first, *later = sorted(ladder.bucket.parent.glob("elsewhere-*"))
    for one in later:
        shutil.copytree(one, first, dirs_exist_ok=True)
    ladder.bucket.unlink()
    first.rename(ladder.bucket)


def test_free_space_is_asked_by_threads_at_intervals(climb: Callable[..., Ladder]) -> None:
    ladder = climb()
    wait_until("a few looks", lambda: len(ladder.disk.asked) > 3)
    assert all(name.startswith("log-io") for name in ladder.disk.asked)
    assert ladder.disks() == Check("disks", HealthState.OK)


def test_uploads_of_a_directory_that_fills_up_are_hurried(
    climb: Callable[..., Ladder], tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    ladder = climb(log_dirs=f"{one},{two}")
    ids = {name: ladder.create(name, **TIERED) for name in ("first", "second")}
    homes = {ladder.partition(topic_id).log.dir.parent: topic_id for topic_id in ids.values()}
    assert homes.keys() == {one, two}
    hurries, tips = ladder.broker.disks.hurries, {path: ladder.partition(homes[path]).tip for path in homes}
    assert not hurries(tips[one])
    ladder.leave(18, Step.UPLOADS_FIRST, two)
    assert (hurries(tips[one]), hurries(tips[two])) == (False, True)
    assert ladder.standing(one).step is Step.FREE
    check = ladder.disks()
    assert check.state is HealthState.OK, "nobody is kept from anything"
    assert check.why == (
        f"node 1: log directory {two} is 82% full (46 GiB left): its tiered partitions are copied to the"
        " bucket first"
    )
    assert ladder.produce(ids["first"])[1] == ladder.produce(ids["second"])[1] == 0
    ladder.leave(22, Step.FREE, two)
    assert not hurries(tips[two])


def test_local_copies_shrink_to_what_is_committed_and_no_further(climb: Callable[..., Ladder]) -> None:
    ladder = climb()
    events = ladder.create("events", **TIERED)
    partition = ladder.partition(events)
    away(ladder)
    ladder.fill(events, 5)
    ladder.leave(12, Step.SHRINK)
    looks = len(ladder.disk.asked)
    wait_until("looks", lambda: len(ladder.disk.asked) > looks + 5)
    assert partition.log.local_log_start_offset == 0, "the bucket has none of it"
    assert ladder.produce(events)[1] == 0, "producers notice nothing"
    back(ladder)
    # Room comes with what goes: by far not enough, so all goes that may.
    wait_until("local copies to go", lambda: partition.archive.published_offset > 5)
    wait_until(
        "local copies to go",
        lambda: partition.log.local_log_start_offset == partition.archive.published_offset,
    )
    assert partition.log.log_start_offset == 0
    wait_until("files to go at once", lambda: len(list(ladder.node.data.glob("events-0/*.log"))) <= 2)
    metrics = ladder.broker._logs.metrics
    assert metrics.disk_freed_segments >= 5
    assert metrics.disk_freed_bytes > 5 * 60_000
    for offset in (0, 3, 6):  # now it comes from the bucket
        wait_until("records", lambda: ladder.talk.fetch(events, offset).records)  # noqa: B023
    ladder.leave(50, Step.FREE)


def test_no_more_goes_than_is_needed(climb: Callable[..., Ladder]) -> None:
    ladder = climb()
    events = ladder.create("events", **TIERED)
    partition = ladder.partition(events)
    ladder.fill(events, 6)
    wait_until("copies", lambda: partition.archive.published_offset >= 6)
    # 15 percent and one of margin: 100 kB are missing.
    total = 1 << 38
    ladder.disk.leave_bytes(total * 16 // 100 - 100_000)
    looks = len(ladder.disk.asked)
    wait_until("looks", lambda: len(ladder.disk.asked) > looks + 5)
    assert partition.log.local_log_start_offset == 0, "the step begins below 15 percent"
    ladder.disk.leave_bytes(total * 15 // 100 - 1)
    wait_until("local copies to go", lambda: partition.log.local_log_start_offset > 0)
    ladder.disk.leave_bytes(total * 16 // 100)
    ladder.wait_for(Step.UPLOADS_FIRST)


def test_a_topic_that_is_not_copied_any_more_loses_nothing(climb: Callable[..., Ladder]) -> None:
    ladder = climb()
    topics = {
        "copying": ladder.create("copying", **TIERED),
        "frozen": ladder.create("frozen", **TIERED),
        "plain": ladder.create("plain", internal_segment_bytes="65536"),
    }
    for topic_id in topics.values():
        ladder.fill(topic_id, 3)
    frozen = ladder.partition(topics["frozen"])
    wait_until("copies", lambda: frozen.archive.published_offset >= 3)
    assert alter(ladder.talk, 2, "frozen", remote_log_copy_disable="true").error_code == 0
    ladder.leave(1, Step.REFUSE)
    copying = ladder.partition(topics["copying"])
    wait_until("local copies to go", lambda: copying.log.local_log_start_offset > 3)
    for name in ("frozen", "plain"):
        log = ladder.partition(topics[name]).log
        assert (log.log_start_offset, log.local_log_start_offset) == (0, 0), name


def test_the_throttle_step_delays_producers_only(climb: Callable[..., Ladder]) -> None:
    ladder = climb()
    events = ladder.create("events", **TIERED)
    assert alter(ladder.talk, 4, "", firn_disk_throttle_max_ms="30000").error_code == 0
    ladder.leave(7.99, Step.THROTTLE)
    with ladder.node.client() as producer:
        talk, ladder.talk = ladder.talk, Talk(producer)
        answer, throttle_ms = ladder.produce(events)
        ladder.talk = talk
        assert answer.error_code == 0, "what is throttled is taken"
        assert 1 <= throttle_ms <= 100
        ladder.leave(3.01, Step.THROTTLE)
        done = threading.Event()

        def ask() -> None:
            late = Talk(producer)
            module = request_module(ApiKey.METADATA)
            asked = (module.MetadataRequestTopic(topic_id=None, name="events"),)
            with contextlib.suppress(OSError):
                late(
                    ApiKey.METADATA,
                    "MetadataRequest",
                    topics=asked,
                    allow_auto_topic_creation=False,
                    include_topic_authorized_operations=False,
                )
            done.set()

        talk, ladder.talk = ladder.talk, Talk(producer)
        assert ladder.produce(events)[1] > 29_000
        ladder.talk = talk
        waiting = threading.Thread(target=ask)
        waiting.start()
        for offset in range(20):
            assert ladder.talk.fetch(events, offset % 2).error_code == 0
        assert ladder.talk.create("other").error_code == 0
        assert not done.is_set(), "its connection is mute"
        check = ladder.disks()
        assert check.state is HealthState.DEGRADED
        assert "producers are slowed down" in check.why
        assert ladder.broker._logs.metrics.disk_throttle_time.snapshot().observed >= 2
        ladder.node.stop()  # which waits for no pause
        waiting.join()


def test_records_are_refused_in_words_and_all_else_goes_on(
    climb: Callable[..., Ladder], caplog: pytest.LogCaptureFixture
) -> None:
    ladder = climb()
    events = ladder.create("events", **TIERED)
    with caplog.at_level(logging.INFO, "service.replicas.disk_pressure"):
        ladder.leave(2.9, Step.REFUSE)
        answer, throttle_ms = ladder.produce(events)
        assert answer.error_code == STORAGE_ERROR
        assert answer.error_message == (
            f"the log directory of {ladder.partition(events).tip} is 97% full (7602 MiB left): "
            "records are refused until there is room"
        )
        assert throttle_ms == 40
        assert ladder.talk.fetch(events, 0).high_watermark == 1
        plain = ladder.talk.create("plain").topic_id
        assert ladder.produce(plain)[0].error_code == STORAGE_ERROR, "it fills the same disk"
        assert ladder.broker._logs.metrics.disk_refused_batches == 2
        assert alter(ladder.talk, 2, "events", retention_ms="100000000000").error_code == 0
        # Not before there is more left than the watermark says, and a margin.
        ladder.disk.leave(3.9)
        looks = len(ladder.disk.asked)
        wait_until("looks", lambda: len(ladder.disk.asked) > looks + 3)
        assert ladder.produce(events)[0].error_code == STORAGE_ERROR
        ladder.leave(50, Step.FREE)
        assert ladder.produce(events)[0].error_code == 0
    said = [text for one in caplog.records if (text := one.getMessage()).startswith("log directory")]
    assert len(said) == 2, "\n".join(said)


def test_without_tiered_partitions_only_the_reserve_counts(climb: Callable[..., Ladder]) -> None:
    ladder = climb()
    plain = ladder.create("plain")
    looks = len(ladder.disk.asked)
    ladder.disk.leave(0.1)
    wait_until("looks", lambda: len(ladder.disk.asked) > looks + 3)
    assert ladder.produce(plain)[0].error_code == 0
    ladder.disk.leave_bytes((64 << 20) - 1)
    ladder.wait_for(Step.REFUSE)
    assert ladder.produce(plain)[0].error_code == STORAGE_ERROR
    # The ladder begins with the first tiered partition.
    ladder.leave(10, Step.FREE)
    ladder.create("tiered", **TIERED)
    ladder.wait_for(Step.SHRINK)


def test_disk_watermarks_are_dynamic_settings(climb: Callable[..., Ladder]) -> None:
    ladder = climb()
    events = ladder.create("events", **TIERED)
    ladder.leave(1, Step.REFUSE)
    assert alter(ladder.talk, 4, "", firn_disk_watermarks_enable="false").error_code == 0
    ladder.wait_for(Step.FREE)
    assert ladder.produce(events)[0].error_code == 0
    assert alter(ladder.talk, 4, "", firn_disk_watermarks_enable="true").error_code == 0
    ladder.wait_for(Step.REFUSE)
    refused = alter(ladder.talk, 4, "", firn_disk_refuse_percent="91")
    assert refused.error_code == ErrorCode.invalid_request
    assert "firn.disk.throttle.percent (92) must not be more than firn.disk.refuse.percent (91)" in (
        refused.error_message
    )
    assert alter(ladder.talk, 4, "", firn_disk_refuse_percent="100").error_code == 0
    ladder.wait_for(Step.THROTTLE)


def test_much_that_is_appended_has_the_disk_asked_out_of_turn(climb: Callable[..., Ladder]) -> None:
    ladder = climb(firn_disk_check_interval_ms="60000")
    plain = ladder.create("plain")
    assert ladder.disk.asked
    looks = len(ladder.disk.asked)
    ladder.disk.leave_bytes(65 << 20)
    ladder.broker.disks.check_soon()
    wait_until("a look", lambda: ladder.standing(ladder.node.data).usable == 65 << 20)
    for _ in range(3):
        assert ladder.produce(plain, 500_000)[0].error_code == 0
    wait_until("a look because of that", lambda: len(ladder.disk.asked) >= looks + 2)


def test_a_disk_that_does_not_say_takes_no_more_than_it_had_left(climb: Callable[..., Ladder]) -> None:
    ladder = climb(firn_disk_check_interval_ms="60000", firn_disk_reserve_bytes="2000000")
    plain = ladder.create("plain")
    ladder.disk.leave_bytes(5_000_000)
    ladder.broker.disks.check_soon()
    wait_until("a look", lambda: ladder.standing(ladder.node.data).usable == 5_000_000)
    ladder.disk.hangs.clear()
    codes = [ladder.produce(plain, 500_000)[0].error_code for _ in range(12)]
    assert codes[:7] == [0] * 7
    assert codes[-3:] == [STORAGE_ERROR] * 3, "the disk would have less left than the reserve"
    ladder.disk.leave(50)
    ladder.disk.hangs.set()
    wait_until("records to be taken", lambda: ladder.produce(plain)[0].error_code == 0)


def test_a_disk_that_cannot_say_is_left_as_it_is(
    climb: Callable[..., Ladder], caplog: pytest.LogCaptureFixture
) -> None:
    """It is asked again and again, and told once."""
    caplog.set_level(logging.INFO, "service.replicas.disk_pressure")
    ladder = climb()
    events = ladder.create("events", **TIERED)
    ladder.leave(1, Step.REFUSE)
    ladder.disk.fail("space", EIO)
    looks = len(ladder.disk.asked)
    ladder.disk.leave(50)
    wait_until("looks", lambda: len(ladder.disk.asked) > looks + 3)
    assert ladder.produce(events)[0].error_code == STORAGE_ERROR
    ladder.disk.heal()
    ladder.wait_for(Step.FREE)
    assert ladder.node.failure is None
    said = [text for one in caplog.records if "what is left of" in (text := one.getMessage())]
    assert len(said) == 2, said
    assert "not known, and asked again" in said[0]
    assert "known again" in said[1]


def test_a_directory_that_failed_is_on_no_step_and_is_said_to_be_offline(
    climb: Callable[..., Ladder], tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    ladder = climb(log_dirs=f"{one},{two}")
    for name in ("first", "second"):
        ladder.create(name, flush_messages="1", **TIERED)
    ladder.leave(1, Step.REFUSE, two)
    ladder.disk.leave(50, two)
    ladder.wait_for(Step.FREE, two)
    ladder.disk.fail("fsync", EIO, path=f"{two}/")
    for name in ("first", "second"):
        ladder.produce(ladder.talk.topic_id(name))
    wait_until("the directory to be offline", lambda: two not in ladder.broker.disks.standings())
    check = ladder.disks()
    assert (check.state, check.why) == (HealthState.DEGRADED, f"node 1: log directory {two} is offline")
    assert ladder.standing(one).step is Step.FREE


def test_a_full_disk_says_so_and_a_new_partition_lies_where_there_is_room(
    climb: Callable[..., Ladder], tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    ladder = climb(log_dirs=f"{one},{two}")
    ladder.create("here")
    ladder.disk.fail("mkdir", ENOSPC, path=f"{two}/")
    created = ladder.talk.create("there")
    assert created.error_code == 0
    answer = ladder.talk.produce_in_the_end(created.topic_id, [b"x"], NOW)
    assert answer.error_code == 0
    assert ladder.partition(created.topic_id).log.dir.parent == one
    ladder.disk.fail("pwrite", ENOSPC, path="there-0/")
    refused = ladder.produce(created.topic_id)[0]
    assert (refused.error_code, refused.error_message) == (STORAGE_ERROR, "the disk is full")
    ladder.disk.heal()
    assert ladder.produce(created.topic_id)[0].error_code == 0


class WithCache(RoomyDisk):
    """Each file of the cache of cold reads takes a fifth of the file system."""

    def __init__(self) -> None:
        super().__init__()
        self.returned = 0

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        if path.suffix == ".chunk":
            self.returned += 1

    def space(self, path: Path) -> Space:
        total, left = super().space(path)
        return Space(total, min(left + self.returned * total // 5, total))


def test_the_cache_of_cold_reads_is_given_back_before_a_record_is_refused(
    start: Callable[..., NodeThread], tmp_path: Path
) -> None:
    disk, bucket, cache = WithCache(), tmp_path / "bucket", tmp_path / "cache"
    bucket.mkdir()
    node = start(
        make_world(SystemClock(), disk),
        firn_remote_url=f"file://{bucket}",
        firn_remote_cache_dir=str(cache),
        firn_disk_watermarks_enable="true",
        firn_disk_check_interval_ms="50",
    )
    ladder = Ladder(node, disk, bucket)
    topic_id = ladder.create("cold", **TIERED, local_retention_bytes="1")
    ladder.fill(topic_id, 8)
    wait_until("local copies to go", lambda: ladder.partition(topic_id).log.local_log_start_offset > 6)
    for offset in range(6):
        assert ladder.talk.fetch(topic_id, offset).error_code == 0
    wait_until("cold reads to be kept on disk", lambda: len(list(cache.glob("*.chunk"))) >= 3)
    before = ladder.partition(topic_id).unified.end_offset
    steps = []
    look = ladder.broker.disks._set_standing

    def watched(home: Any, standing: Any) -> None:
        steps.append(standing.step)
        look(home, standing)

    ladder.broker.disks._set_standing = watched
    disk.leave(1)  # records would be refused
    wait_until("the cache to be given back", lambda: disk.returned >= 3)
    wait_until("the disk to be looked at again", lambda: len(steps) > 3)
    assert set(steps) == {Step.FREE}
    assert ladder.produce(topic_id)[0].error_code == 0
    assert ladder.partition(topic_id).unified.end_offset == before + 1
    ladder.client.close()
