"""Kafka's primitive types: `Cursor` reads them from a buffer, `write_*` functions append them to one. [P]

A string has at most `MAX_STRING_BYTES`, as in Kafka's generated readers. Bytes that are not UTF-8 become
U+FFFD, as in Java's decoder: clients derive their ids from host names of any encoding.

A length or count is compared with the bytes that are left before anything of that size is allocated, and one
message may hold at most `MAX_ELEMENTS` array elements in all, unless its reader allows more: a hostile
message costs no more memory than a large honest one. Any negative length of a nullable value is null, as in
Kafka.
Source: https://kafka.apache.org/protocol#protocol_types and KIP-482 (compact types, tagged fields).
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import NoReturn
from uuid import UUID

from service.base.types import Buffer
from service.wire.errors import MalformedMessage

MAX_ELEMENTS = 1 << 18
MAX_STRING_BYTES = (1 << 15) - 1
MAX_TAGGED_FIELDS = 64
PAUSE_ELEMENTS = 64
"""Array elements between two pauses of a reader or writer that works in steps."""
SHARED_BYTES = 512
"""Shortest encoded element that becomes a part of its own; shorter ones are cheaper to copy."""
ZERO_UUID = UUID(int=0)

_I8 = struct.Struct(">b")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")

uuid_from_bytes: Callable[[bytes], UUID] = lru_cache(maxsize=4096)(lambda raw: UUID(bytes=raw))
"""Building a UUID costs a microsecond, and every request names the same few topics."""


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """Return the replacement of bytes that are not UTF-8 and the position after them, as in Java's decoder.

    Python's handler "replace" differs for an encoded surrogate: it writes three U+FFFD, Java one.
    """
    assert isinstance(error, UnicodeDecodeError)
    data, start = error.object, error.start
    if data[start] != 0xED or not b"\xa0" <= data[start + 1 : start + 2] <= b"\xbf":
        return "\ufffd", error.end
    is_whole = b"\x80" <= data[start + 2 : start + 3] <= b"\xbf"
    return "\ufffd", start + (3 if is_whole else 2)


codecs.register_error("firn.java", _replaced)


def text_of(data: Buffer) -> str:
    """Decode UTF-8 as Java does: bytes that are not UTF-8 become U+FFFD, and none raise.

    >>> text_of(b"caf\\xe9")
    'caf\ufffd'
    """
    return str(data, "utf-8", "firn.java")


def _malformed(what: str) -> NoReturn:
    raise MalformedMessage(what)


class ManyElements(Exception):
    """The message has more array elements than its reader accepts in one go: decode it in steps."""


class Sink:
    """Buffers of a message that is written in steps: `out` grows; long bytes that exist already become parts
    of their own, without a copy.
    """

    __slots__ = ("_unpaused", "out", "parts")

    def __init__(self, out: bytearray) -> None:
        self.out = out
        self.parts: list[Buffer] = [out]
        self._unpaused = 0

    def share(self, data: bytes) -> None:
        """Write `data`: a copy if it is shorter than `SHARED_BYTES`, else as a part of its own."""
        if len(data) < SHARED_BYTES:
            self.out += data
            return
        self.out = bytearray()
        self.parts += (data, self.out)

    def is_pause(self) -> bool:
        """Count a written element; return whether it is time for a pause."""
        self._unpaused += 1
        if self._unpaused < PAUSE_ELEMENTS:
            return False
        self._unpaused = 0
        return True


class Encoded(bytes):
    """An array element that is encoded already, in place of the object in a message."""


class Cursor:
    """A reading position in `data`. Methods return the value and move on. They raise `MalformedMessage`, or
    `struct.error` if `data` is too short; parsers of whole messages convert the latter to the former.

    With `most_elements` they raise `ManyElements` before an array that exceeds it.
    """

    __slots__ = ("data", "elements_left", "end", "most_elements", "position", "unpaused")

    def __init__(self, data: Buffer, position: int = 0, most_elements: int = MAX_ELEMENTS) -> None:
        self.data = data
        self.position = position
        self.end = len(data)
        self.elements_left = self.most_elements = most_elements
        self.unpaused = 0
        """elements read in steps since the last pause"""

    def int8(self) -> int:
        value: int = _I8.unpack_from(self.data, self.position)[0]
        self.position += 1
        return value

    def int16(self) -> int:
        value: int = _I16.unpack_from(self.data, self.position)[0]
        self.position += 2
        return value

    def int32(self) -> int:
        value: int = _I32.unpack_from(self.data, self.position)[0]
        self.position += 4
        return value

    def int64(self) -> int:
        value: int = _I64.unpack_from(self.data, self.position)[0]
        self.position += 8
        return value

    def boolean(self) -> bool:
        return self.int8() != 0

    def uvarint(self) -> int:
        """Read an unsigned varint of at most five bytes (Kafka ``ByteUtils.readUnsignedVarint``)."""
        position = self.position
        if position >= self.end:
            _malformed("message is too short")
        byte = self.data[position]
        position += 1
        value = byte & 0x7F
        shift = 7
        while byte & 0x80:
            if position >= self.end:
                _malformed("message is too short")
            if shift > 28:
                _malformed("varint is longer than five bytes")
            byte = self.data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
        self.position = position
        return value & 0xFFFFFFFF

    def uuid(self) -> UUID:
        return uuid_from_bytes(bytes(self.take(16)))

    def uuid_or_none(self) -> UUID | None:
        """Read a UUID; zero becomes None, as in kio."""
        value = self.uuid()
        return None if value == ZERO_UUID else value

    def take(self, size: int) -> Buffer:
        """Read `size` bytes as a slice of `data`, so as a view if `data` is one."""
        start = self.position
        stop = start + size
        if size < 0 or stop > self.end:
            _malformed(f"field of {size} bytes, {self.end - start} left")
        self.position = stop
        return self.data[start:stop]

    def _text(self, size: int) -> str:
        if size > MAX_STRING_BYTES:
            _malformed(f"string of {size} bytes")
        return text_of(self.take(size))

    def string(self) -> str:
        return self._text(self.int16())

    def nullable_string(self) -> str | None:
        size = self.int16()
        return None if size < 0 else self._text(size)

    def compact_string(self) -> str:
        return self._text(self.uvarint() - 1)

    def nullable_compact_string(self) -> str | None:
        size = self.uvarint() - 1
        return None if size < 0 else self._text(size)

    def nullable_bytes(self) -> Buffer | None:
        size = self.int32()
        return None if size < 0 else self.take(size)

    def bytes(self) -> Buffer:
        return self.take(self.int32())

    def nullable_compact_bytes(self) -> Buffer | None:
        size = self.uvarint() - 1
        return None if size < 0 else self.take(size)

    def compact_bytes(self) -> Buffer:
        return self.take(self.uvarint() - 1)

    def bound(self, count: int, min_element_bytes: int = 1) -> int:
        """Return `count`, the length of an array to read. Raise if the bytes that are left cannot hold it, or
        the message exceeds its number of elements.
        """
        if count < 0:
            _malformed(f"array of {count} elements")
        if count * min_element_bytes > self.end - self.position:
            _malformed(f"array of {count} elements in {self.end - self.position} bytes")
        self.elements_left -= count
        if self.elements_left < 0:
            if self.most_elements < MAX_ELEMENTS:
                raise ManyElements
            _malformed(f"more than {self.most_elements} array elements in one message")
        return count

    def is_pause(self) -> bool:
        """Count an element that was read in steps; return whether it is time for a pause."""
        self.unpaused += 1
        if self.unpaused < PAUSE_ELEMENTS:
            return False
        self.unpaused = 0
        return True

    def count(self, compact: bool, min_element_bytes: int = 1) -> int:
        """Read the length of a non-null array and check it (`bound`)."""
        return self.bound(self.uvarint() - 1 if compact else self.int32(), min_element_bytes)

    def skip_tagged_fields(self) -> None:
        """Skip a tagged-field section, as Kafka does: its fields come from a newer peer."""
        for _ in range(self.tagged_fields()):
            self.uvarint()
            self.take(self.uvarint())

    def tagged_fields(self) -> int:
        """Read the number of fields of a tagged-field section. Each counts as an array element."""
        position = self.position
        if position < self.end and self.data[position] == 0:  # as in most structs
            self.position = position + 1
            return 0
        count = self.uvarint()
        if count > MAX_TAGGED_FIELDS:
            _malformed(f"{count} tagged fields in one struct")
        self.unpaused += count
        return self.bound(count, 2) if count else 0


def write_uvarint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def write_count(out: bytearray, count: int, flexible: bool) -> None:
    """Write the length of an array or of bytes, as `Cursor.count` reads it."""
    if flexible:
        write_uvarint(out, count + 1)
    else:
        out += _I32.pack(count)


def uvarint(value: int) -> bytes:
    """Return `value` as an unsigned varint."""
    if value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    write_uvarint(out, value)
    return bytes(out)


_ONE_BYTE = [bytes((n,)) for n in range(0x80)]


def write_string(out: bytearray, value: str) -> None:
    raw = value.encode()
    out += _I16.pack(len(raw))
    out += raw


def write_nullable_string(out: bytearray, value: str | None) -> None:
    if value is None:
        out += b"\xff\xff"
    else:
        write_string(out, value)


def write_compact_string(out: bytearray, value: str) -> None:
    raw = value.encode()
    write_uvarint(out, len(raw) + 1)
    out += raw


def write_nullable_compact_string(out: bytearray, value: str | None) -> None:
    if value is None:
        out.append(0)
    else:
        write_compact_string(out, value)


def write_bytes(out: bytearray, value: Buffer) -> None:
    out += _I32.pack(len(value))
    out += value


def write_nullable_bytes(out: bytearray, value: Buffer | None) -> None:
    if value is None:
        out += b"\xff\xff\xff\xff"
    else:
        write_bytes(out, value)


def write_compact_bytes(out: bytearray, value: Buffer) -> None:
    write_uvarint(out, len(value) + 1)
    out += value


def write_nullable_compact_bytes(out: bytearray, value: Buffer | None) -> None:
    if value is None:
        out.append(0)
    else:
        write_compact_bytes(out, value)


def packer(layout: struct.Struct) -> Callable[[bytearray, int], None]:
    """Return a writer of one fixed-width type."""
    pack = layout.pack

    def write(out: bytearray, value: int) -> None:
        out += pack(value)

    return write


write_int8 = packer(_I8)
write_int16 = packer(_I16)
write_int32 = packer(_I32)


def write_uuid(out: bytearray, value: UUID | None) -> None:
    out += ZERO_UUID.bytes if value is None else value.bytes
