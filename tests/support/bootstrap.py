"""The first records of a metadata log."""

from __future__ import annotations

from service.metadata.features import BOOTSTRAP, bootstrap_records
from service.metadata.frames import Frame, newest
from service.metadata.records import BeginTransactionRecord, EndTransactionRecord


def bootstrap_frames() -> tuple[Frame, ...]:
    """Return the first records of a new metadata log, in one transaction."""
    records = (BeginTransactionRecord(name=BOOTSTRAP), *bootstrap_records(), EndTransactionRecord())
    return tuple(map(newest, records))
