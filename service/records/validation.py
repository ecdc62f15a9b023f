"""Validation of a produced batch, from its frame to its last record. [P]

The checks, their order and their error codes are Kafka's (`ProduceRequest.validateRecords`, then
`UnifiedLog.analyzeAndValidateRecords`, then `LogValidator`):

    no whole batch, more than one, magic 0 or 1            INVALID_RECORD
    length or magic that no batch has                      CORRUPT_MESSAGE
    transactional batch, without transactional or producer id
                                                           INVALID_PRODUCER_ID_MAPPING
    base offset other than 0                               INVALID_RECORD
    larger than max.message.bytes                          MESSAGE_TOO_LARGE
    less than a header, or checksum wrong                  CORRUPT_MESSAGE
    codec id 5 to 7                                        UNSUPPORTED_COMPRESSION_TYPE
    offset range or count <= 0, or not the same            INVALID_RECORD
    control batch; producer id without a sequence          INVALID_RECORD
    records that do not parse or do not fill the batch     INVALID_RECORD
    timestamps out of bounds, or typed LogAppendTime       INVALID_TIMESTAMP
    records without a key, on a compacted topic            INVALID_RECORD

On purpose different where Kafka is looser or answers by accident:

- Offset deltas that are not 0, 1, 2 ... are INVALID_RECORD. Kafka keeps them in an uncompressed batch and
  renumbers them in a compressed one, for clients that predate this format.
- Bytes after the batch are refused even if they cannot be a second batch. Kafka cuts them off.
- A payload that its codec cannot read is INVALID_RECORD, an unknown codec id UNSUPPORTED_COMPRESSION_TYPE.
  Kafka lets an internal exception become UNKNOWN_SERVER_ERROR.
- A payload that inflates beyond ``max_inflated_bytes``, or beyond the rest of its request's budget, is
  MESSAGE_TOO_LARGE, which makes a producer split its batch. Kafka inflates without bound.
- A batch that its producer marked LogAppendTime is INVALID_TIMESTAMP on every topic. Kafka accepts it on
  CreateTime topics if its max timestamp is in bounds, and so stores records with unchecked timestamps.
- A transactional batch without a producer id is INVALID_PRODUCER_ID_MAPPING. Kafka stores it. The handler
  refuses requests without a transactional id that have any transactional batch.

A max timestamp that differs from the records' is corrected, as by Kafka.

On an event loop the caller passes ``at_once``: `BeyondSlice` then refuses a batch that takes more than a
slice of the turn, for a thread to validate. Its size or its claimed inflated size tells; a batch without a
claim is inflated as far as a slice allows.
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from crc32c import crc32c
from kio.schema.errors import ErrorCode

from service.base.errors import CorruptionError, RequestError
from service.base.types import MAX_INFLATED_BATCH_BYTES, Buffer
from service.config.settings import LogConfig
from service.records.batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CODECS,
    CONTROL_FLAG,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    CompressionType,
    read_header,
    set_log_append_time,
    set_max_timestamp,
)
from service.records.compression import DEFAULT_LEVELS, InflatedTooLarge, compress, decompress
from service.records.kernel import check_records
from service.records.kernel_status import Status
from service.records.time_kernel import find_refused

MAX_RECORD_ERRORS: Final = 100
"""Most records that a response names; the batch is refused as a whole anyway."""
_MIN_LEGACY_LENGTH: Final = 14
"""Length, with any magic, below which Kafka checks nothing else."""
_SIZE_UP_TO_MAGIC: Final = 17
_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1
_AS_PRODUCED: Final = "producer"
_NO_KEY: Final = "Compacted topic cannot accept message without key"
_BAD_TIMESTAMPS: Final = "One or more records have been rejected due to invalid timestamp"
_CODEC_BY_NAME: Final = {
    "uncompressed": CompressionType.NONE,
    **{codec.name.lower(): codec for codec in CODECS[1:]},
}
_LENGTH: Final = struct.Struct(">i")
_MAGIC: Final = struct.Struct(">b")
_ATTRIBUTES: Final = struct.Struct(">h")


_AT_ONCE_NS: Final = 2_000_000
"""Time in a turn of the loop for one batch: a slice (`base/turn_queues.py`)."""
_INFLATE_NS: Final = {
    CompressionType.NONE: 1,
    CompressionType.GZIP: 4,
    CompressionType.SNAPPY: 2,
    CompressionType.LZ4: 2,
    CompressionType.ZSTD: 2,
}
_COMPRESS_NS: Final = {
    CompressionType.NONE: ((0, 0),),
    CompressionType.GZIP: ((9, 40),),
    CompressionType.SNAPPY: ((0, 4),),
    CompressionType.LZ4: ((9, 30), (17, 80)),
    CompressionType.ZSTD: ((3, 10), (6, 30), (9, 50), (12, 105), (15, 400), (22, 650)),
}
"""Cost of each inflated byte, the check of its records included; rounded up from a slow machine's. By level,
up to and including the named one.
"""
_ENCODINGS: Final = CODEC_MASK + 1
_USUAL_RATIO: Final = 3
"""Least ratio by which ordinary records inflate."""


class BeyondSlice(Exception):
    """The batch takes too long for the loop. It was not changed."""


class InflationBudget:
    """Budget of inflated bytes for all batches of one request."""

    __slots__ = ("left_bytes",)

    def __init__(self, most_bytes: int) -> None:
        self.left_bytes = most_bytes


@dataclass(frozen=True, slots=True)
class ValidationRules:
    """Rules of one topic: sizes in bytes, times in ms, ``compression_type`` as in its config."""

    max_message_bytes: int = 1_048_588
    log_append_time: bool = False
    timestamp_before_max_ms: int = _INT64_MAX
    timestamp_after_max_ms: int = 3_600_000
    compression_type: str = _AS_PRODUCED
    max_inflated_bytes: int = MAX_INFLATED_BATCH_BYTES
    needs_keys: bool = False
    compression_level: int | None = None  # for ``compression_type``; None: its default
    partition: str = ""  # name in error messages
    at_once_bytes: tuple[int, ...] = field(init=False)
    """by codec id: largest inflated size of a batch for one slice of the loop's turn"""

    def __post_init__(self) -> None:
        most = [_AT_ONCE_NS // self._cost_ns(codec) for codec in CODECS]
        most += [most[0]] * (_ENCODINGS - len(most))  # unassigned ids are refused first
        object.__setattr__(self, "at_once_bytes", tuple(most))

    def _cost_ns(self, codec: CompressionType) -> int:
        """Return the cost of each inflated byte in nanoseconds."""
        target = codec if self.compression_type == _AS_PRODUCED else _CODEC_BY_NAME[self.compression_type]
        if target is codec:
            return _INFLATE_NS[codec]
        level = DEFAULT_LEVELS.get(target, 0) if self.compression_level is None else self.compression_level
        return _INFLATE_NS[codec] + next(ns for most, ns in _COMPRESS_NS[target] if level <= most)


def rules_of(config: LogConfig, max_inflated_bytes: int, partition: str = "") -> ValidationRules:
    """Return the rules of a topic for one partition, for the caller to keep until the topic's config changes.

    A batch may inflate to `max_inflated_bytes`, or to what the topic accepts uncompressed if that is more.
    """
    return ValidationRules(
        max_message_bytes=config.max_message_bytes,
        log_append_time=config.message_timestamp_type == "LogAppendTime",
        timestamp_before_max_ms=config.message_timestamp_before_max_ms,
        timestamp_after_max_ms=config.message_timestamp_after_max_ms,
        compression_type=config.compression_type,
        compression_level=_level_of(config),
        needs_keys=config.is_compacted,
        partition=partition,
        max_inflated_bytes=min(max(max_inflated_bytes, config.max_message_bytes), MAX_INFLATED_BATCH_BYTES),
    )


def _level_of(config: LogConfig) -> int | None:
    levels = {
        "gzip": config.compression_gzip_level,
        "lz4": config.compression_lz4_level,
        "zstd": config.compression_zstd_level,
    }
    return levels.get(config.compression_type)


class RecordsRefused(RequestError):
    """Some records of the batch are invalid: ``record_errors`` has (index in the batch, reason) for each."""

    def __init__(self, code: ErrorCode, message: str, record_errors: tuple[tuple[int, str], ...]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


class AppendOrigin(Enum):
    """Origin of a batch that a leader appends (Kafka `AppendOrigin`). Followers do not validate again."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    """a coordinator's own records, which have no sequence numbers, even in a producer's transaction"""


class ValidatedBatch(NamedTuple):
    """One batch ready to be appended; only base offset and leader epoch are still to be set.

    ``offset_delta_of_max_timestamp`` is that of the first record with ``max_timestamp``; 0 if no record has a
    timestamp, and with LogAppendTime, where all have the same.
    """

    data: memoryview
    header: BatchHeader
    max_timestamp: int
    offset_delta_of_max_timestamp: int
    record_count: int
    origin: AppendOrigin = AppendOrigin.CLIENT


def check_frame(data: Buffer) -> None:
    """Raise `RequestError` if ``data`` is not one whole batch of this format; `validate_produced` begins
    so."""
    view = memoryview(data)
    size = len(view)
    if size < HEADER_SIZE or _length_and_magic(view) != (size - LOG_OVERHEAD, MAGIC):
        raise _frame_error(view)


def validate_produced(
    data: bytearray | memoryview,
    rules: ValidationRules,
    now_ms: int,
    inflation: InflationBudget | None = None,
    at_once: bool = False,
    may_transact: bool = False,
) -> ValidatedBatch:
    """Check the one batch in ``data``, as a producer sent it, against ``rules``.

    ``data`` is changed in place only for LogAppendTime or a wrong max timestamp; if the topic has another
    codec, the result is a new buffer. Raises `RequestError` with the code of the table above, and
    `BeyondSlice` if it cannot be done ``at_once``. ``inflation``: the request's budget; None for a request
    with one batch. ``may_transact``: its request has a transactional id. May run on any thread.
    """
    view = memoryview(data)
    size = len(view)
    if size < HEADER_SIZE:
        raise _frame_error(view)
    fields = HEADER.unpack_from(view)
    base_offset, length, _, magic, crc, attributes, delta, base_timestamp, stated_max = fields[:9]
    if magic != MAGIC or length != size - LOG_OVERHEAD:
        raise _frame_error(view)
    if attributes & TRANSACTIONAL_FLAG and (not may_transact or fields[9] < 0):
        raise RequestError(
            ErrorCode.invalid_producer_id_mapping, "a transactional batch needs a producer with an id"
        )
    if base_offset != 0:
        raise _invalid(f"the base offset of a produced batch should be 0, but it is {base_offset}")
    if size > rules.max_message_bytes:
        raise _too_large(size, rules)
    if at_once and size > rules.at_once_bytes[attributes & CODEC_MASK]:
        raise BeyondSlice
    if crc32c(view[CRC_START:]) != crc:
        raise RequestError(ErrorCode.corrupt_message, f"the checksum stored, {crc}, is not that of the batch")
    count = fields[12]
    codec_id = attributes & CODEC_MASK
    if codec_id >= len(CODECS):
        raise RequestError(ErrorCode.unsupported_compression_type, f"unknown compression codec {codec_id}")
    if count <= 0 or delta != count - 1 or attributes & CONTROL_FLAG or (fields[9] >= 0 and fields[11] < 0):
        raise _header_error(fields)

    records: Buffer = view
    start = HEADER_SIZE
    if codec_id:
        records, start = _inflate(CODECS[codec_id], view, rules, inflation, at_once), 0
    if rules.log_append_time:
        oldest, newest = _INT64_MIN, _INT64_MAX
    else:
        oldest = max(now_ms - rules.timestamp_before_max_ms, _INT64_MIN)
        newest = min(now_ms + rules.timestamp_after_max_ms, _INT64_MAX)
    status, index, max_timestamp, max_index, outside = check_records(
        records, start, len(records), count, base_timestamp, oldest, newest
    )
    if status != 0:
        raise _record_error(Status(status), index)
    if rules.needs_keys or outside >= 0 or attributes & LOG_APPEND_TIME_FLAG:
        _check_each(records, start, fields, rules, oldest, newest)

    target = codec_id if rules.compression_type == _AS_PRODUCED else _CODEC_BY_NAME[rules.compression_type]
    if target == codec_id and max_timestamp == stated_max and not rules.log_append_time:
        header = tuple.__new__(BatchHeader, (0, *fields))
        return tuple.__new__(
            ValidatedBatch, (view, header, max_timestamp, max_index, count, AppendOrigin.CLIENT)
        )
    if target != codec_id:
        view = _recompressed(view, memoryview(records)[start:], CompressionType(target), rules)
    if rules.log_append_time:
        set_log_append_time(view, 0, now_ms)
        return ValidatedBatch(view, read_header(view), now_ms, 0, count)
    set_max_timestamp(view, 0, max_timestamp)
    return ValidatedBatch(view, read_header(view), max_timestamp, max_index, count)


def _inflate(
    codec: CompressionType,
    view: memoryview,
    rules: ValidationRules,
    inflation: InflationBudget | None,
    at_once: bool,
) -> Buffer:
    """Inflate the records and subtract their size from the request's budget."""
    most = rules.max_inflated_bytes
    if inflation is not None:
        if inflation.left_bytes <= 0:
            raise RequestError(ErrorCode.message_too_large, "the request's other batches inflate to too much")
        most = min(most, inflation.left_bytes)
    now = most
    if at_once:
        now = min(most, rules.at_once_bytes[codec])
        if _USUAL_RATIO * len(view) > rules.at_once_bytes[codec]:
            raise BeyondSlice  # most likely; an attempt would be double work
    try:
        records = decompress(codec, view[HEADER_SIZE:], now)
    except InflatedTooLarge as error:
        if now < most:
            raise BeyondSlice from None
        _set_aside(inflation, most)
        raise RequestError(ErrorCode.message_too_large, str(error)) from None
    except CorruptionError as error:
        _set_aside(inflation, now)  # the size inflated so far is unknown
        raise _invalid(str(error)) from None
    _set_aside(inflation, len(records))
    return records


def _set_aside(inflation: InflationBudget | None, size: int) -> None:
    if inflation is not None:
        inflation.left_bytes -= size


def _recompressed(
    view: memoryview, records: memoryview, codec: CompressionType, rules: ValidationRules
) -> memoryview:
    """Return the batch with its records in another codec; the caller sets its checksum.

    The records' bytes stay: their deltas are against the base timestamp, which stays too.
    """
    batch = bytearray(view[:HEADER_SIZE])
    batch += compress(codec, records, rules.compression_level)
    if len(batch) > rules.max_message_bytes:
        raise _too_large(len(batch), rules)
    _LENGTH.pack_into(batch, 8, len(batch) - LOG_OVERHEAD)
    attributes = _ATTRIBUTES.unpack_from(batch, ATTRIBUTES_AT)[0]
    _ATTRIBUTES.pack_into(batch, 21, (attributes & ~CODEC_MASK) | codec)
    return memoryview(batch)


def _invalid(message: str) -> RequestError:
    return RequestError(ErrorCode.invalid_record, message)


def _too_large(size: int, rules: ValidationRules) -> RequestError:
    return RequestError(
        ErrorCode.message_too_large,
        f"the batch is {size} bytes, max.message.bytes allows {rules.max_message_bytes}",
    )


def _frame_error(view: memoryview) -> RequestError:
    """Return the reason why ``view`` is not one whole batch of this format, in the order of Kafka's
    checks."""
    size = len(view)
    if size < LOG_OVERHEAD:
        return _invalid("a produce request must have one record batch for each partition")
    length, magic = _length_and_magic(view)
    claimed = length + LOG_OVERHEAD
    if _is_no_batch(length, magic):
        return RequestError(ErrorCode.corrupt_message, f"no batch has length {length} and magic {magic}")
    if claimed > size:
        return _invalid(f"the batch ends after {size} of its {claimed} bytes")
    if magic != MAGIC:
        return _invalid(f"record batches must have magic {MAGIC}, this one has {magic}")
    if claimed < size:
        if size - claimed >= LOG_OVERHEAD and _is_no_batch(*_length_and_magic(view[claimed:])):
            return RequestError(ErrorCode.corrupt_message, "the bytes after the record batch are not a batch")
        return _invalid("a produce request may have only one record batch for each partition")
    return RequestError(ErrorCode.corrupt_message, f"a batch of {size} bytes is less than its header")


def _length_and_magic(view: memoryview) -> tuple[int, int]:
    """Return length and magic as stored in at least 12 bytes; a magic that is missing counts as right."""
    length: int = _LENGTH.unpack_from(view, 8)[0]
    return length, _MAGIC.unpack_from(view, 16)[0] if len(view) >= _SIZE_UP_TO_MAGIC else MAGIC


def _is_no_batch(length: int, magic: int) -> bool:
    return length < _MIN_LEGACY_LENGTH or not 0 <= magic <= MAGIC


def _record_error(status: Status, index: int) -> RequestError:
    if status is Status.TIMESTAMP_OVERFLOW:
        return RecordsRefused(ErrorCode.invalid_timestamp, _BAD_TIMESTAMPS, ((index, status.reason),))
    return _invalid(f"record {index} of the batch: {status.reason}")


def _header_error(fields: tuple[int, ...]) -> RequestError:
    attributes, delta, producer_id, base_sequence, count = (fields[i] for i in (5, 6, 9, 11, 12))
    if delta < 0:
        return _invalid(f"the batch has an invalid offset range: [0, {delta}]")
    if count <= 0:
        return _invalid(f"the batch says that it has {count} records")
    if delta != count - 1:
        return _invalid(f"the batch's offset range, [0, {delta}], is not that of {count} records")
    if attributes & CONTROL_FLAG:
        return _invalid("clients are not allowed to write control records")
    return _invalid(f"producer id {producer_id} comes with an invalid sequence number {base_sequence}")


def _check_each(
    records: Buffer, start: int, fields: tuple[int, ...], rules: ValidationRules, oldest: int, newest: int
) -> None:
    """Raise `RecordsRefused` for the records that the topic refuses, if any. The records must parse.

    A record without a key gets that error alone. One bad timestamp decides the error code of the batch (Kafka
    `LogValidator.processRecordErrors`).
    """
    typed = bool(fields[5] & LOG_APPEND_TIME_FLAG)
    low, high = (_INT64_MAX, _INT64_MIN) if typed else (oldest, newest)
    rows = array("q", bytes(24 * MAX_RECORD_ERRORS))
    found, outside = find_refused(
        records, start, len(records), fields[12], fields[7], low, high, rules.needs_keys, rows
    )
    if not found:
        return
    where = f" in topic partition {rules.partition}" if rules.partition else ""
    errors: list[tuple[int, str]] = []
    for at in range(0, 3 * min(found, MAX_RECORD_ERRORS), 3):
        index, timestamp, keyless = rows[at : at + 3]
        if keyless:
            reason = _NO_KEY + where
        elif typed:
            reason = "Producer should not set timestamp type to LogAppendTime."
        else:
            reason = (
                f"Timestamp {timestamp} of message with offset {index} is out of range. "
                f"The timestamp should be within [{oldest}, {newest}]"
            )
        errors.append((index, reason))
    if outside:
        raise RecordsRefused(ErrorCode.invalid_timestamp, _BAD_TIMESTAMPS, tuple(errors))
    shown = ", ".join(f"RecordError(batchIndex={index}, message='{why}')" for index, why in errors[:3])
    raise RecordsRefused(
        ErrorCode.invalid_record,
        f"One or more records have been rejected due to {found} record errors in total, and only showing the "
        f"first three errors at most: [{shown}]",
        tuple(errors),
    )
