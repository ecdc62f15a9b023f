"""Primitive types: bounded reading of hostile bytes, and writers that mirror it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from service.wire import primitives as p
from service.wire.errors import FrameError, MalformedMessage
from service.wire.frames import frame, read_frame_size
from service.wire.primitives import MAX_ELEMENTS, Cursor

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "wire"


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 16383, 16384, 2**31 - 1, 2**32 - 1])
def test_a_varint_comes_back(value: int) -> None:
    out = bytearray()
    p.write_uvarint(out, value)
    assert bytes(out) == p.uvarint(value)
    cursor = Cursor(bytes(out))
    assert cursor.uvarint() == value
    assert cursor.position == len(out)


def test_text_is_read_as_java_reads_it() -> None:
    """The golden file is what `new String(bytes, UTF_8)` of Java 17 made of each sample."""
    samples = (GOLDEN / "java_utf8.txt").read_text().splitlines()
    assert len(samples) == 553
    for sample in samples:
        raw, points = sample.split()
        text = "".join(chr(int(point, 16)) for point in points.split("."))
        assert p.text_of(bytes.fromhex(raw)) == text, raw


@pytest.mark.parametrize("size", [32_767, 32_768])
@pytest.mark.parametrize(
    ("read", "write"),
    [
        (Cursor.compact_string, p.write_compact_string),
        (Cursor.nullable_compact_string, p.write_nullable_compact_string),
    ],
)
def test_a_string_has_at_most_32767_bytes(
    read: Callable[[Cursor], str | None], write: Callable[[bytearray, str], None], size: int
) -> None:
    out = bytearray()
    write(out, "x" * size)
    if size == 32_767:
        assert read(Cursor(out)) == "x" * size
        return
    with pytest.raises(MalformedMessage):
        read(Cursor(out))


@pytest.mark.parametrize(
    "raw", [b"", b"\x80", b"\xff\xff", b"\xff\xff\xff\xff\xff\x01", b"\x80" * 9 + b"\x01"]
)
def test_a_varint_that_does_not_end_is_refused(raw: bytes) -> None:
    with pytest.raises(MalformedMessage):
        Cursor(raw).uvarint()


@pytest.mark.parametrize(
    ("read", "raw"),
    [
        (Cursor.string, struct.pack(">h", 5) + b"four"),
        (Cursor.string, struct.pack(">h", -1)),
        (Cursor.nullable_string, struct.pack(">h", 32767) + b"x"),
        (Cursor.compact_string, b"\x00"),
        (Cursor.compact_string, b"\x06four"),
        (Cursor.bytes, struct.pack(">i", 2**31 - 1) + b"x"),
        (Cursor.bytes, struct.pack(">i", -(2**31))),
        (Cursor.compact_bytes, b"\xff\xff\xff\xff\x0fx"),
        (Cursor.uuid, b"x" * 15),
        (Cursor.skip_tagged_fields, b"\xff\xff\xff\xff\x0f"),
        (Cursor.skip_tagged_fields, b"\x01\x00\x7fx"),
    ],
)
def test_a_length_beyond_the_message_is_refused(read: object, raw: bytes) -> None:
    with pytest.raises(MalformedMessage):
        read(Cursor(raw))  # type: ignore[operator]


@pytest.mark.parametrize("size", [-1, -2, -(2**15)])
def test_any_negative_length_of_a_nullable_string_is_null(size: int) -> None:
    assert Cursor(struct.pack(">h", size)).nullable_string() is None


def test_arrays_are_bounded_by_the_bytes_that_are_left() -> None:
    with pytest.raises(MalformedMessage, match="array of 2147483647"):
        Cursor(struct.pack(">i", 2**31 - 1) + b"x" * 100).count(False, 4)
    with pytest.raises(MalformedMessage):
        Cursor(struct.pack(">i", 26) + b"x" * 100).count(False, 4)
    assert Cursor(struct.pack(">i", 25) + b"x" * 100).count(False, 4) == 25


def test_one_message_holds_a_bounded_number_of_array_elements() -> None:
    cursor = Cursor(bytes(2 * MAX_ELEMENTS))
    cursor.bound(MAX_ELEMENTS)
    with pytest.raises(MalformedMessage, match="array elements"):
        cursor.bound(1)


def test_slices_of_a_writable_view_are_writable_views() -> None:
    data = bytearray(b"\x05abcd")
    taken = Cursor(memoryview(data)).compact_bytes()
    assert isinstance(taken, memoryview)
    taken[0] = ord("A")
    assert data == b"\x05Abcd"


def test_the_zero_uuid_is_none_where_kio_says_so() -> None:
    assert Cursor(bytes(16)).uuid_or_none() is None
    assert Cursor(bytes(16)).uuid() == UUID(int=0)


def test_frame_sizes_are_bounded_both_ways() -> None:
    assert read_frame_size(frame(b"hello"), 0, 5) == 5
    for size in (-1, -(2**31), 6, 2**31 - 1):
        with pytest.raises(FrameError):
            read_frame_size(struct.pack(">i", size), 0, 5)
