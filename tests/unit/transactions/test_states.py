"""States and the moves between them: one table, in the log as in decisions."""

from __future__ import annotations

import pytest

from service.base.errors import CorruptionError
from service.transactions.ids import record_of
from service.transactions.metadata import TransactionMetadata
from service.transactions.records import encode_key, encode_value
from service.transactions.states import BY_WORD, TransactionState
from tests.support.transaction_shards import TransactionLeader

NUMBERS = {
    "Empty": 0,
    "Ongoing": 1,
    "PrepareCommit": 2,
    "PrepareAbort": 3,
    "CompleteCommit": 4,
    "CompleteAbort": 5,
    "Dead": 6,
    "PrepareEpochFence": 7,
}
MOVES = {
    "Empty": {"Empty", "CompleteCommit", "CompleteAbort"},
    "Ongoing": {"Ongoing", "Empty", "CompleteCommit", "CompleteAbort"},
    "PrepareCommit": {"Ongoing"},
    "PrepareAbort": {"Ongoing", "Empty", "CompleteCommit", "CompleteAbort"},
    "CompleteCommit": {"PrepareCommit"},
    "CompleteAbort": {"PrepareAbort"},
}
"""For each state of a record those that the record before may have."""


def value(word: str, epoch: int = 3) -> bytes:
    state = TransactionState(NUMBERS[word])
    return encode_value(TransactionMetadata(9, epoch, 60_000, state, start_ms=1, updated_ms=2), 1)


def replay(*values: bytes | None) -> TransactionLeader:
    leader = TransactionLeader()
    for offset, one in enumerate(values):
        leader.shard.journal.at(offset)
        leader.shard.replay(offset, encode_key("t"), one)
    return leader


def test_states_have_kafkas_numbers_and_names() -> None:
    assert {word: state.value for word, state in BY_WORD.items()} == NUMBERS


@pytest.mark.parametrize("after", NUMBERS)
@pytest.mark.parametrize("before", MOVES)
def test_a_record_follows_those_of_its_row_alone(before: str, after: str) -> None:
    if before in MOVES.get(after, ()):
        assert replay(value(before), value(after, 4)).shard.ids.newest("t") is not None
        return
    with pytest.raises(CorruptionError, match=r"'t': a (move|record)"):
        replay(value(before), value(after, 4))


@pytest.mark.parametrize("first", NUMBERS)
def test_the_first_record_that_compaction_leaves_has_any_state_that_is_written(first: str) -> None:
    if first in MOVES:
        assert replay(value(first)).shard.ids.newest("t") is not None
        return
    with pytest.raises(CorruptionError, match=f"a record of state {first}"):
        replay(value(first))


@pytest.mark.parametrize("word", MOVES)
def test_a_tombstone_begins_anew(word: str) -> None:
    leader = replay(value("Empty"), None, value(word))
    assert leader.shard.ids.newest("t") is not None
    assert leader.shard.ids.open.get("u") is None


def test_a_completion_that_was_appended_twice_counts_once() -> None:
    leader = replay(value("PrepareCommit"), value("CompleteCommit"), value("CompleteCommit"))
    newest = leader.shard.ids.newest("t")
    assert newest is not None
    assert newest.state.word == "CompleteCommit"
    with pytest.raises(CorruptionError):
        replay(value("CompleteCommit", 3), value("CompleteCommit", 4))


@pytest.mark.parametrize("after", MOVES)
@pytest.mark.parametrize("before", MOVES)
def test_any_state_follows_where_compaction_took_records_between(before: str, after: str) -> None:
    """A replica that was away has the old record, and of the later ones those that compaction has left."""
    leader = replay(value(before))
    leader.shard.journal.at(2)
    leader.shard.replay(2, encode_key("t"), value(after, 4))
    newest = leader.shard.ids.newest("t")
    assert newest is not None
    assert newest.state.word == after


def test_own_decisions_keep_to_the_rows_behind_a_cleaned_log() -> None:
    leader = replay(value("Ongoing"))
    leader.shard.journal.at(2)
    leader.shard.replay(2, encode_key("t"), value("CompleteAbort", 4))
    there = leader.shard.ids.newest("t")
    assert there is not None
    record = record_of("t", there._replace(state=TransactionState.PREPARE_COMMIT), 1)
    leader.shard.journal.at(3)
    with pytest.raises(CorruptionError, match="a move from CompleteAbort to PrepareCommit"):
        leader.shard.replay(3, record.key, record.value)
