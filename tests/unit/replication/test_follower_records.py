"""The follower machine: records that it appends, high watermarks, catching up, the archive."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from service.replication.fetch_session_handler import FetchPartitionData
from service.replication.follower import FollowerMachine, FollowerSettings
from service.replication.follower_events import (
    AdvanceMarks,
    Append,
    BuildLocalStart,
    CaughtUp,
    Done,
    FlushAppended,
    PartitionFetchResponse,
)
from service.replication.partition_fetch_state import FetchState
from tests.unit.replication.followers import BACKOFF_MS, Fetcher, tip
from tests.unit.replication.leaders import NOW_MS, Log

# -- records


def test_after_an_append_the_high_watermark_and_start_offset_advance() -> None:
    fetcher = Fetcher()
    (append,) = fetcher.is_told(size=100, high_watermark=99, start_offset=7)
    assert append == Append(append.number, tip(), 5, 0, 7)
    fetcher.logs[0].log_end_offset = 20
    assert fetcher.done(append) == (AdvanceMarks(tip(), 20, 7),)


def test_the_mark_does_not_fall_and_the_start_does_not_pass_it() -> None:
    fetcher = Fetcher()
    fetcher.logs[0].high_watermark = 6
    told = fetcher.is_told(high_watermark=4, start_offset=9)
    assert told == (AdvanceMarks(tip(), 6, 6), CaughtUp(tip(), 5))
    fetcher.logs[0].log_start_offset = 6
    assert fetcher.is_told(high_watermark=-1, start_offset=-1) == ()


def test_caught_up_is_reported_once_for_all_committed_records() -> None:
    fetcher = Fetcher()
    caught_up = CaughtUp(tip(), 5)
    for end, committed, has_caught_up in ((14, 30, False), (20, 30, False), (31, 31, True), (35, 34, False)):
        (append,) = fetcher.is_told(size=100, high_watermark=committed)
        fetcher.logs[0].log_end_offset = end
        assert (caught_up in fetcher.done(append)) is has_caught_up, end
    (append,) = fetcher.is_told(size=100, high_watermark=50)
    fetcher.logs[0].log_end_offset = 40
    assert caught_up not in fetcher.done(append)
    (append,) = fetcher.is_told(size=100, high_watermark=50)
    fetcher.logs[0].log_end_offset = 50
    assert caught_up in fetcher.done(append), "it had fallen behind"


def test_an_empty_response_reports_a_complete_log_as_caught_up() -> None:
    for committed, expected in ((-1, ()), (11, ()), (10, (CaughtUp(tip(), 5),))):
        fetcher = Fetcher()
        fetcher.logs[0].high_watermark = 10
        assert fetcher.is_told(high_watermark=committed) == expected
        assert fetcher.is_told(high_watermark=committed) == ()


def test_an_in_sync_replica_is_not_reported_as_caught_up() -> None:
    fetcher = Fetcher(0)
    fetcher.machine.assign(tip(), Log(10), 5, fetcher.now_ms, is_clean=True, is_in_sync=True)
    assert not any(isinstance(one, CaughtUp) for one in fetcher.is_told(high_watermark=10))


def test_a_partition_with_corrupt_bytes_rests_and_the_others_go_on() -> None:
    fetcher = Fetcher(2)
    (append,) = fetcher.is_told(size=100)
    assert fetcher.done(append, Done.CORRUPT) == ()
    assert fetcher.machine.state_of(tip()) is FetchState.DELAYED
    fetch = fetcher.fetch()
    assert fetch.forgotten == [tip()]
    fetcher.answer(fetch)
    fetcher.now_ms += BACKOFF_MS
    assert fetcher.fetch().partitions == [(tip(), FetchPartitionData(5, 10, 3, 0))]


def test_a_partition_without_appendable_records_is_delayed() -> None:
    fetcher = Fetcher()
    (append,) = fetcher.is_told(size=100)
    fetcher.done(append)
    assert fetcher.machine.state_of(tip()) is FetchState.DELAYED


def test_a_failed_log_is_held_until_it_is_assigned_again() -> None:
    fetcher = Fetcher()
    (append,) = fetcher.is_told(size=100)
    fetcher.done(append, Done.OFFLINE)
    assert fetcher.machine.state_of(tip()) is FetchState.HELD
    fetch = fetcher.fetch()
    assert fetch.forgotten == [tip()]
    fetcher.machine.assign(tip(), fetcher.logs[0], 5, fetcher.now_ms, is_clean=True)
    assert fetcher.machine.state_of(tip()) is FetchState.READY


def test_an_answer_that_does_not_fit_what_the_log_is_now_says_nothing() -> None:
    for change in ("end", "epoch", "leader"):
        fetcher = Fetcher()
        fetch = fetcher.fetch()
        log = fetcher.logs[0]
        if change == "end":
            log.log_end_offset = 9
        elif change == "epoch":
            log.epochs.append((4, 9))
        else:
            fetcher.machine.assign(tip(), log, 6, fetcher.now_ms, is_clean=True)
        assert fetcher.answer(fetch, PartitionFetchResponse(tip(), size=100)) == (), change


def test_the_leader_resends_a_high_watermark_after_a_dropped_response() -> None:
    """To a session that has been told it once it does not, so that knows nothing of the partition first."""
    for change in ("end", "leader"):
        fetcher = Fetcher(2)
        fetch, log = fetcher.fetch(), fetcher.logs[0]
        if change == "end":
            log.log_end_offset = 12  # by another fetcher
        else:
            fetcher.machine.assign(tip(), log, 6, fetcher.now_ms, is_clean=True)
        fetcher.answer(fetch, PartitionFetchResponse(tip(), high_watermark=9), PartitionFetchResponse(tip(1)))
        fetch = fetcher.fetch()
        assert (fetch.partitions, fetch.forgotten, fetch.is_whole) == ([], [tip()], False), change
        fetcher.answer(fetch)
        fetch = fetcher.fetch()
        assert ([one for one, _ in fetch.partitions], fetch.forgotten) == ([tip()], []), change
        told = fetcher.answer(fetch, PartitionFetchResponse(tip(), high_watermark=9))
        assert told == (AdvanceMarks(tip(), 9, 0), CaughtUp(tip(), 5 if change == "end" else 6))
        assert fetcher.fetch().partitions == [], change


def test_removing_a_partition_clears_its_dropped_response() -> None:
    fetcher = Fetcher(2)
    fetch = fetcher.fetch()
    fetcher.logs[0].log_end_offset = 12
    fetcher.answer(fetch, PartitionFetchResponse(tip()), PartitionFetchResponse(tip(1)))
    fetcher.machine.remove(tip())
    fetch = fetcher.fetch()
    assert (fetch.partitions, fetch.forgotten) == ([], [tip()])
    fetcher.answer(fetch)
    fetcher.machine.assign(tip(), fetcher.logs[0], 6, fetcher.now_ms, is_clean=True)
    assert [one for one, _ in fetcher.fetch().partitions] == [tip()]


def test_a_new_leader_epoch_starts_at_the_log_end_and_cancels_work() -> None:
    fetcher = Fetcher()
    (append,) = fetcher.is_told(size=100)
    fetcher.logs[0].log_end_offset = 12
    assert fetcher.machine.is_wanted(append.number)
    fetcher.machine.assign(tip(), fetcher.logs[0], 6, fetcher.now_ms, is_clean=True)
    assert not fetcher.machine.is_wanted(append.number)
    assert fetcher.done(append) == ()
    assert fetcher.fetch().partitions == [(tip(), FetchPartitionData(6, 12, 3, 0))]


def test_the_same_epoch_again_changes_nothing() -> None:
    fetcher = Fetcher()
    (append,) = fetcher.is_told(size=100)
    fetcher.machine.assign(tip(), fetcher.logs[0], 5, fetcher.now_ms, is_clean=True)
    assert fetcher.machine.is_wanted(append.number)


def test_work_of_a_removed_partition_delays_no_other() -> None:
    fetcher = Fetcher(2)
    (append,) = fetcher.is_told(size=100)
    fetcher.machine.remove(tip())
    assert not fetcher.machine.is_wanted(append.number)
    assert fetcher.fetch().forgotten == [tip()]
    assert tip() not in fetcher.machine
    assert len(fetcher.machine) == 1


# -- the archive


def test_other_partitions_are_fetched_while_one_is_built_from_the_archive() -> None:
    fetcher = Fetcher(2)
    (build,) = fetcher.is_told(ErrorCode.offset_moved_to_tiered_storage, start_offset=3)
    assert build == BuildLocalStart(build.number, tip(), 5, 3)
    fetch = fetcher.fetch()
    assert fetch.forgotten == [tip()]
    fetcher.answer(fetch)
    fetcher.logs[0].log_end_offset = 50
    assert fetcher.done(build) == ()
    assert fetcher.fetch().partitions == [(tip(), FetchPartitionData(5, 50, 3, 0))]


def test_other_partitions_are_fetched_while_one_is_unflushed() -> None:
    fetcher = Fetcher(2)
    (append,) = fetcher.is_told(size=100, high_watermark=12)
    fetcher.logs[0].log_end_offset = 14
    (flush,) = fetcher.done(append, Done.UNFLUSHED)
    assert isinstance(flush, FlushAppended)
    assert (flush.tip, flush.after_ms) == (tip(), BACKOFF_MS)
    fetch = fetcher.fetch()
    assert (fetch.partitions, fetch.forgotten) == ([], [tip()])
    fetcher.answer(fetch)
    (again,) = fetcher.done(flush, Done.UNFLUSHED)
    assert fetcher.done(again) == (AdvanceMarks(tip(), 12, 0), CaughtUp(tip(), 5))
    assert fetcher.fetch().partitions == [(tip(), FetchPartitionData(5, 14, 3, 0))]


def test_records_of_the_old_leader_are_flushed_before_the_first_fetch() -> None:
    fetcher = Fetcher()
    (flush,) = fetcher.machine.assign(
        tip(), fetcher.logs[0], 6, fetcher.now_ms, is_clean=True, flushes_first=True
    )
    assert isinstance(flush, FlushAppended)
    assert flush.after_ms == 0
    assert fetcher.machine.next_fetch(fetcher.now_ms) is None
    fetcher.done(flush)
    assert fetcher.fetch().partitions == [(tip(), FetchPartitionData(6, 10, 3, 0))]


def test_a_log_that_fails_while_it_is_flushed_is_held() -> None:
    fetcher = Fetcher()
    (append,) = fetcher.is_told(size=100)
    fetcher.logs[0].log_end_offset = 14
    (flush,) = fetcher.done(append, Done.UNFLUSHED)
    assert fetcher.done(flush, Done.OFFLINE) == ()
    assert fetcher.machine.state_of(tip()) is FetchState.HELD


def test_a_partition_that_cannot_be_built_yet_is_delayed() -> None:
    fetcher = Fetcher()
    (build,) = fetcher.is_told(ErrorCode.offset_moved_to_tiered_storage)
    fetcher.done(build, Done.NOT_NOW)
    assert fetcher.machine.state_of(tip()) is FetchState.DELAYED
    assert fetcher.machine.next_deadline_ms() == fetcher.now_ms + BACKOFF_MS


def test_an_empty_log_may_begin_at_the_end_of_the_archive() -> None:
    machine = FollowerMachine(FollowerSettings())
    (build,) = machine.assign(tip(), Log(0, ()), 5, NOW_MS, is_clean=True, builds_first=True)
    assert isinstance(build, BuildLocalStart)
    assert machine.next_fetch(NOW_MS) is None
    assert machine.assign(tip(1), Log(1), 5, NOW_MS, is_clean=True, builds_first=True) == ()
