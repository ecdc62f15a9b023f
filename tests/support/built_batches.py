"""Batches without headers, as `service.records.builder` builds them."""

from __future__ import annotations

from collections.abc import Iterable

from service.base.types import NO_LEADER_EPOCH, Buffer
from service.records.batch import CompressionType
from service.records.builder import BatchBuilder


def build_batch(
    records: Iterable[tuple[int, Buffer | None, Buffer | None]],
    *,
    base_offset: int = 0,
    codec: CompressionType = CompressionType.NONE,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytearray:
    """Return a batch of ``(timestamp, key, value)`` records without headers."""
    builder = BatchBuilder(base_offset, codec, leader_epoch)
    for timestamp, key, value in records:
        builder.add(timestamp, key, value)
    return builder.build()
