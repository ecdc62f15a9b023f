"""Names that peers choose cannot forge lines of the log."""

from __future__ import annotations

import pytest

from service.base.printable import printable, quoted

NASTY = "t\n2026-01-01 00:00:00,000 INFO service: all is well\r\x1b[2J\x1b]0;title\x07‮gpj.\x9b31m\u2028\x00"


@pytest.mark.parametrize("show", [printable, quoted])
def test_nothing_that_moves_the_cursor_is_left(show: object) -> None:
    assert callable(show)
    shown = show(NASTY)
    assert shown.isprintable()
    assert r"t\n2026" in shown
    assert r"\x1b[2J" in shown
    assert r"\u202egpj" in shown


@pytest.mark.parametrize("text", ["t", "größe-µ-日本", "a b", "", "x" * 256])
def test_printable_text_is_unchanged(text: str) -> None:
    assert printable(text) == text
    assert quoted(text) == repr(text)


def test_half_a_surrogate_pair_is_escaped() -> None:
    assert printable("a\ud800b") == r"a\ud800b"


def test_long_names_are_cut_before_they_are_escaped() -> None:
    assert printable("\n" * 100_000) == r"\n" * 256 + "… (100000 characters)"
    assert quoted("y" * 32_767, 3) == "'yyy'… (32767 characters)"


def test_a_quote_cannot_be_closed_from_within() -> None:
    assert quoted("me', API key 0") == '"me\', API key 0"'
