"""Producers of transactions that nobody coordinates: what the next batch of each has to say. [P]"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from simulator.cluster.replicas import Key
from simulator.cluster.transaction_model import Transaction

FIRST_ID: Final = 1 << 40
"""Producer ids from here on are of no coordinator."""
_PRODUCERS: Final = 4


@dataclass
class DirectProducer:
    """One producer of one partition."""

    producer_id: int
    epoch: int = 0
    coordinator_epoch: int = 0
    sequence: int = 0
    now: Transaction | None = None
    is_broken: bool = False
    """whether an election has cut off what its next batch should follow: it needs another epoch"""


@dataclass
class Direct:
    """All of a history, by partition."""

    producers: dict[Key, list[DirectProducer]] = field(default_factory=dict)
    ids: int = FIRST_ID

    def of(self, key: Key) -> list[DirectProducer]:
        """Return the producers of a partition."""
        known = self.producers.setdefault(key, [])
        while len(known) < _PRODUCERS:
            self.ids += 1
            known.append(DirectProducer(self.ids))
        return known
