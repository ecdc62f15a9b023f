"""ListTransactions: the ids of a shard that a client's filter lets through. [P]

Source: Apache Kafka ``TransactionStateManager.listTransactionStates``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from service.base.name_pattern import compile_name_pattern
from service.transactions.metadata import TransactionMetadata
from service.transactions.requests import ListedTransaction
from service.transactions.states import BY_WORD, TransactionState


@dataclass(frozen=True, slots=True)
class TransactionFilter:
    """Conditions of a client; an empty set or None stands for all.

    `unknown_states`: names that are no state. With such names alone nothing is found. `longer_than_ms`: open
    for longer than this; an id without a transaction began at -1, so it is older than any.
    """

    producer_ids: frozenset[int] = frozenset()
    states: frozenset[TransactionState] = frozenset()
    unknown_states: tuple[str, ...] = ()
    longer_than_ms: int = -1
    pattern: Any = field(default=None)

    def matches(self, transactional_id: str, there: TransactionMetadata, now_ms: int) -> bool:
        """Return whether the client wants to see the id in this state."""
        if self.producer_ids and there.producer_id not in self.producer_ids:
            return False
        if (self.states or self.unknown_states) and there.state not in self.states:
            return False
        if self.longer_than_ms >= 0 and now_ms - there.start_ms <= self.longer_than_ms:
            return False
        return self.pattern is None or self.pattern.fullmatch(transactional_id) is not None


def transaction_filter(
    producer_ids: Iterable[int], state_words: Iterable[str], longer_than_ms: int, pattern: str | None
) -> TransactionFilter:
    """Return the filter of a request. Raises `RequestError` INVALID_REGULAR_EXPRESSION."""
    words = dict.fromkeys(state_words)
    return TransactionFilter(
        frozenset(producer_ids),
        frozenset(BY_WORD[word] for word in words if word in BY_WORD),
        tuple(word for word in words if word not in BY_WORD),
        longer_than_ms,
        compile_name_pattern(pattern, "Transaction ID pattern") if pattern else None,
    )


def listed(transactional_id: str, there: TransactionMetadata) -> ListedTransaction:
    """Return the row of an id."""
    return ListedTransaction(transactional_id, there.producer_id, there.state.word)
