"""A fetcher: what it asks, what an answer means for the log, and what it does not believe."""

from __future__ import annotations

from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import InvariantError
from service.base.types import TopicIdPartition
from service.replication.fetch_session_handler import FetchPartitionData
from service.replication.follower import FollowerMachine, FollowerSettings
from service.replication.follower_events import (
    AdvanceMarks,
    Append,
    AskOffsets,
    BuildLocalStart,
    CaughtUp,
    Done,
    Effect,
    Fetch,
    FlushAppended,
    FollowerFetchResponse,
    HoldPartition,
    LeaderOffsets,
    PartitionFetchResponse,
    Restart,
    Truncate,
    Warn,
)
from service.replication.partition_fetch_state import FetchState
from tests.unit.replication.leaders import NOW_MS, Log

BACKOFF_MS = 1_000
NONE = ErrorCode.none


def tip(number: int = 0) -> TopicIdPartition:
    return TopicIdPartition(UUID(int=number + 1), f"t{number}", 0)


class Fetcher:
    """A machine, and the logs of its partitions."""

    def __init__(self, count: int = 1, end: int = 10, *, is_clean: bool = True) -> None:
        self.machine = FollowerMachine(FollowerSettings(BACKOFF_MS))
        self.now_ms = NOW_MS
        self.session_id = 77
        self.logs = [Log(end, ((1, 0), (3, 4))) for _ in range(count)]
        for number in range(count):
            self.machine.assign(tip(number), self.logs[number], 5, self.now_ms, is_clean=is_clean)

    def fetch(self) -> Fetch:
        fetch = self.machine.next_fetch(self.now_ms)
        assert fetch is not None
        return fetch

    def answer(
        self, fetch: Fetch, *partitions: PartitionFetchResponse, error: ErrorCode = NONE
    ) -> tuple[Effect, ...]:
        return self.machine.answered(
            fetch.number, FollowerFetchResponse(error, self.session_id, partitions), self.now_ms
        )

    def is_told(self, error: ErrorCode = NONE, **told: object) -> tuple[Effect, ...]:
        """One fetch, and what is answered for the first partition; nothing for the others."""
        fetch = self.fetch()
        others = [PartitionFetchResponse(one) for one, _ in fetch.partitions if one != tip()]
        return self.answer(fetch, PartitionFetchResponse(tip(), error, **told), *others)  # type: ignore[arg-type]

    def done(self, effect: Effect, outcome: Done = Done.DONE) -> tuple[Effect, ...]:
        assert isinstance(effect, Append | Truncate | Restart | BuildLocalStart | FlushAppended)
        return self.machine.done(effect.number, outcome, self.now_ms)


# -- asking


def test_a_session_is_opened_and_then_only_changes_are_said() -> None:
    fetcher = Fetcher(2)
    first = fetcher.fetch()
    assert (first.session_id, first.session_epoch) == (0, 0)
    assert first.partitions == [(tip(n), FetchPartitionData(5, 10, 3, 0)) for n in (0, 1)]
    effects = fetcher.answer(first, PartitionFetchResponse(tip(0), size=100), PartitionFetchResponse(tip(1)))
    fetcher.logs[0].log_end_offset = 20
    fetcher.done(effects[0])
    second = fetcher.fetch()
    assert (second.session_id, second.session_epoch) == (77, 1)
    assert second.partitions == [(tip(0), FetchPartitionData(5, 20, 3, 0))]
    fetcher.answer(second)
    third = fetcher.fetch()
    assert (third.session_epoch, third.partitions, third.forgotten) == (2, [], [])


def test_nothing_is_asked_while_a_fetch_is_in_flight_or_a_log_is_changed() -> None:
    fetcher = Fetcher()
    fetch = fetcher.fetch()
    assert fetcher.machine.next_fetch(fetcher.now_ms) is None
    (append,) = fetcher.answer(fetch, PartitionFetchResponse(tip(), size=100))
    assert fetcher.machine.next_fetch(fetcher.now_ms) is None
    fetcher.logs[0].log_end_offset = 11
    fetcher.done(append)
    assert fetcher.fetch().partitions == [(tip(), FetchPartitionData(5, 11, 3, 0))]


