"""Small data that inflate to much, made by repetition: compressing all of it takes a test's whole time."""

from __future__ import annotations

import zlib

_MIB = 1 << 20


def gzip_bomb(size: int, filling: bytes = b"\0") -> bytes:
    """One gzip member that inflates to at least `size` bytes, and has no end: nobody should get that far."""
    stream = zlib.compressobj(9, wbits=31)
    head = stream.compress(filling * _MIB) + stream.flush(zlib.Z_FULL_FLUSH)
    # After a full flush nothing refers to what was before: the same bytes inflate to the same again.
    again = stream.compress(filling * _MIB) + stream.flush(zlib.Z_FULL_FLUSH)
    return head + again * -(-(size - _MIB) // _MIB)
