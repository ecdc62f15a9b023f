"""Settings of transactions, as the coordinators use them. [P]

Names are those of the keys, without dots; defaults and meaning are Kafka's
(``TransactionStateManagerConfig``).
"""

from __future__ import annotations

from typing import Final, NamedTuple


class TransactionSettings(NamedTuple):
    """Times in ms. `transaction_version`: the level of the cluster's feature."""

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    transaction_version: int = 0

    @property
    def bumps_epochs(self) -> bool:
        """Return whether the end of a transaction raises the epoch, where no client's version says so."""
        return self.transaction_version >= TV2

    @property
    def value_version(self) -> int:
        """Return the version of the values that are written."""
        return 1 if self.transaction_version >= TV1 else 0


TV0: Final = 0
TV1: Final = 1
"""`transaction.version` from which records have tagged fields."""
TV2: Final = 2
"""`transaction.version` from which each end of a transaction raises the epoch (KIP-890)."""
RETRY_MS: Final = 500
"""Delay before a write that failed is tried again."""
