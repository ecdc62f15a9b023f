"""Decoder of record batches into columns, in buffers that Apache Arrow can use. [P]

`column_kernel` has the loops, which release the GIL when compiled. This module makes the decisions per batch
(inflating, transactions) and hands over the result. It does not import Arrow; callers that do can wrap the
buffers without a copy:

    buffers = (c.value_validity, c.value_offsets, c.value_data)
    pa.Array.from_buffers(pa.binary(), c.count, [b if b is None else pa.py_buffer(b) for b in buffers])
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from service.base.errors import CorruptionError
from service.base.types import MAX_INFLATED_BATCH_BYTES, Buffer
from service.records.batch import HEADER_SIZE, BatchHeader, read_header
from service.records.column_buffers import let_pages_stay
from service.records.column_kernel import ColumnWriter
from service.records.compression import decompress
from service.records.kernel_status import Pause, Status
from service.records.scan import scan_batches

COLUMNS: Final = frozenset({"key", "value", "offset", "timestamp", "timestampType", "headers"})
INT64_MAX: Final = 2**63 - 1
INT64_MIN: Final = -(2**63)
DEFAULT_CHUNK_BYTES: Final = 16 * 1024 * 1024
"""Two chunks of this size fit what the allocator keeps (see `let_pages_stay`); larger ones are slower."""
MAX_CHUNK_BYTES: Final = 512 * 1024 * 1024
"""A quarter of the reach of Arrow's int32 offsets: repaired header keys can be three times as long."""
INT32_MAX: Final = 2**31 - 1

let_pages_stay()


class AbortedRange(NamedTuple):
    """One entry of a transaction index: an aborted transaction of ``producer_id``.

    Offsets are inclusive; ``last_offset`` is that of the abort marker (Kafka `AbortedTxn`).
    """

    producer_id: int
    first_offset: int
    last_offset: int


@dataclass(slots=True, eq=False)
class Columns:
    """Columns of ``count`` rows; None for columns that were not requested.

    Offsets are int64; timestamps int64, ms since 1970, -1 for none; timestamp types int32, 0 (CreateTime) or
    1 (LogAppendTime). Each byte column has int32 offsets (one more than entries), the data, and a validity
    bitmap (least significant bit first, 1 = valid), which is None if nothing is null. Row ``i`` has the
    headers ``header_lists[i]`` to ``header_lists[i + 1]`` (int32). Header keys are never null and are valid
    UTF-8 (malformed ones are repaired with U+FFFD, as Kafka's Java clients show them).
    """

    count: int = 0
    offsets: memoryview | None = None
    timestamps: memoryview | None = None
    timestamp_types: memoryview | None = None
    key_validity: memoryview | None = None
    key_offsets: memoryview | None = None
    key_data: memoryview | None = None
    value_validity: memoryview | None = None
    value_offsets: memoryview | None = None
    value_data: memoryview | None = None
    header_lists: memoryview | None = None
    header_key_offsets: memoryview | None = None
    header_key_data: memoryview | None = None
    header_value_validity: memoryview | None = None
    header_value_offsets: memoryview | None = None
    header_value_data: memoryview | None = None


