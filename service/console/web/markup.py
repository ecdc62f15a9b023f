"""HTML built from elements: all text is escaped. [P]

`Markup` is inserted unchanged, everything else is text. Unprintable characters (control, format,
bidirectional overrides) are shown as escapes, so that a key cannot rearrange its line.

>>> el("a", "<b>", href=link("/topic", name="a&b"))
'<a href="/topic?name=a%26b">&lt;b&gt;</a>'
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final

_VOID: Final = frozenset({"br", "hr", "img", "input", "link", "meta", "rect", "line", "path"})
_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~")


class Markup(str):
    """Valid HTML."""

    __slots__ = ()


Child = str | int | float | None | Iterable["Child"]


def visible(text: str) -> str:
    """Return `text` with escapes for unprintable characters except line ends and tabs."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape", "replace").decode("ascii")
        for c in text
    )


def text(value: object) -> Markup:
    """Return `value` as text of a page."""
    if isinstance(value, Markup):
        return value
    return Markup(escape(visible(str(value)), quote=True))


def exact(value: str) -> Markup:
    """Return `value` as the text of a field, which a form sends back: no character of it is changed."""
    # A line feed at the beginning of a text area is not of its text.
    return Markup(("\n" if value.startswith("\n") else "") + escape(value, quote=True))


def join(*children: Child) -> Markup:
    """Return the children one after the other, without None."""
    parts: list[str] = []
    _collect(parts, children)
    return Markup("".join(parts))


def _collect(parts: list[str], children: Iterable[Child]) -> None:
    for child in children:
        if isinstance(child, str | int | float):
            parts.append(text(child))
        elif child is not None:
            _collect(parts, child)


def el(tag: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Markup:
    """Return one element. ``class_`` is class, ``data_tip`` data-tip; None and False omit an attribute."""
    head = [tag]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        name = name.rstrip("_").replace("_", "-")
        head.append(name if value is True else f'{name}="{text(value)}"')
    opened = f"<{' '.join(head)}>"
    if tag in _VOID and not children:
        return Markup(opened if tag not in ("rect", "line", "path") else opened[:-1] + "/>")
    return Markup(f"{opened}{join(children)}</{tag}>")


def link(path: str, /, **query: str | int | None) -> str:
    """Return a path with its query, percent-encoded, without None and empty values."""
    pairs = [f"{encoded(k)}={encoded(str(v))}" for k, v in query.items() if v is not None and v != ""]
    return path + ("?" + "&".join(pairs) if pairs else "")


def encoded(value: str) -> str:
    """Return `value` percent-encoded, for a query."""
    return "".join(chr(b) if b in _PLAIN else f"%{b:02X}" for b in value.encode("utf-8", "replace"))
