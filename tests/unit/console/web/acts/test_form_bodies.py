"""Bodies of forms, as the standard library reads them, but in pieces: none holds the interpreter for long."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode

import pytest

from service.console.web.acts import fields, routes
from service.console.web.acts.routes import parsed_form


@pytest.mark.parametrize("before", range(5))
def test_a_text_is_the_same_however_it_is_cut(monkeypatch: pytest.MonkeyPatch, before: int) -> None:
    monkeypatch.setattr(routes, "_PIECE", 7)
    values = {"a": "x" * before + "é💣 + & = %41 \x00" * 5, "": "1", "b": "", "%": "%"}
    body = urlencode(values)
    assert parsed_form(body.encode()) == values == dict(parse_qsl(body, keep_blank_values=True))
    for odd in ("a=%", "a=%4", "a=%zz%", "a=" + "%" * 20, "a==&b=c=d"):
        assert parsed_form(odd.encode()) == dict(parse_qsl(odd, keep_blank_values=True))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("", "has no value"),
        ("a", "has no value"),
        ("a=1&", "has no value"),
        ("a=1&a=2", "is there twice"),
        ("a=&a=", "is there twice"),
        ("a=%ff", "invalid start byte"),
        ("a=%ed%a0%80", "invalid continuation byte"),
    ],
)
def test_a_body_that_is_no_form_is_refused(body: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parsed_form(body.encode())


def test_many_fields_are_refused_before_they_are_read() -> None:
    with pytest.raises(ValueError, match="many fields"):
        parsed_form(b"&".join(b"f%d=1" % n for n in range(17)))
    assert len(parsed_form(b"&".join(b"f%d=1" % n for n in range(16)))) == 16


def test_large_json_is_checked_by_code_that_lets_others_run() -> None:
    """The standard library's scanner in C keeps the interpreter until a whole megabyte is read."""
    scanner = fields._JSON.scan_once
    assert type(scanner).__module__ == "builtins", scanner
    assert type(scanner).__name__ == "function"
