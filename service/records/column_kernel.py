"""Loops that decode record batches into columns; like `kernel`, one source, compiled or interpreted. [P]

A `ColumnWriter` owns the buffers of one chunk of rows. It walks batches into them and parses and copies each
record once. It allocates nothing by what the data claim: buffers grow when an existing row does not fit. For
inflating, transactions and full chunks it returns a `Pause` to `columns`; the next call continues exactly
where the last one stopped.

The head of `kernel` describes the record layout and the rules for compiled and interpreted code.
"""

from __future__ import annotations

from typing import Final

from service.records.column_buffers import resize
from service.records.kernel_status import MIN_RECORD_SIZE, Pause, Status

try:
    import cython
except ImportError:  # running from source where Cython is not installed
    from service.records import without_cython as cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.libc.string import memcpy
    from cython.cimports.service.records.column_buffers import BytesColumn
    from cython.cimports.service.records.kernel import int32, int64, next_header, parse_record
else:
    from service.records.column_buffers import BytesColumn
    from service.records.kernel import int32, int64, next_header, parse_record

COMPILED: Final[bool] = cython.compiled

_OK = cython.declare(cython.longlong, Status.OK)
_TRUNCATED = cython.declare(cython.longlong, Status.TRUNCATED)
_BAD_SIZE = cython.declare(cython.longlong, Status.BAD_SIZE)
_BAD_OFFSET = cython.declare(cython.longlong, Status.BAD_OFFSET)
_TRAILING = cython.declare(cython.longlong, Status.TRAILING)
_TIMESTAMP_OVERFLOW = cython.declare(cython.longlong, Status.TIMESTAMP_OVERFLOW)
_BAD_LENGTH = cython.declare(cython.longlong, Status.BAD_LENGTH)
_BAD_MAGIC = cython.declare(cython.longlong, Status.BAD_MAGIC)
_BAD_RANGE = cython.declare(cython.longlong, Status.BAD_RANGE)
_BAD_COUNT = cython.declare(cython.longlong, Status.BAD_COUNT)
_FULL = cython.declare(cython.longlong, Pause.FULL)
_GROW = cython.declare(cython.longlong, 100)  # internal to this module
_BATCH = cython.declare(cython.longlong, Pause.BATCH)
_MIN_RECORD_SIZE = cython.declare(cython.longlong, MIN_RECORD_SIZE)
_INT64_MAX = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)
_INT64_MIN = cython.declare(cython.longlong, -1 - _INT64_MAX)

HEADER_COST: Final = 8
"""Bytes that a record header adds to a chunk besides its key and value: two int32 offsets."""
_HEADER_COST = cython.declare(cython.longlong, HEADER_COST)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _append(
    column: BytesColumn, data: cython.p_const_uchar, position: cython.longlong, size: cython.longlong
) -> cython.void:
    """Append ``data[position : position + size]``, or a null for size -1, into reserved room."""
    index: cython.longlong = column.entries
    valid: cython.uchar = 1
    if size > 0:
        if cython.compiled:
            memcpy(column.data + column.used, data + position, size)
        else:
            column.data[column.used : column.used + size] = data[position : position + size]
        column.used += size
    elif size < 0:
        valid = 0
        column.nulls += 1
    if index & 7 == 0:
        column.bits[index >> 3] = valid
    else:
        column.bits[index >> 3] |= valid << (index & 7)
    column.entries = index + 1
    column.offsets[index + 1] = column.used


