"""Records of the metadata log as they may leave the cluster: without users' credentials. [P]

What a copy of the metadata leaves out (`MetadataImage.without_credentials`, `secret_settings`) is replaced by
records that do nothing, so that offsets stay. A batch without any of it stays as it is, to the byte.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from service.base.steps import Steps
from service.base.types import NO_TIMESTAMP
from service.config.overrides import may_be_secret
from service.metadata.batches import decode_batch_in_steps, encode_batch_in_steps
from service.metadata.controller.requests import ResourceType
from service.metadata.frames import Frame, newest
from service.metadata.records import (
    ConfigRecord,
    DelegationTokenRecord,
    NoOpRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from service.records.batch import iter_headers

_OF_USERS: Final = (
    DelegationTokenRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)


class LogPiece(NamedTuple):
    """Whole batches of the metadata log. `has_news`: they have a record that changes the metadata."""

    data: bytes
    records: int
    epoch: int
    max_timestamp: int
    has_news: bool


def to_be_copied(data: bytes, *, has_credentials: bool) -> Steps[LogPiece]:
    """Return the batches in `data`, in steps, without credentials unless it `has_credentials`.

    Raises `CorruptionError` where they cannot be read.
    """
    pieces: list[bytes | bytearray | memoryview] = []
    count, epoch, max_timestamp, has_news = 0, 0, NO_TIMESTAMP, False
    for header in iter_headers(data):
        batch = yield from decode_batch_in_steps(data, header)
        count += header.record_count
        epoch, max_timestamp = batch.epoch, max(max_timestamp, batch.timestamp_ms)
        has_news = has_news or any(not isinstance(frame.record, NoOpRecord) for frame in batch.frames)
        kept = [
            frame if has_credentials or not _is_secret(frame) else newest(NoOpRecord())
            for frame in batch.frames
        ]
        if all(one is other for one, other in zip(kept, batch.frames, strict=True)):
            pieces.append(memoryview(data)[header.position : header.end])
        else:
            place = {
                "base_offset": batch.base_offset,
                "epoch": batch.epoch,
                "timestamp_ms": batch.timestamp_ms,
            }
            pieces.append((yield from encode_batch_in_steps(kept, **place)))
    return LogPiece(b"".join(pieces), count, epoch, max_timestamp, has_news)


def _is_secret(frame: Frame) -> bool:
    record = frame.record
    if isinstance(record, ConfigRecord):
        return record.resource_type == ResourceType.BROKER and may_be_secret(record.name)
    return isinstance(record, _OF_USERS)
