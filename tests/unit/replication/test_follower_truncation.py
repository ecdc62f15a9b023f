"""The follower machine: truncation to a common epoch, and offsets out of range."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from service.replication.fetch_session_handler import FetchPartitionData
from service.replication.follower_events import (
    AskOffsets,
    HoldPartition,
    LeaderOffsets,
    PartitionFetchResponse,
    Restart,
    Truncate,
    Warn,
)
from service.replication.partition_fetch_state import FetchState
from tests.unit.replication.followers import BACKOFF_MS, Fetcher, tip

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
def test_truncation_goes_to_the_smaller_end_of_the_common_epoch(
    diverging: tuple[int, int], offset: int
) -> None:
    fetcher = Fetcher()
    (effect,) = fetcher.is_told(diverging=diverging, size=50, high_watermark=99)
    assert effect == Truncate(effect.number, tip(), offset, False)


def test_truncation_repeats_until_the_logs_agree() -> None:
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


def test_only_an_unclean_election_truncates_committed_records() -> None:
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


def test_a_log_before_the_leaders_start_restarts_there() -> None:
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


def test_an_offset_that_is_in_range_after_all_is_retried_later() -> None:
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