@cython.final
@cython.cclass
class ColumnWriter:
    """Buffers of one chunk, and the position of the next record. For one thread at a time.

    For each buffer of whole batches: `open`, then `read` until it returns `Status.OK`. After `Pause.FULL`:
    `take`. After `Pause.BATCH`: `skip`, or `inflated` if `pause` says so, or just `read` again. Pairs of
    offsets and timestamps are inclusive.
    """

    _first_offset: cython.longlong
    _last_offset: cython.longlong
    _oldest: cython.longlong
    _newest: cython.longlong
    _max_rows: cython.longlong
    _max_bytes: cython.longlong
    _max_inflated: cython.longlong
    _pause_at_transactions: cython.longlong
    _want_offset: cython.longlong
    _want_timestamp: cython.longlong
    _want_type: cython.longlong
    _want_key: cython.longlong
    _want_value: cython.longlong
    _want_headers: cython.longlong

    # The current buffer and its current batch, of which `_left` records are not walked yet.
    _end: cython.longlong
    _next_offset: cython.longlong
    _batch: cython.longlong
    _batch_end: cython.longlong
    _base_offset: cython.longlong
    _last_delta: cython.longlong
    _attributes: cython.longlong
    _base_timestamp: cython.longlong
    _max_timestamp: cython.longlong
    _count: cython.longlong
    _walks: cython.longlong
    _in_payload: cython.longlong
    _left: cython.longlong
    _delta: cython.longlong
    _position: cython.longlong
    _records_end: cython.longlong

    # The chunk so far, and the room that the next row needs.
    _rows: cython.longlong
    _bytes: cython.longlong
    _row_room: cython.longlong
    _row_hint: cython.longlong
    _before: cython.longlong
    _need_key: cython.longlong
    _need_value: cython.longlong
    _need_headers: cython.longlong
    _need_header_key: cython.longlong
    _need_header_value: cython.longlong
    _key: BytesColumn
    _value: BytesColumn
    _header_key: BytesColumn
    _header_value: BytesColumn
    _offsets_buf: bytearray
    _timestamps_buf: bytearray
    _types_buf: bytearray
    _lists_buf: bytearray
    _offsets: cython.p_longlong
    _timestamps: cython.p_longlong
    _types: cython.p_int
    _lists: cython.p_int

    def __init__(
        self,
        want: frozenset[str],
        offsets: tuple[int, int],
        timestamps: tuple[int, int],
        max_rows: cython.longlong,
        max_bytes: cython.longlong,
        max_inflated_bytes: cython.longlong,
        pause_at_transactions: cython.longlong,
    ) -> None:
        self._first_offset, self._last_offset = offsets
        self._oldest, self._newest = timestamps
        self._max_rows, self._max_bytes, self._max_inflated = max_rows, max_bytes, max_inflated_bytes
        self._pause_at_transactions = pause_at_transactions
        self._want_offset = "offset" in want
        self._want_timestamp = "timestamp" in want
        self._want_type = "timestampType" in want
        self._want_key = "key" in want
        self._want_value = "value" in want
        self._want_headers = "headers" in want
        self._key, self._value = BytesColumn(), BytesColumn()
        self._header_key, self._header_value = BytesColumn(), BytesColumn()
        self._batch = self._base_offset = self._last_delta = self._count = self._walks = self._in_payload = 0
        self._next_offset = self._left = self._end = self._batch_end = self._row_hint = self._before = 0
        self._need_key = self._need_value = 0
        self._need_headers = self._need_header_key = self._need_header_value = 0
        self._begin()

    @property
    def rows(self) -> int:
        """Number of rows in the chunk so far."""
        return self._rows

    def open(self, size: cython.longlong) -> None:
        """Begin a buffer of ``size`` bytes, whose batches follow all earlier ones."""
        self._before += self._end
        self._batch = self._batch_end = self._left = self._in_payload = 0
        self._end = size

    @property
    def is_complete(self) -> bool:
        """True after the last wanted offset."""
        return self._next_offset > self._last_offset

    @property
    def pause(self) -> tuple[int, bool]:
        """Position of the batch of a `Pause.BATCH`, and whether its records must be inflated."""
        return self._batch, bool(self._walks and self._attributes & 7)

    @property
    def where(self) -> tuple[int, int, int, bool]:
        """Place of a bad status: position and offset of the batch, index of the record, and whether the
        index is valid.

        Without a complete header the offset is the lowest that may follow.
        """
        return self._batch, self._base_offset, self._count - self._left, self._left > 0

    def skip(self) -> None:
        """Leave out the rest of the current batch."""
        self._left = 0

    def inflated(self, size: cython.longlong) -> int:
        """Let `read` read the current batch's ``size`` bytes of inflated records. Return a status."""
        self._in_payload = 1
        self._position = 0
        self._records_end = size
        return _BAD_SIZE if self._left * _MIN_RECORD_SIZE > size else _OK

    def read(self, buf: cython.const[cython.uchar][::1]) -> int:
        """Continue in the opened buffer, or in the inflated records of the current batch.

        Returns `Status.OK` at its end, else a pause or an error.
        """
        data: cython.p_const_uchar
        status: cython.longlong = _GROW
        end: cython.longlong = self._records_end if self._in_payload else self._end
        if end > len(buf):
            raise IndexError(f"{end} bytes are not in {len(buf)}")
        if end == 0:
            self._in_payload = 0
            return _OK
        data = cython.address(buf[0]) if cython.compiled else buf
        while status == _GROW:
            with cython.nogil:
                status = self._walk(data) if self._in_payload else self._read_batches(data)
            if status == _GROW:
                self._grow()
        if status == _OK:
            self._in_payload = 0
        return status

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _read_batches(self, data: cython.p_const_uchar) -> cython.longlong:
        status: cython.longlong = _OK
        while status == _OK:
            if self._left > 0:
                status = self._walk(data) if self._walks else self._count_up()
            elif self._batch_end >= self._end:
                return _OK
            else:
                status = self._open_batch(data)
        return status

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _open_batch(self, data: cython.p_const_uchar) -> cython.longlong:
        """Read the next header; `_left` stays 0 if nothing in the batch is wanted."""
        at: cython.longlong = self._batch_end
        size: cython.longlong
        self._batch = at
        self._base_offset = self._next_offset
        self._count = 0
        if self._end - at < 12:
            return _TRUNCATED
        self._base_offset = int64(data, at)
        size = int32(data, at + 8) + 12
        if size < 61:
            return _BAD_LENGTH
        if self._end - at > 16 and data[at + 16] != 2:
            return _BAD_MAGIC
        if size > self._end - at:
            return _TRUNCATED
        self._last_delta = int32(data, at + 23)
        self._count = int32(data, at + 57)
        if self._base_offset < self._next_offset or self._last_delta < 0:
            return _BAD_RANGE
        if self._base_offset > _INT64_MAX - 1 - self._last_delta:
            return _BAD_RANGE
        if self._count < 0:
            return _BAD_COUNT
        self._next_offset = self._base_offset + self._last_delta + 1
        self._batch_end = self._end if self._next_offset > self._last_offset else at + size
        self._attributes = data[at + 22]
        self._base_timestamp = int64(data, at + 27)
        self._max_timestamp = int64(data, at + 35)
        return self._choose(at + 61, at + size)

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _choose(self, start: cython.longlong, end: cython.longlong) -> cython.longlong:
        """Decide how to read the current batch, whose records lie in ``[start, end)``."""
        constant_time: cython.longlong = self._attributes & 8
        times: cython.longlong = self._oldest > _INT64_MIN or self._newest < _INT64_MAX
        room: cython.longlong = self._max_inflated if self._attributes & 7 else end - start
        if self._attributes & 0x20:  # control
            return _OK
        if self._base_offset > self._last_offset or self._next_offset <= self._first_offset:
            return _OK
        if self._max_timestamp < self._oldest or (constant_time and self._max_timestamp > self._newest):
            return _OK
        if self._count * _MIN_RECORD_SIZE > room:
            return _BAD_SIZE
        if self._count == 0 and not self._attributes & 7:  # kept empty by compaction for its producer's state
            return _TRAILING if start < end else _OK
        # Offset deltas ascend within [0, last delta]: last delta + 1 records leave no gap.
        self._walks = (
            self._count != self._last_delta + 1
            or self._want_key
            or self._want_value
            or self._want_headers
            or (not constant_time and (times or self._want_timestamp))
        )
        self._left = self._count
        self._delta = -1
        self._position = start
        self._records_end = end
        if self._attributes & 0x10 and self._pause_at_transactions:
            return _BATCH
        return _BATCH if self._walks and self._attributes & 7 else _OK

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _count_up(self) -> cython.longlong:
        """Add rows of a batch without gaps of which only header fields are wanted."""
        row: cython.longlong = self._rows
        offset: cython.longlong = self._base_offset + self._count - self._left
        stop: cython.longlong = self._base_offset + self._count
        timestamp_type: cython.int = 1 if self._attributes & 8 else 0
        index: cython.longlong
        offset = max(offset, self._first_offset)
        if stop - 1 > self._last_offset:
            stop = self._last_offset + 1
        if row == self._row_room and offset < stop:
            return _FULL if row == self._max_rows else _GROW
        count: cython.longlong = max(0, min(stop - offset, self._row_room - row))
        if self._want_offset:
            for index in range(count):
                self._offsets[row + index] = offset + index
        if self._want_timestamp:
            for index in range(count):
                self._timestamps[row + index] = self._max_timestamp
        if self._want_type:
            for index in range(count):
                self._types[row + index] = timestamp_type
        self._rows = row + count
        self._left = 0 if offset + count == stop else self._base_offset + self._count - offset - count
        return _OK

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _walk(self, data: cython.p_const_uchar) -> cython.longlong:
        """Add the remaining records of the current batch."""
        row: cython.longlong[10]
        end: cython.longlong
        offset: cython.longlong
        timestamp: cython.longlong
        status: cython.longlong
        if not cython.compiled:
            row = [0] * 10
        while self._left > 0:
            end = parse_record(data, self._position, self._records_end, row)
            if end < 0:
                return end
            if row[1] <= self._delta or row[1] > self._last_delta:
                return _BAD_OFFSET
            offset = self._base_offset + row[1]
            if offset > self._last_offset:
                self._left = 0
                return _OK
            if self._attributes & 8:
                timestamp = self._max_timestamp
            else:
                timestamp = self._base_timestamp
                if row[0] > _INT64_MAX - timestamp if timestamp > 0 else row[0] < _INT64_MIN - timestamp:
                    return _TIMESTAMP_OVERFLOW
                timestamp += row[0]
            if offset >= self._first_offset and timestamp >= self._oldest and timestamp <= self._newest:
                status = self._room_for(row)
                if status != _OK:
                    return status
                self._put(data, row, offset, timestamp)
            self._delta = row[1]
            self._position = end
            self._left -= 1
        return _OK if self._position == self._records_end else _TRAILING

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _room_for(self, row: cython.p_longlong) -> cython.longlong:
        """Return `_OK` if the row fits, `_FULL` if it belongs to the next chunk, or `_GROW`."""
        size: cython.longlong = 0
        fits: cython.longlong = self._rows < self._row_room
        if self._want_key:
            self._need_key = max(0, row[3])
            size += self._need_key
            fits = fits and self._need_key <= self._key.byte_room - self._key.used
        if self._want_value:
            self._need_value = max(0, row[5])
            size += self._need_value
            fits = fits and self._need_value <= self._value.byte_room - self._value.used
        if self._want_headers:
            self._need_headers, self._need_header_key, self._need_header_value = row[7], row[8], row[9]
            size += row[8] + row[9] + row[7] * _HEADER_COST
            fits = fits and row[7] <= self._header_key.entry_room - self._header_key.entries
            fits = fits and row[8] <= self._header_key.byte_room - self._header_key.used
            fits = fits and row[9] <= self._header_value.byte_room - self._header_value.used
        if self._rows > 0 and (self._rows == self._max_rows or self._bytes + size > self._max_bytes):
            return _FULL
        if not fits:
            return _GROW
        self._bytes += size
        return _OK

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _put(
        self,
        data: cython.p_const_uchar,
        row: cython.p_longlong,
        offset: cython.longlong,
        timestamp: cython.longlong,
    ) -> cython.void:
        index: cython.longlong = self._rows
        if self._want_offset:
            self._offsets[index] = offset
        if self._want_timestamp:
            self._timestamps[index] = timestamp
        if self._want_type:
            self._types[index] = 1 if self._attributes & 8 else 0
        if self._want_key:
            _append(self._key, data, row[2], row[3])
        if self._want_value:
            _append(self._value, data, row[4], row[5])
        if self._want_headers:
            if row[7] > 0:
                self._put_headers(data, row[6], row[7])
            self._lists[index + 1] = self._header_key.entries
        self._rows = index + 1

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _put_headers(
        self, data: cython.p_const_uchar, position: cython.longlong, left: cython.longlong
    ) -> cython.void:
        """Append headers that `parse_record` has checked."""
        spans: cython.longlong[4]
        if not cython.compiled:
            spans = [0] * 4
        while left > 0:
            position = next_header(data, position, _INT64_MAX, spans)
            _append(self._header_key, data, spans[0], spans[1])
            _append(self._header_value, data, spans[2], spans[3])
            left -= 1

    @cython.cfunc
    def _begin(self) -> cython.void:
        """Begin an empty chunk."""
        self._rows = self._bytes = self._row_room = 0
        self._offsets_buf, self._timestamps_buf = bytearray(8), bytearray(8)
        self._types_buf, self._lists_buf = bytearray(4), bytearray(4)
        self._point()

    @cython.cfunc
    def _point(self) -> cython.void:
        if cython.compiled:
            self._offsets = cython.cast(cython.p_longlong, PyByteArray_AS_STRING(self._offsets_buf))
            self._timestamps = cython.cast(cython.p_longlong, PyByteArray_AS_STRING(self._timestamps_buf))
            self._types = cython.cast(cython.p_int, PyByteArray_AS_STRING(self._types_buf))
            self._lists = cython.cast(cython.p_int, PyByteArray_AS_STRING(self._lists_buf))
        else:
            self._offsets = memoryview(self._offsets_buf).cast("q")
            self._timestamps = memoryview(self._timestamps_buf).cast("q")
            self._types = memoryview(self._types_buf).cast("i")
            self._lists = memoryview(self._lists_buf).cast("i")

    @cython.cfunc
    def _release(self) -> cython.void:
        if not cython.compiled:
            for view in (self._offsets, self._timestamps, self._types, self._lists):
                view.release()

    @cython.cfunc
    def _grow(self) -> cython.void:
        """Grow for the row that did not fit and, up to a chunk's limits, for as many rows again."""
        room: cython.longlong = self._row_room
        if self._rows == room:
            room = min(self._max_rows, max(256, 2 * room, self._row_hint, self._foreseen(room)))
            self._release()
            if self._want_offset:
                resize(self._offsets_buf, 8 * room)
            if self._want_timestamp:
                resize(self._timestamps_buf, 8 * room)
            if self._want_type:
                resize(self._types_buf, 4 * room)
            if self._want_headers:
                resize(self._lists_buf, 4 * (room + 1))
            self._row_room = room
            self._point()
        if self._want_key:
            self._key.reserve(room, self._more(self._key, self._need_key))
        if self._want_value:
            self._value.reserve(room, self._more(self._value, self._need_value))
        if self._want_headers:
            size = self._header_key.entries + self._need_headers
            if size > self._header_key.entry_room:
                size = max(size, 2 * self._header_key.entry_room)
            self._header_key.reserve(size, self._more(self._header_key, self._need_header_key))
            self._header_value.reserve(size, self._more(self._header_value, self._need_header_value))

    @cython.cfunc
    def _more(self, column: BytesColumn, need: cython.longlong) -> cython.longlong:
        """Return the room in bytes that ``column`` needs to take ``need`` more."""
        used: cython.longlong = column.used
        if used + need <= column.byte_room:
            return column.byte_room
        used = max(4096, 2 * used, column.hint + (column.hint >> 4), self._foreseen(used))
        return max(column.used + need, min(self._max_bytes, used))

    @cython.cfunc
    def _foreseen(self, amount: cython.longlong) -> cython.longlong:
        """Extrapolate ``amount`` to the end of the data by the share walked so far; 0 if none is walked.

        A larger result would make the allocator give pages back (see `let_pages_stay`).
        """
        walked: cython.longlong = self._before + self._batch
        if walked <= 0:
            return 0
        amount = amount * (self._before + self._end) // walked
        return amount + (amount >> 4)

    def take(self) -> tuple[int, memoryview, memoryview, memoryview, memoryview]:
        """Return the number of rows and the wanted offsets, timestamps, timestamp types and header lists.

        Begins an empty chunk; the caller must call `take_bytes` too.
        """
        rows = self._rows
        self._row_hint = rows
        self._before = -self._batch
        self._release()
        bufs = self._offsets_buf, self._timestamps_buf, self._types_buf, self._lists_buf
        self._begin()
        resize(bufs[0], 8 * rows if self._want_offset else 0)
        resize(bufs[1], 8 * rows if self._want_timestamp else 0)
        resize(bufs[2], 4 * rows if self._want_type else 0)
        resize(bufs[3], 4 * (rows + 1) if self._want_headers else 0)
        offsets, timestamps = memoryview(bufs[0]).cast("q"), memoryview(bufs[1]).cast("q")
        return rows, offsets, timestamps, memoryview(bufs[2]).cast("i"), memoryview(bufs[3]).cast("i")

    def take_bytes(self) -> tuple[tuple[memoryview | None, memoryview, bytearray], ...]:
        """Return the byte columns key, value, header key and header value, each as validity (None without
        nulls), offsets and data; they are empty afterwards. Follows `take`."""
        return self._key.take(), self._value.take(), self._header_key.take(), self._header_value.take()
