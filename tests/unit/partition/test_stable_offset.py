"""The last stable offset of a partition, and who is told when it rises."""

from __future__ import annotations

from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import InvariantError, RequestError
from service.base.purgatory import Operation, Purgatory
from service.hot.markers import Marker
from service.hot.state import AppendInfo
from service.hot.verification import VERIFICATION_OFF
from service.partition.partition import Partition
from tests.unit.hot.logs import START_MS, batch, open_log
from tests.unit.partition.leading import EPOCH, Led

MUCH = 1 << 40


class _Told(Operation):
    def __init__(self) -> None:
        super().__init__()
        self.amounts: list[int] = []

    def happened(self, key: object, amount: int) -> bool:
        self.amounts.append(amount)
        return False

    def news(self) -> list[int]:
        news, self.amounts = self.amounts, []
        return news


def told_of(purgatory: Purgatory, key: object) -> _Told:
    told = _Told()
    purgatory.watch(told, (key,))
    return told


class Coordinated(Led):
    """The partition with replicas on 2 and 3, and a transaction coordinator: the test."""

    sequences: dict[int, int]

    def send(self, producer_id: int, count: int = 1) -> int:
        """Append transactional records; return their size."""
        known = self.__dict__.setdefault("sequences", {})
        sequence = known.get(producer_id, 0)
        known[producer_id] = sequence + count
        made = batch(count, producer_id=producer_id, epoch=0, sequence=sequence, is_transactional=True)
        self.partition.append(made, START_MS, VERIFICATION_OFF)
        return len(made.data)

    def end(self, producer_id: int, *, is_commit: bool = True) -> None:
        (result,) = self.partition.append_markers([marker(producer_id, is_commit=is_commit)], START_MS)
        assert isinstance(result, AppendInfo)

    def replicated(self) -> None:
        for broker_id in (2, 3):
            assert self.fetch(broker_id, self.log.log_end_offset) is ErrorCode.none

    @property
    def ends(self) -> tuple[int, int]:
        return self.partition.last_stable_offset, self.partition.high_watermark


def marker(producer_id: int, *, is_commit: bool = True, epoch: int = 0, coordinator_epoch: int = 1) -> Marker:
    return Marker(producer_id, epoch, coordinator_epoch, is_commit, 1)


@pytest.fixture
def led(tmp_path: Path) -> Coordinated:
    return Coordinated(tmp_path)


def test_an_open_transaction_holds_back_all_that_follows(led: Coordinated) -> None:
    led.append(3)
    led.send(7)
    led.append(2)
    led.send(8)
    led.replicated()
    assert led.ends == (3, 7)
    led.end(7)
    led.end(8, is_commit=False)
    assert led.ends == (3, 7), "the markers are not replicated"
    led.replicated()
    assert led.ends == (9, 9)


def test_the_oldest_transaction_decides_in_whatever_order_they_end(led: Coordinated) -> None:
    for producer_id in (7, 8, 9):
        led.send(producer_id)
    led.end(8)
    led.end(9)
    led.replicated()
    assert led.ends == (0, 5)
    led.send(8)
    led.end(7)
    led.replicated()
    assert led.ends == (5, 7), "a new transaction of a producer that had one"


def test_waiters_for_committed_transactions_hear_of_rises_alone(led: Coordinated) -> None:
    stable = told_of(led.purgatory, led.partition.stable)
    size = led.append(2)
    led.replicated()
    assert stable.news() == [size], "without transactions as for all records"
    led.send(7)
    assert stable.news() == []
    led.replicated()
    led.append()
    led.replicated()
    assert (stable.news(), led.ends) == ([], (2, 4))
    led.end(7)
    assert stable.news() == []
    led.replicated()
    assert (stable.news(), led.ends) == ([MUCH], (5, 5))
    size = led.append()
    led.replicated()
    assert stable.news() == [size]


def test_records_before_a_transaction_are_told_of_beside_it(led: Coordinated) -> None:
    stable = told_of(led.purgatory, led.partition.stable)
    led.append(2)
    led.send(7)
    led.replicated()
    assert (stable.news(), led.ends) == ([MUCH], (2, 3))


def test_the_only_replica_commits_what_it_appends(tmp_path: Path) -> None:
    purgatory = Purgatory(0)
    log = open_log(tmp_path)
    partition = Partition(log.tip, log, None, EPOCH, 1, 1 << 20, purgatory)
    seen, stable = told_of(purgatory, partition), told_of(purgatory, partition.stable)
    plain = batch(2)
    partition.append(plain, START_MS)
    assert seen.news() == stable.news() == [len(plain.data)]
    made = batch(1, producer_id=7, epoch=0, sequence=0, is_transactional=True)
    partition.append(made, START_MS, VERIFICATION_OFF)
    partition.append(plain, START_MS)
    assert (partition.last_stable_offset, partition.high_watermark) == (2, 5)
    assert (seen.news(), stable.news()) == ([len(made.data), len(plain.data)], [])
    partition.append_markers([marker(7)], START_MS)
    assert (partition.last_stable_offset, partition.high_watermark) == (6, 6)
    assert (seen.news(), stable.news()) == ([78], [MUCH])


