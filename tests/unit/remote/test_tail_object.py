"""Footers of tails: what is written is read, and nothing else is."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from crc32c import crc32c

from service.base.errors import CorruptionError
from service.remote.format.stamp import Stamp, Writer
from service.remote.format.tail_object import TailSection, decode_footer, encode_footer, footer_length

A, B = UUID(int=1), UUID(int=2)
SECTIONS = (
    TailSection(A, 0, 3, 100, 150, 0, 700, 11, 50, 1_700_000_000_000, 3),
    TailSection(A, 0, 4, 150, 151, 700, 80, 12, 1, -1, 4),
    TailSection(A, 7, 3, 0, 10, 780, 90, 13, 2, 5, 2),
    TailSection(B, 1, 0, 5, 6, 870, 130, 14, 0, 5, 0),
)
STAMP = Stamp(1_700_000_100_000, Writer(2, UUID(int=5), "firn test"))
END = 1000


def whole(sections: tuple[TailSection, ...] = SECTIONS) -> bytes:
    return encode_footer("cluster", 9, 1, sections, STAMP)


def object_of(document: dict[str, Any]) -> bytes:
    """The footer as docs/bucket-format.md has it, without our code."""
    packer = zlib.compressobj(wbits=31)
    body = packer.compress(json.dumps(document).encode()) + packer.flush()
    length = len(body).to_bytes(4, "big")
    return body + length + crc32c(body + length).to_bytes(4, "big") + b"FIRNTAIL"


def plain() -> dict[str, Any]:
    return {
        "format": "firn-tail",
        "format_version": 1,
        "cluster_id": "cluster",
        "cut": 9,
        "level": 1,
        "columns": [
            "topic_id", "partition", "leader_epoch", "first_offset", "end_offset", "position", "length",
            "crc32c", "record_count", "max_timestamp", "last_batch_epoch",
        ],
        "sections": [[str(one.topic_id), *one[1:]] for one in SECTIONS],
    }  # fmt: skip


def test_a_footer_is_read_as_it_was_written() -> None:
    data = whole()
    found = decode_footer(data, END + len(data))
    assert (found.cluster_id, found.cut, found.level, found.stamp) == ("cluster", 9, 1, STAMP)
    assert found.sections == SECTIONS
    assert (found.position, found.object_size) == (END, END + len(data))
    assert footer_length(data[-16:], END + len(data)) == len(data)


def test_a_footer_that_others_write_is_read() -> None:
    document = plain()
    document["columns"].append("of_tomorrow")
    for row in document["sections"]:
        row.append({"anything": 1})
    document["another"] = []
    data = object_of(document)
    assert decode_footer(data, END + len(data)).sections == SECTIONS


def test_more_bytes_before_the_footer_do_not_matter() -> None:
    data = whole()
    assert decode_footer(b"x" * END + data, END + len(data)) == decode_footer(data, END + len(data))


def test_flipped_bits_and_other_lengths_are_refused() -> None:
    data = whole()
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError):
            decode_footer(bytes(damaged), END + len(data))
    for length in range(len(data)):
        with pytest.raises(CorruptionError):
            decode_footer(data[:length], END + length)
    for size in (END - 1, END + 1, len(data) - 1, 0, -1, 1 << 62):
        with pytest.raises(CorruptionError):
            decode_footer(data, size + len(data) if size in (END - 1, END + 1) else size)


def _row(index: int, column: int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        document["sections"][index][column] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda d: d.update(format="firn-head"), id="other format"),
        pytest.param(lambda d: d.update(format_version=2), id="later version"),
        pytest.param(lambda d: d.update(format_version=True), id="true for 1"),
        pytest.param(lambda d: d.update(cut=0), id="cut 0"),
        pytest.param(lambda d: d.update(level=100), id="level 100"),
        pytest.param(lambda d: d.update(cluster_id=7), id="cluster id a number"),
        pytest.param(lambda d: d.update(sections={}), id="sections no list"),
        pytest.param(lambda d: d["columns"].reverse(), id="other columns"),
        pytest.param(lambda d: d["sections"].append(7), id="row no list"),
        pytest.param(lambda d: d["sections"][1].pop(), id="row too short"),
        pytest.param(lambda d: d["sections"].reverse(), id="out of order"),
        pytest.param(lambda d: d["sections"].pop(), id="not up to the footer"),
        pytest.param(_row(0, 0, "x"), id="no topic id"),
        pytest.param(_row(0, 0, str(A).upper().replace("0", "A")), id="topic id in capitals"),
        pytest.param(_row(0, 1, -1), id="partition -1"),
        pytest.param(_row(0, 1, True), id="partition true"),
        pytest.param(_row(0, 1, 1e3), id="partition a float"),
        pytest.param(_row(0, 3, 150), id="empty range"),
        pytest.param(_row(0, 4, 1 << 53), id="offset beyond the format"),
        pytest.param(_row(0, 4, 151), id="overlapping offsets"),
        pytest.param(_row(1, 5, 699), id="overlapping bytes"),
        pytest.param(_row(1, 5, 701), id="gap of bytes"),
        pytest.param(_row(0, 6, 0), id="no bytes"),
        pytest.param(_row(0, 7, 1 << 32), id="checksum beyond 32 bits"),
        pytest.param(_row(0, 8, 51), id="more records than offsets"),
        pytest.param(_row(0, 9, -2), id="timestamp -2"),
        pytest.param(_row(2, 0, str(B)), id="topics out of order"),
    ],
)
def test_footers_that_cannot_be_are_refused(change: Callable[[dict[str, Any]], None]) -> None:
    document = plain()
    data = object_of(document)
    assert decode_footer(data, END + len(data)).sections == SECTIONS
    change(document)
    data = object_of(document)
    with pytest.raises(CorruptionError):
        decode_footer(data, END + len(data))


def test_sections_that_readers_would_refuse_are_not_written() -> None:
    source = random.Random(7)
    for _ in range(50):
        shuffled = list(SECTIONS)
        while tuple(shuffled) == SECTIONS:
            source.shuffle(shuffled)
        with pytest.raises(ValueError, match=r"section|order|overlap"):
            whole(tuple(shuffled))
    with pytest.raises(ValueError, match="cut"):
        encode_footer("cluster", 0, 0, SECTIONS, STAMP)


def test_a_footer_that_inflates_beyond_its_bound_is_refused() -> None:
    packer = zlib.compressobj(9, wbits=31)
    body = b"".join(packer.compress(b" " * (1 << 20)) for _ in range(300)) + packer.flush()
    length = len(body).to_bytes(4, "big")
    data = body + length + crc32c(body + length).to_bytes(4, "big") + b"FIRNTAIL"
    with pytest.raises(CorruptionError, match="inflates beyond"):
        decode_footer(data, len(data))
