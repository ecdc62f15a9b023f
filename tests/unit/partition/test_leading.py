"""A partition with followers: commits, listeners, and waiters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.purgatory import ENOUGH
from service.replication.leader import Leadership
from tests.unit.hot.logs import START_MS, batch
from tests.unit.partition.leading import EPOCH, Event, Led

NOT_LEADER = ErrorCode.not_leader_or_follower


def test_appended_records_are_visible_to_consumers_once_committed(
    tmp_path: Path,
) -> None:
    led = Led(tmp_path)
    led.told()
    first, second = led.append(), led.append(3)
    assert led.told() == [Event("growth", first), Event("growth", second)]
    assert (led.partition.high_watermark, led.log.log_end_offset) == (0, 4)
    assert led.read().size == 0
    assert led.partition.unified.read(0, 1 << 20, 4, min_one=True).size == first + second
    assert led.fetch(2, 1) is ErrorCode.none
    assert led.told() == [], "the other one has nothing"
    led.fetch(3, 4)
    assert led.told() == [Event("seen", first), Event("growth", 0)]
    assert (led.partition.high_watermark, led.marks) == (1, [1])
    assert led.read().size == first
    led.fetch(2, 4)
    assert led.told() == [Event("seen", second), Event("growth", 0)]
    assert led.marks == [1, 4]


def test_the_bytes_of_many_appends_are_told_though_they_are_not_told_apart(tmp_path: Path) -> None:
    led = Led(tmp_path)
    appended = [led.append() for _ in range(300)]
    led.told()
    led.fetch(2, 300)
    led.fetch(3, 255)
    (seen, _) = led.told()
    assert seen.amount == sum(appended[:255])
    led.fetch(3, 256)
    (seen, _) = led.told()
    assert seen.amount == sum(appended[255:]), "more than there is, never less"
    led.fetch(3, 300)
    (seen, _) = led.told()
    assert seen.amount > 0


def test_a_waiter_is_called_when_its_offset_is_committed(tmp_path: Path) -> None:
    led = Led(tmp_path)
    led.append(2)
    told: list[tuple[str, ErrorCode]] = []
    for name, offset in (("a", 1), ("b", 2)):
        led.leading.wait(lambda error, name=name: told.append((name, error)), offset)
    led.fetch(2, 2)
    assert told == []
    led.fetch(3, 1)
    assert told == [("a", ErrorCode.none)]
    led.fetch(3, 2)
    assert told == [("a", ErrorCode.none), ("b", ErrorCode.none)]


def test_waiters_fail_when_leadership_is_lost(tmp_path: Path) -> None:
    led = Led(tmp_path)
    led.append(2)
    told: list[ErrorCode] = []
    led.leading.wait(told.append, 2)
    led.told()
    led.partition.follow(EPOCH + 1)
    assert told == [NOT_LEADER]
    assert led.told() == [Event("seen", ENOUGH), Event("growth", ENOUGH)]
    assert led.partition.leading is None
    assert led.partition.high_watermark == 0, "what it was is known to be committed, and no more"
    led.partition.follow(EPOCH + 1)
    assert (told, led.told()) == ([NOT_LEADER], []), "nothing new"
    with pytest.raises(RequestError) as caught:
        led.partition.check_leads()
    assert caught.value.code is NOT_LEADER


@pytest.mark.parametrize("is_broken", [False, True])
def test_waiters_fail_when_the_replica_is_closed(tmp_path: Path, is_broken: bool) -> None:
    led = Led(tmp_path)
    led.append()
    told: list[ErrorCode] = []
    led.leading.wait(told.append, 1)
    if is_broken:
        led.log.state.failure = OSError("gone")  # type: ignore[assignment]
    led.partition.close()
    assert told == [ErrorCode.kafka_storage_error if is_broken else NOT_LEADER]


def test_waiters_stay_when_the_same_leader_is_reelected(tmp_path: Path) -> None:
    led = Led(tmp_path)
    led.append(2)
    told: list[ErrorCode] = []
    led.leading.wait(told.append, 2)
    led.told()
    led.log.appender.note_leader_epoch(EPOCH + 1)
    what = led.leading.image(Leadership(EPOCH + 1, 31, (1, 2, 3), (1, 2, 3)), led.now_ms)
    led.partition.lead(EPOCH + 1, led.leading)
    led.partition.happened(what)
    assert told == []
    assert Event("growth", ENOUGH) in led.told(), "followers are to hear of the new epoch"
    led.fetch(2, 2)
    led.fetch(3, 2)
    assert told == [ErrorCode.none]


def test_another_machine_or_none_ends_every_wait(tmp_path: Path) -> None:
    led = Led(tmp_path)
    led.append(2)
    told: list[ErrorCode] = []
    led.leading.wait(told.append, 2)
    other = led.made(led.shape._replace(leader_epoch=EPOCH + 1))
    led.partition.lead(EPOCH + 1, other)
    assert told == [NOT_LEADER]
    other.wait(told.append, 2)
    led.partition.lead(EPOCH + 1, None)
    assert told == [NOT_LEADER, ErrorCode.none], "there is no other replica any more"
    assert led.partition.high_watermark == 2


def test_a_leader_alone_in_the_isr_commits_what_it_appends(tmp_path: Path) -> None:
    led = Led(tmp_path, isr=(1,), min_isr=1, records=5, high_watermark=2)
    assert led.partition.high_watermark == 5, "as soon as it leads"
    led.told()
    size = led.append()
    assert led.told() == [Event("growth", size), Event("seen", size), Event("growth", 0)]
    assert led.partition.high_watermark == 6


def test_a_new_leader_begins_with_the_mark_it_knows(tmp_path: Path) -> None:
    led = Led(tmp_path, records=5, high_watermark=2)
    assert led.partition.high_watermark == 2
    assert not led.leading.has_reached_its_epoch
    led.fetch(2, 5)
    led.fetch(3, 5)
    assert (led.partition.high_watermark, led.marks) == (5, [5])


def test_there_must_be_enough_in_sync(tmp_path: Path) -> None:
    led = Led(tmp_path, isr=(1, 2))
    led.partition.check_replicas()
    led.partition.configure(replace(led.partition.config, min_insync_replicas=3))
    with pytest.raises(RequestError, match=r"2 in-sync replicas .*, there must be 3") as caught:
        led.partition.check_replicas()
    assert caught.value.code is ErrorCode.not_enough_replicas
    with pytest.raises(RequestError):
        led.partition.append_records(bytearray(batch(1).data), EPOCH, START_MS)
    led.partition.configure(replace(led.partition.config, min_insync_replicas=7))
    assert led.leading.min_isr == 3, "there are no more replicas than that"


def test_settings_that_let_more_be_committed_commit_it(tmp_path: Path) -> None:
    led = Led(tmp_path, isr=(1,), min_isr=2)
    led.append(3)
    assert led.partition.high_watermark == 0
    led.partition.configure(replace(led.partition.config, min_insync_replicas=1))
    assert led.partition.high_watermark == 3


def test_proposals_are_told(tmp_path: Path) -> None:
    led = Led(tmp_path, isr=(1, 2), records=5, high_watermark=5)
    led.fetch(3, 4)
    assert led.proposals == []
    led.fetch(3, 5)
    assert led.proposals == [led.partition.tip]
    assert led.leading.proposal is not None


def test_a_follower_takes_the_mark_that_its_leader_tells(tmp_path: Path) -> None:
    led = Led(tmp_path, records=5, high_watermark=2)
    led.partition.follow(EPOCH + 1)
    led.told()
    led.partition.set_follower_high_watermark(4)
    assert led.partition.high_watermark == 4
    (seen, growth) = led.told()
    assert 0 < seen.amount < ENOUGH
    assert growth == Event("growth", 0)
    led.partition.set_follower_high_watermark(4)
    assert led.told() == []
    led.partition.set_follower_high_watermark(90)
    assert led.partition.high_watermark == 5, "never beyond what is here"
    led.partition.set_follower_high_watermark(-1)
    assert led.partition.high_watermark == 0, "nor below the start"
    led.partition.lead(EPOCH + 2, led.made(led.shape._replace(leader_epoch=EPOCH + 2)))
    led.partition.set_follower_high_watermark(3)
    assert led.partition.high_watermark == 0, "a leader is told nothing"


def test_duplicates_grow_nothing(tmp_path: Path) -> None:
    led = Led(tmp_path)
    made = batch(2, producer_id=7, epoch=0, sequence=0)
    led.partition.append(made, START_MS)
    led.told()
    info = led.partition.append(batch(2, producer_id=7, epoch=0, sequence=0), START_MS)
    assert info.duplicate
    assert led.told() == []


def test_a_partition_alone_commits_at_once(tmp_path: Path) -> None:
    led = Led(tmp_path)
    led.partition.lead(EPOCH + 1, None)
    led.told()
    size = led.append(2)
    assert led.told() == [Event("seen", size)]
    assert led.partition.high_watermark == 2
    led.partition.happened(7)  # there is nobody whom it could be about
    assert led.proposals == []