def test_a_follower_computes_the_same_and_keeps_it_when_it_leads(led: Coordinated, tmp_path: Path) -> None:
    led.append(2)
    led.send(7)
    led.send(8)
    led.end(7)
    copy = open_log(tmp_path / "copy")
    purgatory = Purgatory(0)
    follower = Partition(
        copy.tip, copy, None, EPOCH, 1, 1 << 20, purgatory, is_leader=False, high_watermark=0
    )
    found = led.log.read(0, 1 << 20).slice
    assert found is not None
    copy.appender.append_raw(memoryview(found.read()))
    stable = told_of(purgatory, follower.stable)
    for mark, end in ((1, 1), (4, 2), (5, 3), (4, 3)):
        follower.set_follower_high_watermark(mark)
        assert follower.last_stable_offset == end
    assert len(stable.news()) == 3, "nothing rose with the last"
    follower.set_follower_high_watermark(5)
    follower.lead(EPOCH + 1, None)
    assert follower.last_stable_offset == 3, "8 is open"


def test_a_new_leader_waits_for_the_high_watermark(led: Coordinated) -> None:
    led.send(7)
    led.end(7)
    led.partition.follow(EPOCH + 1)
    assert led.ends == (0, 0)
    leading = led.made(led.shape._replace(leader_epoch=EPOCH + 2))
    led.leading = leading
    led.partition.lead(EPOCH + 2, leading)
    assert led.ends == (0, 0), "the marker is not known to be committed"
    led.replicated()
    assert led.ends == (2, 2)


def test_the_start_of_the_log_is_stable_though_it_passes_an_open_transaction(led: Coordinated) -> None:
    led.send(7)
    led.append(3)
    led.replicated()
    assert led.ends == (0, 4)
    assert led.partition.delete_records(3) == 3
    assert led.ends == (3, 4)
    assert led.partition.delete_records(-1) == 4
    assert led.ends == (4, 4)


def test_markers_are_refused_where_they_could_not_be_committed(led: Coordinated) -> None:
    led.send(7)
    led.send(8)
    first = led.partition.append_markers([marker(7, coordinator_epoch=5)], START_MS)
    assert isinstance(first[0], AppendInfo)
    results = led.partition.append_markers(
        [marker(7, coordinator_epoch=4), marker(8, epoch=-1), marker(8), marker(9)], START_MS
    )
    codes = [one.code if isinstance(one, RequestError) else one.first_offset for one in results]
    assert codes == [
        ErrorCode.transaction_coordinator_fenced, ErrorCode.invalid_producer_epoch, 3, 4,
    ]  # fmt: skip
    led.partition.configure(led.partition.config)
    led.leading.configure(4, 0)
    alone = led.made(led.shape._replace(isr=(1,)))
    led.partition.lead(EPOCH, alone)
    for expected in (ErrorCode.not_enough_replicas, ErrorCode.not_leader_or_follower):
        with pytest.raises(RequestError) as error:
            led.partition.append_markers([marker(7, coordinator_epoch=5)], START_MS)
        assert error.value.code is expected
        led.partition.follow(EPOCH + 1)
    assert led.log.log_end_offset == 5


@pytest.mark.parametrize(("mark", "end"), [(None, 5), (5, 5), (4, 2), (1, 1)])
def test_transactions_that_had_ended_hide_nothing_after_a_start(
    led: Coordinated, tmp_path: Path, mark: int | None, end: int
) -> None:
    led.append(2)
    led.send(7)
    led.append(1)
    led.end(7)
    led.log.close(clean=False)
    log = open_log(tmp_path)
    found = Partition(log.tip, log, None, EPOCH, 1, 1 << 20, Purgatory(0), high_watermark=mark)
    assert found.last_stable_offset == end


def test_a_truncation_leaves_what_has_ended_below_the_high_watermark_stable(led: Coordinated) -> None:
    led.send(7)
    led.end(7)
    led.send(8)
    led.send(9)
    led.end(8)
    led.replicated()
    led.send(8)
    led.partition.follow(EPOCH + 1)
    assert led.ends == (3, 5)
    led.log.truncation.truncate_to(5)
    led.partition.set_follower_high_watermark(5)
    assert led.ends == (3, 5)
    led.log.truncation.truncate_to(3)
    led.partition.set_follower_high_watermark(3)
    assert led.ends == (2, 3), "the marker of 8 at offset 4 is gone"
    assert led.log.first_unstable_offset == 2


def test_a_last_stable_offset_that_falls_under_a_leader_is_a_bug(led: Coordinated) -> None:
    led.append(3)
    led.send(7)
    led.replicated()
    with pytest.raises(InvariantError):
        led.partition._set_high_watermark(1)


def test_a_rise_alone_is_told_to_whoever_archives(led: Coordinated) -> None:
    """A segment that waits for its transactions is copied once they have ended, not at the next look."""
    seen: list[int] = []
    led.partition.on_stable = lambda: seen.append(led.partition.last_stable_offset)
    led.send(7)
    led.append(2)
    led.replicated()
    assert seen == [], "the mark rose, the stable offset did not"
    led.end(7)
    assert seen == []
    led.replicated()
    assert seen == [4]


def test_a_replica_that_opens_with_its_marker_committed_is_stable(led: Coordinated) -> None:
    led.send(7)
    led.end(7)
    assert led.partition.last_stable_offset == 0
    log, purgatory = led.log, Purgatory(0)
    again = Partition(log.tip, log, None, EPOCH, 1, 1 << 20, purgatory, is_leader=False, high_watermark=2)
    assert (again.last_stable_offset, again.high_watermark) == (2, 2)
