"""Filters of the list of transactions, from an address and back. [P]"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

OPEN_STATES: Final = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
STATES: Final = (*OPEN_STATES, "Empty", "CompleteCommit", "CompleteAbort")
MOST_PATTERN: Final = 249
_MOST: Final = 2**63 - 1
_MOST_S: Final = _MOST // 1000


class TransactionListFilter(NamedTuple):
    """Filter of the list of ids: "" and None filter nothing; `pattern` is RE2's, of the whole id."""

    state: str = ""
    producer_id: int | None = None
    pattern: str = ""
    longer_than_s: int | None = None

    @property
    def longer_than_ms(self) -> int:
        return -1 if self.longer_than_s is None else self.longer_than_s * 1000

    @property
    def is_any(self) -> bool:
        return self == TransactionListFilter()

    def query(self) -> dict[str, str | int | None]:
        """Return the filter as the query of an address."""
        return {
            "state": self.state, "producer": self.producer_id, "pattern": self.pattern,
            "longer": self.longer_than_s,
        }  # fmt: skip


def filter_of(query: Mapping[str, str]) -> tuple[TransactionListFilter, str | None]:
    """Parse an address's query; return the filter, and what is wrong with it."""
    state = query.get("state", "")
    producer, problem = _number(query.get("producer", ""), "producer id", _MOST)
    longer, also = _number(query.get("longer", ""), "number of seconds", _MOST_S)
    if state and state not in STATES:
        state, problem = "", f"There is no state {state[:40]!r}."
    pattern = query.get("pattern", "")[:MOST_PATTERN]
    return TransactionListFilter(state, producer, pattern, longer), problem or also


def _number(written: str, what: str, most: int) -> tuple[int | None, str | None]:
    written = written.strip()
    if not written:
        return None, None
    if not written.isascii() or not written.isdigit() or len(written) > 19 or int(written) > most:
        return None, f"{written[:40]!r} is not a {what}."
    return int(written), None
