"""Transactions as their producers know them: what was sent in each, what was asked, what was answered. [P]"""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

Place = tuple[UUID, int]


@dataclass(eq=False)
class Transaction:
    """One transaction of one producer."""

    number: int
    transactional_id: str
    producer_id: int
    epoch: int
    began_after: int
    """committed records of the id in the transaction log when it began"""
    records: dict[Place, list[bytes]] = field(default_factory=dict)
    """values sent, by partition"""
    acknowledged: set[bytes] = field(default_factory=set)
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    """committed in it, by group and partition"""
    answered_offsets: set[tuple[str, int]] = field(default_factory=set)
    asked: str = ""
    """``commit`` or ``abort``, once its producer has asked for that"""
    told: str = ""
    """likewise, once that was answered"""

    def __str__(self) -> str:
        return f"transaction {self.number} of {self.transactional_id} ({self.producer_id}/{self.epoch})"


@dataclass
class Transactions:
    """All transactions of a history."""

    all: list[Transaction] = field(default_factory=list)
    of_value: dict[bytes, Transaction] = field(default_factory=dict)
    given: dict[tuple[int, int], str] = field(default_factory=dict)
    """who was given which producer id and epoch"""

    def begin(self, transactional_id: str, producer_id: int, epoch: int, began_after: int) -> Transaction:
        """Return a new transaction."""
        number = len(self.all) + 1
        found = Transaction(number, transactional_id, producer_id, epoch, began_after)
        self.all.append(found)
        return found

    def sends(self, transaction: Transaction, place: Place, values: list[bytes]) -> None:
        """Note that these values are produced in the transaction."""
        transaction.records.setdefault(place, []).extend(values)
        self.of_value.update(dict.fromkeys(values, transaction))
