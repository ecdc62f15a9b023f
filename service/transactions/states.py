"""States of a transaction and the moves between them. [P]

A decision has two ways out, its completion and nothing else: it never changes (invariant X2).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from service.base.errors import CorruptionError


class TransactionState(IntEnum):
    """State of a transactional id, as its records have it (Kafka ``TransactionState``)."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    """expired: the id gets a tombstone, never a record of this state"""
    PREPARE_EPOCH_FENCE = 7
    """in between, while Kafka fences a producer: never written"""

    @property
    def word(self) -> str:
        """Return Kafka's name of the state, as clients see it."""
        return _WORDS[self]


EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT, DEAD, PREPARE_EPOCH_FENCE = (
    TransactionState
)

_WORDS: Final = {state: state.name.title().replace("_", "") for state in TransactionState}
BY_WORD: Final[Mapping[str, TransactionState]] = MappingProxyType(
    {word: state for state, word in _WORDS.items()}
)

MOVES: Final[Mapping[TransactionState, frozenset[TransactionState]]] = MappingProxyType(
    {
        EMPTY: frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT}),
        ONGOING: frozenset({ONGOING, EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT}),
        PREPARE_COMMIT: frozenset({ONGOING}),
        PREPARE_ABORT: frozenset({ONGOING, EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT, PREPARE_EPOCH_FENCE}),
        COMPLETE_COMMIT: frozenset({PREPARE_COMMIT}),
        COMPLETE_ABORT: frozenset({PREPARE_ABORT}),
        DEAD: frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT}),
        PREPARE_EPOCH_FENCE: frozenset({ONGOING}),
    }
)
"""Predecessors that each state may have."""

AT_REST: Final = MOVES[DEAD]
"""States without a transaction: the id may expire."""
PREPARED: Final = frozenset({PREPARE_COMMIT, PREPARE_ABORT})
"""States of a transaction that is decided and not completed."""
WRITTEN: Final = frozenset(TransactionState) - {DEAD, PREPARE_EPOCH_FENCE}
"""States that records have."""


def check_move(transactional_id: str, before: TransactionState | None, after: TransactionState) -> None:
    """Raise `CorruptionError` unless a record of state `after` may follow one of `before`.

    None: there is no record before it, or compaction has removed it.
    """
    if after not in WRITTEN:
        raise CorruptionError(f"transactional id {transactional_id!r}: a record of state {after.word}")
    if before is not None and before not in MOVES[after]:
        raise CorruptionError(
            f"transactional id {transactional_id!r}: a move from {before.word} to {after.word}"
        )
