"""The follower machine: its fetch requests and sessions, and errors that it retries."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import InvariantError
from service.replication.fetch_session_handler import FetchPartitionData
from service.replication.follower_events import PartitionFetchResponse, Warn
from service.replication.partition_fetch_state import FetchState
from tests.unit.replication.followers import BACKOFF_MS, Fetcher, tip
from tests.unit.replication.leaders import Log

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


def test_one_fetch_is_in_flight_and_none_during_a_log_change() -> None:
    fetcher = Fetcher()
    fetch = fetcher.fetch()
    assert fetcher.machine.next_fetch(fetcher.now_ms) is None
    (append,) = fetcher.answer(fetch, PartitionFetchResponse(tip(), size=100))
    assert fetcher.machine.next_fetch(fetcher.now_ms) is None
    fetcher.logs[0].log_end_offset = 11
    fetcher.done(append)
    assert fetcher.fetch().partitions == [(tip(), FetchPartitionData(5, 11, 3, 0))]


def test_a_fetcher_without_partitions_sends_nothing() -> None:
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


def test_a_partition_removed_before_it_was_named_is_not_forgotten() -> None:
    fetcher = Fetcher()
    fetcher.is_told()
    fetcher.machine.assign(tip(2), Log(3), 1, fetcher.now_ms, is_clean=True)
    fetcher.machine.remove(tip(2))
    fetch = fetcher.fetch()
    assert (fetch.partitions, fetch.forgotten) == ([], [])


def test_a_changed_log_start_offset_is_sent() -> None:
    fetcher = Fetcher()
    fetcher.is_told()
    fetcher.logs[0].log_start_offset = 4
    fetcher.machine.start_moved(tip())
    assert fetcher.fetch().partitions == [(tip(), FetchPartitionData(5, 10, 3, 4))]


def test_partitions_that_got_records_move_to_the_end_of_a_full_fetch() -> None:
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
def test_a_refused_fetch_session_is_reopened(error: ErrorCode, session_id: int) -> None:
    fetcher = Fetcher()
    fetcher.is_told()
    assert fetcher.answer(fetcher.fetch(), error=error) == ()
    fetcher.now_ms += BACKOFF_MS
    fetch = fetcher.fetch()
    assert (fetch.session_id, fetch.session_epoch, len(fetch.partitions)) == (session_id, 0, 1)


def test_an_evicted_fetch_session_is_reopened_at_once_only_once() -> None:
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
def test_a_transient_error_delays_the_partition(error: ErrorCode) -> None:
    fetcher = Fetcher()
    assert fetcher.is_told(error) == ()
    assert fetcher.machine.state_of(tip()) is FetchState.DELAYED
    fetcher.now_ms += BACKOFF_MS
    fetcher.answer(fetcher.fetch(), PartitionFetchResponse(tip()))
    assert fetcher.machine.state_of(tip()) is FetchState.READY


def test_a_leader_that_does_not_know_its_election_is_retried_soon() -> None:
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


def test_illegal_state_moves_are_refused() -> None:
    fetcher = Fetcher()
    fetcher.is_told(ErrorCode.fenced_leader_epoch)
    with pytest.raises(InvariantError):
        fetcher.machine._partitions[tip()].move(FetchState.WORKING)