class ColumnDecoder:
    """Decoder of whole batches into chunks of at most ``max_rows`` rows and ``max_bytes`` bytes.

    ``want`` names columns out of `COLUMNS`; other fields are checked but not copied. If the batch header
    gives all wanted columns (offsets without gaps, timestamps set by the broker), the records are neither
    inflated nor walked. ``max_bytes`` counts the wanted keys, values, header keys and values, and 8 bytes per
    header; a larger record is a chunk of its own.

    Rows are limited to ``min_offset <= offset < max_offset`` and, if given, ``min_timestamp <= timestamp <
    max_timestamp`` (ms). Control batches are left out, and so are transactional batches inside one of the
    ``aborted`` ranges.

    Offsets must ascend from batch to batch and from record to record, else `CorruptionError` is raised. A
    decoder keeps no state between calls; one generator belongs to one thread at a time.
    """

    def __init__(
        self,
        *,
        want: Iterable[str] = COLUMNS,
        max_rows: int = 200_000,
        max_bytes: int = DEFAULT_CHUNK_BYTES,
        min_offset: int = 0,
        max_offset: int = INT64_MAX,
        min_timestamp: int | None = None,
        max_timestamp: int | None = None,
        aborted: Iterable[tuple[int, int, int]] = (),
        verify_crc: bool = False,
        max_inflated_bytes: int = MAX_INFLATED_BATCH_BYTES,
    ) -> None:
        """``verify_crc`` checks each batch's checksum, for data that nothing else has verified."""
        self._want = frozenset(want)
        if unknown := self._want - COLUMNS:
            raise ValueError(f"no such columns: {', '.join(sorted(unknown))}")
        if not 1 <= max_rows <= MAX_CHUNK_BYTES or not 1 <= max_bytes <= MAX_CHUNK_BYTES:
            raise ValueError(f"max_rows and max_bytes are between 1 and {MAX_CHUNK_BYTES}")
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._offsets = (_clamp(min_offset), _clamp(max_offset - 1))
        self._timestamps = (
            INT64_MIN if min_timestamp is None else _clamp(min_timestamp),
            INT64_MAX if max_timestamp is None else _clamp(max_timestamp - 1),
        )
        self._verify_crc = verify_crc
        self._max_inflated_bytes = min(max_inflated_bytes, INT32_MAX)
        self._aborted = _index(aborted)

    def decode(self, data: Buffer) -> Iterator[Columns]:
        """Yield the rows of ``data``, which is whole batches; see `decode_stream`."""
        return self.decode_stream((data,))

    def decode_stream(self, parts: Iterable[Buffer]) -> Iterator[Columns]:
        """Yield the rows of ``parts`` in non-empty chunks that may span parts. Each part is whole batches.

        A part is released before the next one is requested, and none is requested after the last wanted
        offset. Raises `CorruptionError` with the position in the part, the offset and the record; earlier
        rows may have been yielded.
        """
        writer = ColumnWriter(
            self._want,
            self._offsets,
            self._timestamps,
            self._max_rows,
            self._max_bytes,
            self._max_inflated_bytes,
            1 if self._aborted else 0,
        )
        for part in parts:
            yield from self._read(writer, memoryview(part))
            del part
            if writer.is_complete:
                break
        if writer.rows:
            yield _take(writer, self._want)

    def _read(self, writer: ColumnWriter, view: memoryview) -> Iterator[Columns]:
        if self._verify_crc:
            _verify(view)
        writer.open(len(view))
        while (status := writer.read(view)) != Status.OK:
            if status == Pause.FULL:
                yield _take(writer, self._want)
            elif status == Pause.BATCH:
                yield from self._decide(writer, view)
            else:
                raise _corruption(writer, Status(status).reason)

    def _decide(self, writer: ColumnWriter, view: memoryview) -> Iterator[Columns]:
        """Skip the paused batch if it is aborted, else inflate it and read its records."""
        position, needs_inflating = writer.pause
        header = read_header(view, position)
        if self._is_aborted(header):
            writer.skip()
        elif needs_inflating:
            try:
                records = view[position + HEADER_SIZE : header.end]
                payload = decompress(header.codec, records, self._max_inflated_bytes)
            except CorruptionError as error:
                raise _corruption(writer, str(error), of_record=False) from None
            status = writer.inflated(len(payload)) or writer.read(payload)
            while status == Pause.FULL:
                yield _take(writer, self._want)
                status = writer.read(payload)
            if status != Status.OK:
                raise _corruption(writer, Status(status).reason)

    def _is_aborted(self, header: BatchHeader) -> bool:
        if not header.is_transactional or header.producer_id not in self._aborted:
            return False
        firsts, ends = self._aborted[header.producer_id]
        at = bisect_right(firsts, header.last_offset)
        return at > 0 and ends[at - 1] >= header.base_offset


def _index(aborted: Iterable[tuple[int, int, int]]) -> dict[int, tuple[list[int], list[int]]]:
    """Return by producer its aborted transactions' first offsets, ascending, and the last end up to each."""
    ranges: dict[int, list[tuple[int, int]]] = {}
    for producer_id, first, last in aborted:
        ranges.setdefault(producer_id, []).append((first, last))
    index = {}
    for producer_id, found in ranges.items():
        found.sort()
        index[producer_id] = [first for first, _ in found], list(accumulate((last for _, last in found), max))
    return index


def _take(writer: ColumnWriter, want: frozenset[str]) -> Columns:
    """Return the writer's chunk."""
    columns = Columns()
    columns.count, offsets, timestamps, types, lists = writer.take()
    key, value, header_key, header_value = writer.take_bytes()
    if "offset" in want:
        columns.offsets = offsets
    if "timestamp" in want:
        columns.timestamps = timestamps
    if "timestampType" in want:
        columns.timestamp_types = types
    if "key" in want:
        columns.key_validity, columns.key_offsets, data = key
        columns.key_data = memoryview(data)
    if "value" in want:
        columns.value_validity, columns.value_offsets, data = value
        columns.value_data = memoryview(data)
    if "headers" in want:
        columns.header_lists = lists
        _, columns.header_key_offsets, data = header_key
        columns.header_key_data = memoryview(data)
        if not data.isascii():
            columns.header_key_offsets, columns.header_key_data = _repaired(columns.header_key_offsets, data)
        columns.header_value_validity, columns.header_value_offsets, data = header_value
        columns.header_value_data = memoryview(data)
    return columns


def _repaired(offsets: memoryview, data: bytearray) -> tuple[memoryview, memoryview]:
    """Return the same strings as valid UTF-8."""
    parts = [str(data[start:end], "utf-8", "replace").encode() for start, end in pairwise(offsets)]
    try:
        ends = array("i", [0, *accumulate(map(len, parts))])
    except OverflowError:
        raise CorruptionError(f"{len(data)} bytes of malformed header keys in one chunk") from None
    return memoryview(ends), memoryview(b"".join(parts))


def _verify(view: memoryview) -> None:
    scan = scan_batches(view)
    if scan.status != Status.OK:
        raise CorruptionError(
            f"batch at position {scan.end}, after offset {scan.last_offsets[-1] if scan.batches else -1}: "
            f"{scan.status.reason}"
        )


def _corruption(writer: ColumnWriter, reason: str, *, of_record: bool = True) -> CorruptionError:
    position, offset, record, is_record = writer.where
    what = f", record {record}" if of_record and is_record else ""
    return CorruptionError(f"batch at position {position}, offset {offset}{what}: {reason}")


def _clamp(value: int) -> int:
    return max(INT64_MIN, min(INT64_MAX, value))
