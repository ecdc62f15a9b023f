"""ListTransactions: the ids of a shard that a client's filter lets through. [P]

Source: Apache Kafka ``TransactionStateManager.listTransactionStates``.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final

from service.base.name_pattern import compile_name_pattern, may_take_long
from service.base.steps import Steps
from service.transactions.metadata import TransactionMetadata
from service.transactions.requests import ListedTransaction
from service.transactions.states import BY_WORD, TransactionState

_A_STEP: Final = 500
"""Words of a filter that are taken without a look at the clock."""


@dataclass(frozen=True, slots=True)
class TransactionFilter:
    """Conditions of a client; an empty set or None stands for all.

    `unknown_states`: names that are no state. With such names alone nothing is found. `longer_than_ms`: open
    for longer than this; an id without a transaction began at -1, so it is older than any.
    """

    producer_ids: Set[int] = frozenset()
    states: Set[TransactionState] = frozenset()
    unknown_states: tuple[str, ...] = ()
    longer_than_ms: int = -1
    pattern: Any = field(default=None)

    def matches(self, transactional_id: str, there: TransactionMetadata, now_ms: int) -> bool:
        """Return whether the client wants to see the id in this state, as far as that is said at once: what
        `takes_long` is still to be matched by `pattern`."""
        if self.producer_ids and there.producer_id not in self.producer_ids:
            return False
        if (self.states or self.unknown_states) and there.state not in self.states:
            return False
        if self.longer_than_ms >= 0 and now_ms - there.start_ms <= self.longer_than_ms:
            return False
        if self.pattern is None or self.takes_long(transactional_id):
            return True
        return self.pattern.fullmatch(transactional_id) is not None

    def takes_long(self, transactional_id: str) -> bool:
        """Return whether a match with the id belongs on a thread."""
        return self.pattern is not None and may_take_long(self.pattern, transactional_id)


def transaction_filter(
    producer_ids: Sequence[int], state_words: Sequence[str], longer_than_ms: int, pattern: str | None
) -> Steps[TransactionFilter]:
    """Return the filter of a request, in steps. Raises `RequestError` INVALID_REGULAR_EXPRESSION."""
    matcher = compile_name_pattern(pattern, "Transaction ID pattern") if pattern else None
    ids: set[int] = set()
    for at in range(0, len(producer_ids), _A_STEP):
        yield
        ids.update(producer_ids[at : at + _A_STEP])
    states: set[TransactionState] = set()
    unknown: dict[str, None] = {}
    for at in range(0, len(state_words), _A_STEP):
        yield
        for word in state_words[at : at + _A_STEP]:
            if word in BY_WORD:
                states.add(BY_WORD[word])
            else:
                unknown[word] = None
    return TransactionFilter(ids, states, tuple(unknown), longer_than_ms, matcher)


def listed(transactional_id: str, there: TransactionMetadata) -> ListedTransaction:
    """Return the row of an id."""
    return ListedTransaction(transactional_id, there.producer_id, there.state.word)
