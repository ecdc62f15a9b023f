"""Length-prefixed framing: every message is `int32 size` followed by `size` bytes. [P]

Source: Kafka ``NetworkReceive``; a negative size or one above ``socket.request.max.bytes`` ends the
connection.
"""

from __future__ import annotations

import struct

from service.base.types import Buffer
from service.wire.errors import FrameError
from service.wire.other_protocols import HTTP, TLS, first_bytes_of

SIZE_BYTES = 4
_SIZE = struct.Struct(">i")
_FOREIGN = (HTTP, TLS)


def read_frame_size(data: Buffer, position: int, max_size: int) -> int:
    """Return the size in bytes of the message after the prefix at `position`, which must be complete.

    Raises `FrameError` if the size is negative or above `max_size`.
    """
    size: int = _SIZE.unpack_from(data, position)[0]
    if size < 0:
        raise FrameError(f"negative frame size {size}")
    if size > max_size:
        start = first_bytes_of(_SIZE.pack(size))
        hint = f": it begins like {start}" if start in _FOREIGN else ""
        raise FrameError(f"frame of {size} bytes is over the limit of {max_size}{hint}")
    return size


def frame(payload: Buffer) -> bytes:
    """Return `payload` with its length in front."""
    return _SIZE.pack(len(payload)) + payload