def test_a_fetcher_without_partitions_asks_nothing() -> None:
    fetcher = Fetcher(0)
    assert fetcher.machine.next_fetch(fetcher.now_ms) is None
    assert fetcher.machine.next_deadline_ms() is None


def test_partitions_that_go_are_forgotten_and_new_ones_named() -> None:
    fetcher = Fetcher(2)
    fetcher.is_told()
    fetcher.machine.remove(tip(1))
    fetcher.machine.assign(tip(2), Log(3), 1, fetcher.now_ms, is_clean=True)
    fetch = fetcher.fetch()
    assert (fetch.partitions, fetch.forgotten) == ([(tip(2), FetchPartitionData(1, 3, 1, 0))], [tip(1)])


def test_one_that_came_and_went_unsaid_is_not_forgotten() -> None:
    fetcher = Fetcher()
    fetcher.is_told()
    fetcher.machine.assign(tip(2), Log(3), 1, fetcher.now_ms, is_clean=True)
    fetcher.machine.remove(tip(2))
    fetch = fetcher.fetch()
    assert (fetch.partitions, fetch.forgotten) == ([], [])


def test_a_start_that_moved_is_said() -> None:
    fetcher = Fetcher()
    fetcher.is_told()
    fetcher.logs[0].log_start_offset = 4
    fetcher.machine.start_moved(tip())
    assert fetcher.fetch().partitions == [(tip(), FetchPartitionData(5, 10, 3, 4))]


def test_those_that_got_records_are_the_last_of_a_full_fetch() -> None:
    fetcher = Fetcher(3)
    fetcher.session_id = 0
    (append,) = fetcher.is_told(size=10)
    fetcher.logs[0].log_end_offset = 11
    fetcher.done(append)
    assert [one for one, _ in fetcher.fetch().partitions] == [tip(1), tip(2), tip(0)]


def test_many_partitions_are_named_in_several_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.replication.follower.MOST_NAMED", 2)
    fetcher = Fetcher(5)
    named, whole = [], []
    for _ in range(3):
        fetch = fetcher.fetch()
        named.append([one for one, _ in fetch.partitions])
        whole.append(fetch.is_whole)
        fetcher.answer(fetch, *(PartitionFetchResponse(one) for one, _ in fetch.partitions))
    assert named == [[tip(0), tip(1)], [tip(2), tip(3)], [tip(4)]]
    assert whole == [False, False, True]


def test_many_partitions_have_their_turns_without_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.replication.follower.MOST_NAMED", 2)
    fetcher = Fetcher(3)
    fetcher.session_id = 0
    named = []
    for _ in range(3):
        fetch = fetcher.fetch()
        named.append([one for one, _ in fetch.partitions])
        fetcher.answer(fetch, *(PartitionFetchResponse(one) for one, _ in fetch.partitions))
    assert named == [[tip(0), tip(1)], [tip(2), tip(0)], [tip(1), tip(2)]]


@pytest.mark.parametrize(
    ("error", "session_id"),
    [
        (ErrorCode.fetch_session_id_not_found, 0),
        (ErrorCode.invalid_fetch_session_epoch, 77),
        (ErrorCode.fetch_session_topic_id_error, 77),
    ],
)
def test_a_session_that_is_refused_is_begun_anew(error: ErrorCode, session_id: int) -> None:
    fetcher = Fetcher()
    fetcher.is_told()
    assert fetcher.answer(fetcher.fetch(), error=error) == ()
    fetcher.now_ms += BACKOFF_MS
    fetch = fetcher.fetch()
    assert (fetch.session_id, fetch.session_epoch, len(fetch.partitions)) == (session_id, 0, 1)


def test_a_session_that_was_evicted_is_begun_anew_at_once_but_not_over_and_over() -> None:
    fetcher, gone = Fetcher(), ErrorCode.fetch_session_id_not_found
    fetcher.is_told()
    fetcher.answer(fetcher.fetch(), error=gone)
    fetcher.answer(fetcher.fetch(), error=gone)
    assert fetcher.machine.next_fetch(fetcher.now_ms) is None


