"""Erasure as a model: a few lines over decoded records, and copies to try it on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from service.records.compaction import LastBatches
from service.records.decode import Record
from service.records.erasure import ANY_TIME, ErasureCopier, ErasureKeys, hash_key
from service.records.scan import scan_batches

SECRET = bytes(range(16))


def erasure_keys(keys: Iterable[bytes], before_ms: int = ANY_TIME) -> ErasureKeys:
    """The keys of an order."""
    return ErasureKeys.of(SECRET, b"".join(sorted(hash_key(SECRET, key) for key in keys)), before_ms)


def erased(
    log: bytes,
    keys: ErasureKeys,
    end_offset: int = 2**62,
    *,
    producers: Mapping[int, tuple[int, int]] | None = None,
    keeps_all: bool = False,
    keep_to: int = -1,
    buffer_bytes: int = 512,
) -> bytes:
    """Result of a copy of a whole log."""
    last = None if keeps_all else LastBatches(producers or {})
    copier = ErasureCopier(keys, end_offset, last, keep_to, buffer_bytes)
    out = bytearray()
    for part in copier.copy(memoryview(log), scan_batches(log)):
        out += part
    for part in copier.rest():
        out += part
    return bytes(out)


def goes(
    record: Record, keys: Iterable[bytes], end_offset: int, before_ms: int, *, is_control: bool = False
) -> bool:
    """Whether the order takes a record."""
    if is_control or record.key is None or record.offset >= end_offset:
        return False
    is_early = before_ms < 0 or 0 <= record.timestamp < before_ms
    return is_early and bytes(record.key) in set(keys)
