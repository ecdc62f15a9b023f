"""Lines of a descriptor: whole however they arrive, bounded, with a turn for the caller while none comes."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.cli.line_input import LineInput
from service.cli.record_lines import LineError


def lines_of(pieces: Sequence[bytes], most: int = 1000) -> list[bytes]:
    """Return the lines of a pipe into which `pieces` are written, one read each."""
    reader, writer = os.pipe()
    found: list[bytes] = []
    left = [*pieces]

    def next_piece() -> None:
        if left:
            os.write(writer, left.pop(0))
        else:
            os.close(writer)

    lines = LineInput(reader, most=most)
    lines.idle_ms = 0
    try:
        for batch in lines.batches(next_piece):
            assert lines.number == len(found)
            found += batch
        assert lines.number == len(found)
    finally:
        os.close(reader)
    return found


@given(st.lists(st.text("ab\n\r\0", min_size=1, max_size=8).map(str.encode), max_size=8))
def test_lines_are_the_same_however_they_arrive(pieces: list[bytes]) -> None:
    text = b"".join(pieces)
    expected = text.split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    assert lines_of(pieces) == expected


def test_a_line_that_is_too_long_is_named_before_it_is_held() -> None:
    assert lines_of([b"x" * 10, b"\n"], most=10) == [b"x" * 10]
    with pytest.raises(LineError, match="line 2 has more than 10 bytes"):
        lines_of([b"a\n", b"x" * 6, b"x" * 5], most=10)


def test_the_caller_has_turns_while_nothing_arrives() -> None:
    reader, writer = os.pipe()
    turns = threading.Semaphore(0)

    def idle() -> None:
        turns.release()

    def write() -> None:
        turns.acquire()
        os.write(writer, b"late\n")
        os.close(writer)

    threading.Thread(target=write).start()
    lines = LineInput(reader)
    lines.idle_ms = 1
    assert [*lines.batches(idle)] == [[b"late"]]
    os.close(reader)