def test_a_fetch_that_failed_is_made_again_after_a_while_in_full() -> None:
    fetcher = Fetcher()
    fetcher.is_told()
    lost = fetcher.fetch()
    fetcher.machine.failed(lost.number, fetcher.now_ms)
    assert fetcher.machine.next_fetch(fetcher.now_ms) is None
    assert fetcher.machine.next_deadline_ms() == fetcher.now_ms + BACKOFF_MS
    fetcher.now_ms += BACKOFF_MS
    fetch = fetcher.fetch()
    assert (fetch.session_id, fetch.session_epoch) == (77, 0)
    assert fetcher.answer(lost, PartitionFetchResponse(tip(), size=5)) == (), (
        "the answer of the one that failed"
    )
    fetcher.machine.failed(lost.number, fetcher.now_ms)
    assert len(fetcher.answer(fetch, PartitionFetchResponse(tip(), size=5))) == 1


@pytest.mark.parametrize(
    "partitions",
    [
        [PartitionFetchResponse(tip(5), size=9)],
        [PartitionFetchResponse(tip(), size=9), PartitionFetchResponse(tip(), size=9)],
        [],
    ],
)
def test_an_answer_to_something_else_is_nonsense(partitions: list[PartitionFetchResponse]) -> None:
    fetcher = Fetcher()
    (warning,) = fetcher.answer(fetcher.fetch(), *partitions)
    assert isinstance(warning, Warn)
    assert fetcher.machine.next_fetch(fetcher.now_ms) is None
    fetcher.now_ms += BACKOFF_MS
    assert fetcher.fetch().session_epoch == 0


def test_a_session_of_another_number_is_nonsense() -> None:
    fetcher = Fetcher()
    fetcher.is_told()
    fetcher.session_id = 78
    (warning,) = fetcher.answer(fetcher.fetch())
    assert isinstance(warning, Warn)


# -- records


def test_what_was_appended_has_the_leaders_mark_and_start_follow() -> None:
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


def test_who_has_all_that_is_committed_has_caught_up_and_is_said_to_once() -> None:
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


def test_who_lacks_nothing_has_caught_up_with_an_answer_that_brings_nothing() -> None:
    for committed, expected in ((-1, ()), (11, ()), (10, (CaughtUp(tip(), 5),))):
        fetcher = Fetcher()
        fetcher.logs[0].high_watermark = 10
        assert fetcher.is_told(high_watermark=committed) == expected
        assert fetcher.is_told(high_watermark=committed) == ()


def test_who_is_in_sync_has_not_to_catch_up() -> None:
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


def test_records_of_which_none_fits_are_not_asked_for_at_once() -> None:
    fetcher = Fetcher()
    (append,) = fetcher.is_told(size=100)
    fetcher.done(append)
    assert fetcher.machine.state_of(tip()) is FetchState.DELAYED


def test_a_log_that_fails_is_left_alone_until_it_is_assigned_anew() -> None:
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


def test_the_leader_tells_the_mark_again_of_which_the_answer_was_dropped() -> None:
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


def test_of_what_went_with_a_dropped_answer_nothing_is_left() -> None:
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


def test_a_new_leader_epoch_begins_at_the_logs_end_and_ends_what_was_under_way() -> None:
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


def test_work_of_a_partition_that_went_holds_up_nobody() -> None:
    fetcher = Fetcher(2)
    (append,) = fetcher.is_told(size=100)
    fetcher.machine.remove(tip())
    assert not fetcher.machine.is_wanted(append.number)
    assert fetcher.fetch().forgotten == [tip()]
    assert tip() not in fetcher.machine
    assert len(fetcher.machine) == 1


# -- where logs part


