"""Read committed batches of this node's metadata log, in slices."""

from __future__ import annotations

from typing import Final

from service.base.errors import FirnError
from service.base.slices import next_turn
from service.metadata.publisher import Publisher
from service.records.batch import iter_headers

_AT_ONCE: Final = 256 << 10


class LogPieceGone(FirnError):
    """The log does not have all of these records any more, or they are more than are wanted."""


async def read_log(metadata: Publisher, start: int, end: int, most_bytes: int) -> bytes:
    """Return the batches from offset `start` to `end`, exclusive, which begin and end batches and are
    committed.

    Raises `LogPieceGone`, also where they have more than `most_bytes` bytes, `CorruptionError` and
    `RequestError` where the log is not open.
    """
    log = metadata.quorum.log
    pieces: list[bytes] = []
    at, size = start, 0
    while at < end:
        async with log.changing:
            if at < log.start_offset:
                raise LogPieceGone(f"the metadata log begins at {log.start_offset}, behind offset {at}")
            piece = log.read(at, _AT_ONCE, end)
        pieces.append(piece)
        size += len(piece)
        at = max(header.next_offset for header in iter_headers(piece))
        if size > most_bytes:
            raise LogPieceGone(f"the metadata log has more than {most_bytes} bytes from offset {start} on")
        await next_turn()
    return b"".join(pieces)
