"""Elements of a page: text stays text."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.console.web.markup import Markup, el, join, link, visible


class _Parsed(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, attrs))

    def handle_data(self, data: str) -> None:
        self.words += data


@given(st.text(), st.text())
def test_text_and_attributes_come_back_as_they_were(words: str, value: str) -> None:
    words, value = words.replace("\r", ""), value.replace("\r", "")
    found = _Parsed(el("p", words, title=value))
    assert found.tags == [("p", [("title", visible(value))])]
    assert found.words == visible(words)


def test_markup_is_taken_as_it_is_and_nothing_else() -> None:
    assert el("p", el("b", "<"), None, ["&", 3]) == "<p><b>&lt;</b>&amp;3</p>"
    assert el("p", Markup("<i></i>")) == "<p><i></i></p>"
    assert isinstance(join("a"), Markup)


def test_attributes_that_are_off_are_left_out() -> None:
    assert el("input", checked=True, disabled=False, value=None, data_a="b") == '<input checked data-a="b">'


@pytest.mark.parametrize("words", ["\u202eevil", "a\x00b", "\x1b[2J", "\ufeff", "\u2066x"])
def test_unprintable_characters_are_shown_as_escapes(words: str) -> None:
    assert visible(words).isprintable()
    assert "\\" in visible(words)


def test_links_carry_what_they_are_given() -> None:
    assert link("/topic", name="a b&c=d", page=None, q="") == "/topic?name=a%20b%26c%3Dd"