@pytest.mark.parametrize(
    ("diverging", "offset"),
    [
        ((3, 8), 8),
        ((3, 12), 10),
        ((1, 9), 4),
        ((1, 3), 3),
        ((2, 7), 4),
        ((0, 2), 0),
    ],
)
def test_it_is_cut_at_the_lesser_end_of_the_greatest_common_epoch(
    diverging: tuple[int, int], offset: int
) -> None:
    fetcher = Fetcher()
    (effect,) = fetcher.is_told(diverging=diverging, size=50, high_watermark=99)
    assert effect == Truncate(effect.number, tip(), offset, False)


def test_it_is_cut_again_until_they_agree() -> None:
    fetcher = Fetcher()
    (first,) = fetcher.is_told(diverging=(2, 7))
    log = fetcher.logs[0]
    log.log_end_offset, log.epochs = 4, [(1, 0)]
    assert fetcher.done(first) == ()
    fetch = fetcher.fetch()
    assert fetch.partitions == [(tip(), FetchPartitionData(5, 4, 1, 0))]
    (second,) = fetcher.answer(fetch, PartitionFetchResponse(tip(), diverging=(1, 2)))
    assert second == Truncate(second.number, tip(), 2, False)


def test_an_epoch_without_records_goes_though_the_end_stays() -> None:
    fetcher = Fetcher()
    log = fetcher.logs[0]
    log.epochs.append((4, 10))
    fetcher.machine.assign(tip(), log, 6, fetcher.now_ms, is_clean=True)
    (effect,) = fetcher.is_told(diverging=(3, 30))
    assert effect == Truncate(effect.number, tip(), 10, False)
    log.epochs.pop()
    fetcher.done(effect)
    assert fetcher.fetch().partitions == [(tip(), FetchPartitionData(6, 10, 3, 0))]


def test_a_cut_that_changes_nothing_is_not_made_over_and_over() -> None:
    fetcher = Fetcher()
    (effect,) = fetcher.is_told(diverging=(3, 30))
    fetcher.done(effect)
    assert fetcher.machine.state_of(tip()) is FetchState.DELAYED


@pytest.mark.parametrize("diverging", [(-1, 5), (3, -1)])
def test_an_end_that_is_none_is_not_cut_to(diverging: tuple[int, int]) -> None:
    fetcher = Fetcher()
    (effect,) = fetcher.is_told(diverging=diverging)
    assert isinstance(effect, Warn)
    assert fetcher.machine.state_of(tip()) is FetchState.DELAYED


def test_what_is_committed_is_cut_off_by_an_unclean_election_alone() -> None:
    for is_clean in (True, False):
        fetcher = Fetcher(is_clean=is_clean)
        fetcher.logs[0].high_watermark = 9
        (effect,) = fetcher.is_told(diverging=(3, 8))
        if is_clean:
            assert isinstance(effect, HoldPartition)
            assert fetcher.machine.state_of(tip()) is FetchState.HELD
            assert fetcher.fetch().forgotten == [tip()]
        else:
            assert effect == Truncate(effect.number, tip(), 8, True)


# -- out of range


def test_past_the_leaders_end_it_is_cut_to_it() -> None:
    fetcher = Fetcher()
    (ask,) = fetcher.is_told(ErrorCode.offset_out_of_range)
    assert ask == AskOffsets(ask.number, tip(), 5)
    (effect,) = fetcher.machine.offsets(ask.number, LeaderOffsets(0, 7), fetcher.now_ms)
    assert effect == Truncate(effect.number, tip(), 7, False)


def test_before_the_leaders_start_it_begins_there_anew() -> None:
    fetcher = Fetcher(2)
    (ask,) = fetcher.is_told(ErrorCode.offset_out_of_range)
    assert isinstance(ask, AskOffsets)
    assert fetcher.fetch().forgotten == [tip()], "the others are fetched meanwhile"
    (effect,) = fetcher.machine.offsets(ask.number, LeaderOffsets(15, 40), fetcher.now_ms)
    assert effect == Restart(effect.number, tip(), 15)
    fetcher.logs[0].log_end_offset = fetcher.logs[0].log_start_offset = 15
    fetcher.logs[0].epochs = []
    fetcher.done(effect)
    fetcher.machine.failed(fetcher.machine._in_flight, fetcher.now_ms)
    fetcher.now_ms += BACKOFF_MS
    assert (tip(), FetchPartitionData(5, 15, -1, 15)) in fetcher.fetch().partitions


