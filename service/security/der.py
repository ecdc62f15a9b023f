"""Reader of DER, as certificates are written in it: tag, length, content, nested. [P]

Strict about lengths: what does not fit, or has an indefinite length, raises `DerError`. Nothing is copied but
what is returned.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from service.base.errors import FirnError

BOOLEAN: Final = 0x01
INTEGER: Final = 0x02
BIT_STRING: Final = 0x03
OCTET_STRING: Final = 0x04
OBJECT_ID: Final = 0x06
UTC_TIME: Final = 0x17
GENERALIZED_TIME: Final = 0x18
SEQUENCE: Final = 0x30
SET: Final = 0x31
_LONG_TAG: Final = 0x1F
_MOST_LENGTH_BYTES: Final = 4
_MOST_OID_BYTES: Final = 4096


class DerError(FirnError):
    """Bytes that are not DER, or another structure than the one expected."""


class DerValue(NamedTuple):
    """One value: its tag, its content, and all of its bytes."""

    tag: int
    content: bytes
    whole: bytes

    def expect(self, tag: int, what: str) -> DerValue:
        """Return the value itself. Raises `DerError` with `what` if it has another tag."""
        if self.tag != tag:
            raise DerError(f"{what}: tag {self.tag:#04x} instead of {tag:#04x}")
        return self


def read_values(data: bytes) -> Iterator[DerValue]:
    """Yield the values that `data` is made of. Raises `DerError` where it ends within one."""
    at = 0
    while at < len(data):
        value, at = _read_value(data, at)
        yield value


def read_one(data: bytes, tag: int, what: str) -> DerValue:
    """Return the value that `data` consists of. Raises `DerError` if it is another, or bytes follow."""
    value, end = _read_value(data, 0)
    if end != len(data):
        raise DerError(f"{what}: {len(data) - end} bytes follow")
    return value.expect(tag, what)


def _read_value(data: bytes, at: int) -> tuple[DerValue, int]:
    if len(data) - at < 2:
        raise DerError("the bytes end within a head")
    tag, size, start = data[at], data[at + 1], at + 2
    if tag & _LONG_TAG == _LONG_TAG:
        raise DerError("a tag of several bytes")
    if size >= 0x80:
        count = size & 0x7F
        if not 0 < count <= _MOST_LENGTH_BYTES or len(data) - start < count:
            raise DerError("a length that is none")
        size = int.from_bytes(data[start : start + count], "big")
        start += count
    end = start + size
    if end > len(data):
        raise DerError(f"a value of {size} bytes, of which {len(data) - start} are there")
    return DerValue(tag, data[start:end], data[at:end]), end


def object_id(content: bytes) -> str:
    """Return an object identifier in dotted decimals. Raises `DerError`."""
    if not content or content[-1] & 0x80 or len(content) > _MOST_OID_BYTES:
        raise DerError("an object identifier that is none")
    numbers, number = [], 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
        elif number.bit_length() > 256:
            raise DerError("an object identifier with a huge number")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
