"""Growing buffers of columns; like `kernel`, one source, compiled or interpreted. [P]

`column_kernel` walks and appends; this module has the rare operations, growing and handing over. The C types
of a column's fields are in column_buffers.pxd.
"""

from __future__ import annotations

from typing import Final

try:
    import cython
except ImportError:  # running from source where Cython is not installed
    from service.records import without_cython as cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import (
        PyByteArray_AS_STRING,
        PyByteArray_FromStringAndSize,
        PyByteArray_Resize,
    )

COMPILED: Final[bool] = cython.compiled

_LARGEST_HEAP_PIECE = cython.declare(cython.Py_ssize_t, 32 * 1024 * 1024 - 64 * 1024)


def let_pages_stay() -> None:
    """Make the allocator keep the pages of freed chunks for later chunks.

    glibc serves a request up to the size of the largest mapping freed so far, 32 MiB at most, from the heap,
    and keeps up to twice that size idle (mallopt(3), "dynamic mmap threshold"). This function allocates and
    frees one such mapping without touching its pages. Otherwise nearly every chunk gets fresh pages, which
    costs twice the time of decoding (100-byte values: 36 ns a record instead of 13).
    """
    if cython.compiled:
        PyByteArray_FromStringAndSize(cython.NULL, _LARGEST_HEAP_PIECE)


def resize(buf: bytearray, size: cython.Py_ssize_t) -> None:
    """Resize ``buf`` to ``size``; added bytes are undefined. There must be no view of it."""
    if cython.compiled:
        PyByteArray_Resize(buf, size)
    elif size <= len(buf):
        del buf[size:]
    else:
        buf.extend(bytes(size - len(buf)))


@cython.final
@cython.cclass
class BytesColumn:
    """A growing Arrow column of byte strings: int32 offsets, data, validity bits and number of nulls."""

    def __init__(self) -> None:
        self.hint = 0
        self.begin()

    @cython.ccall
    def begin(self) -> cython.void:
        """Replace the buffers by empty ones; the old ones belong to the caller of `take`."""
        self.entries = self.used = self.nulls = self.entry_room = self.byte_room = 0
        self._offsets_buf, self._bits_buf, self._data_buf = bytearray(4), bytearray(1), bytearray(1)
        self._point()

    @cython.cfunc
    def _point(self) -> cython.void:
        if cython.compiled:
            self.offsets = cython.cast(cython.p_int, PyByteArray_AS_STRING(self._offsets_buf))
            self.bits = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self._bits_buf))
            self.data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self._data_buf))
        else:
            self.offsets = memoryview(self._offsets_buf).cast("i")
            self.bits, self.data = self._bits_buf, self._data_buf

    @cython.ccall
    def reserve(self, entries: cython.longlong, size: cython.longlong) -> cython.void:
        """Grow to room for ``entries`` entries and ``size`` bytes in all, if smaller."""
        if not cython.compiled:
            self.offsets.release()
        if entries > self.entry_room:
            self.entry_room = entries
            resize(self._offsets_buf, 4 * (entries + 1))
            resize(self._bits_buf, (entries >> 3) + 1)
        if size > self.byte_room:
            self.byte_room = size
            resize(self._data_buf, size)
        self._point()

    def take(self) -> tuple[memoryview | None, memoryview, bytearray]:
        """Return validity (None without nulls), offsets and data; the column is empty afterwards."""
        offsets, data = self._offsets_buf, self._data_buf
        bits = memoryview(self._bits_buf)[: (self.entries + 7) >> 3] if self.nulls else None
        entries, used = self.entries, self.used
        self.hint = used
        if not cython.compiled:
            self.offsets.release()
        self.begin()
        resize(offsets, 4 * (entries + 1))
        resize(data, used)
        return bits, memoryview(offsets).cast("i"), data