def test_what_is_within_range_after_all_is_asked_for_later() -> None:
    fetcher = Fetcher()
    (ask,) = fetcher.is_told(ErrorCode.offset_out_of_range)
    assert isinstance(ask, AskOffsets)
    assert fetcher.machine.offsets(ask.number, LeaderOffsets(0, 20), fetcher.now_ms) == ()
    assert fetcher.machine.state_of(tip()) is FetchState.DELAYED


def test_offsets_that_could_not_be_had() -> None:
    for error, state in (
        (ErrorCode.network_exception, FetchState.DELAYED),
        (ErrorCode.fenced_leader_epoch, FetchState.HELD),
    ):
        fetcher = Fetcher()
        (ask,) = fetcher.is_told(ErrorCode.offset_out_of_range)
        assert isinstance(ask, AskOffsets)
        assert fetcher.machine.offsets(ask.number, error, fetcher.now_ms) == ()
        assert fetcher.machine.state_of(tip()) is state
        assert fetcher.machine.offsets(ask.number, LeaderOffsets(0, 1), fetcher.now_ms) == ()


# -- the archive


def test_what_moved_to_the_archive_is_built_while_the_others_are_fetched() -> None:
    fetcher = Fetcher(2)
    (build,) = fetcher.is_told(ErrorCode.offset_moved_to_tiered_storage, start_offset=3)
    assert build == BuildLocalStart(build.number, tip(), 5, 3)
    fetch = fetcher.fetch()
    assert fetch.forgotten == [tip()]
    fetcher.answer(fetch)
    fetcher.logs[0].log_end_offset = 50
    assert fetcher.done(build) == ()
    assert fetcher.fetch().partitions == [(tip(), FetchPartitionData(5, 50, 3, 0))]


def test_what_is_not_on_the_device_is_not_told_and_the_others_are_fetched_meanwhile() -> None:
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


def test_what_an_earlier_leader_sent_is_on_the_device_before_the_next_one_is_told() -> None:
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


def test_what_cannot_be_built_now_is_asked_for_later() -> None:
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


# -- errors


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.unknown_leader_epoch,
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.kafka_storage_error,
        ErrorCode.unknown_server_error,
    ],
)
def test_what_may_pass_is_asked_for_later(error: ErrorCode) -> None:
    fetcher = Fetcher()
    assert fetcher.is_told(error) == ()
    assert fetcher.machine.state_of(tip()) is FetchState.DELAYED
    fetcher.now_ms += BACKOFF_MS
    fetcher.answer(fetcher.fetch(), PartitionFetchResponse(tip()))
    assert fetcher.machine.state_of(tip()) is FetchState.READY


def test_a_leader_that_has_not_heard_of_its_election_is_asked_again_soon() -> None:
    fetcher = Fetcher()
    waited = []
    for _ in range(8):
        fetcher.is_told(ErrorCode.unknown_leader_epoch)
        due_ms = fetcher.machine.next_deadline_ms()
        assert due_ms is not None
        waited.append(due_ms - fetcher.now_ms)
        fetcher.now_ms = due_ms
    assert waited == [20, 40, 80, 160, 320, 640, BACKOFF_MS, BACKOFF_MS]


def test_a_newer_leader_is_awaited() -> None:
    fetcher = Fetcher()
    fetcher.is_told(ErrorCode.fenced_leader_epoch)
    fetcher.now_ms += 100 * BACKOFF_MS
    assert fetcher.fetch().partitions == []
    fetcher.machine.assign(tip(), fetcher.logs[0], 6, fetcher.now_ms, is_clean=True)
    assert fetcher.machine.state_of(tip()) is FetchState.READY


def test_moves_that_nobody_makes_are_refused() -> None:
    fetcher = Fetcher()
    fetcher.is_told(ErrorCode.fenced_leader_epoch)
    with pytest.raises(InvariantError):
        fetcher.machine._partitions[tip()].move(FetchState.WORKING)
