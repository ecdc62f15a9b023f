"""Markers that end transactions. [P]"""

from __future__ import annotations

from typing import NamedTuple


class Marker(NamedTuple):
    """End of a producer's transaction, as its coordinator sends it to each partition."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int
