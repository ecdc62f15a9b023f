"""Parts of an object with the checksums that its own footer has of them, for copies that pass through here.

Blocks; safe from any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from service.base.errors import CorruptionError
from service.base.types import Buffer
from service.remote.format.keys import SegmentKey, TailKey, parse_key
from service.remote.format.segment_object import SUFFIX_HINT, tail_length
from service.remote.format.segment_object import decode_footer as decode_segment_footer
from service.remote.format.tail_object import decode_footer as decode_tail_footer
from service.remote.format.tail_object import footer_length
from service.remote.reading.object_reader import read_suffix
from service.remote.stores.errors import naming
from service.remote.stores.store import ObjectStore

_GUESSES: Final = 3


class ObjectPart(NamedTuple):
    """Bytes of an object; `crc32c` is None where nothing tells it."""

    position: int
    length: int
    crc32c: int | None


def parts_of(store: ObjectStore, key: str, size: int) -> list[ObjectPart]:
    """Return the parts of an object of `size` bytes, in order and without a gap: blocks and sections of a
    segment, sections of a tail, the footer; any other object is one part.

    Raises `CorruptionError` for a footer that is damaged, or of an object of another size.
    """
    parsed = parse_key(key)
    if not isinstance(parsed, SegmentKey | TailKey):
        return [ObjectPart(0, size, None)]
    length_of = tail_length if isinstance(parsed, SegmentKey) else footer_length
    with naming(key):
        suffix, found = read_suffix(store, key, SUFFIX_HINT, length_of, _GUESSES)
        if found != size:
            raise CorruptionError(f"{found} bytes, not {size}")
        known = _of_segment(suffix, size) if isinstance(parsed, SegmentKey) else _of_tail(suffix, size)
    parts: list[ObjectPart] = []
    at = 0
    for part in sorted(known):
        if part.position > at:
            parts.append(ObjectPart(at, part.position - at, None))
        parts.append(part)
        at = part.position + part.length
    # Whoever parsed the footer has verified it.
    parts.append(ObjectPart(at, size - at, crc32c(memoryview(suffix)[at - size :]) if at < size else 0))
    return parts


def _of_segment(suffix: Buffer, size: int) -> list[ObjectPart]:
    footer = decode_segment_footer(suffix, size)
    blocks = [ObjectPart(one.position, one.length, one.crc32c) for one in footer.blocks]
    return [*blocks, *(ObjectPart(*one) for one in footer.sections.values())]


def _of_tail(suffix: Buffer, size: int) -> list[ObjectPart]:
    footer = decode_tail_footer(suffix, size)
    return [ObjectPart(one.position, one.length, one.crc32c) for one in footer.sections]


def proved(key: str, pieces: Iterable[Buffer], parts: Iterable[ObjectPart]) -> Iterator[Buffer]:
    """Yield the pieces of an object, each once the parts that end in it have the right checksums.

    Raises `CorruptionError` for one that has not.
    """
    waiting = iter(parts)
    part = next(waiting, None)
    done = found = 0
    for piece in pieces:
        view = memoryview(piece)
        while len(view) and part is not None:
            taken = view[: part.length - done]
            found = crc32c(taken, found)
            done += len(taken)
            view = view[len(taken) :]
            if done == part.length:
                if part.crc32c not in (None, found):
                    raise CorruptionError(f"{key}: the {part.length} bytes at {part.position} are damaged")
                part, done, found = next(waiting, None), 0, 0
        yield piece
