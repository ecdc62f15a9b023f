"""Records as readable text, JSON or hex, and filters of records. [P]"""

from __future__ import annotations

import base64
import contextlib
import json
import re
from typing import Any, Final, NamedTuple

from service.records.decode import Record

AUTO: Final = "auto"
TEXT: Final = "text"
JSON: Final = "json"
HEX: Final = "hex"
FORMATS: Final = (AUTO, TEXT, JSON, HEX)
PREVIEW: Final = 400
"""Characters that a row shows unfolded."""
MOST_SHOWN: Final = 16_384
"""Most bytes of a key or value on a page; a download has all."""
PAGE_BYTES: Final = 2 << 20
"""Approximate number of bytes of all keys and values on a page."""
MOST_INDENT: Final = 32
_SPREAD: Final = 4
"""Greatest factor by which indented JSON may grow."""
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s"{}\[\],:]+', re.DOTALL)

_CONTROLS: Final = bytes(n for n in range(32) if n not in b"\t\n\r")


class Shown(NamedTuple):
    """One key or value as text. `what` is its format; `is_cut`: `text` is not complete."""

    text: str
    what: str
    size: int | None
    is_cut: bool


class Decoded(NamedTuple):
    """A key or value by its schema. `what`: the kind of schema, or, without `text`, why it is not decoded."""

    text: str | None
    what: str


class RecordFilter(NamedTuple):
    """Filter for records whose key, value or headers contain `needle`, ignoring case."""

    needle: bytes = b""

    def wants(self, record: Record) -> bool:
        if not self.needle:
            return True
        needle = self.needle.lower()
        fields = [record.key, record.value]
        for name, value in record.headers:
            fields += [name.encode() if isinstance(name, str) else name, value]
        return any(needle in field.lower() for field in fields if field)


def most_shown(records: int) -> int:
    """Return the most bytes of each key and value on a page with this many records."""
    return min(max(PAGE_BYTES // max(2 * records, 1), 2 * PREVIEW), MOST_SHOWN)


def shown(data: bytes | None, form: str, most: int = MOST_SHOWN) -> Shown:
    """Return `data` in a format; ``auto`` picks JSON, else text, else hex.

    At most `most` bytes are shown.
    """
    if data is None:
        return Shown("null", "null", None, False)
    part, is_cut = data[:most], len(data) > most
    if form in (AUTO, JSON) and not is_cut and (pretty := _pretty(data)) is not None:
        return Shown(pretty, "JSON", len(data), False)
    if form in (AUTO, TEXT, JSON) and (words := _text(part, is_cut, form != AUTO)) is not None:
        return Shown(words, "text", len(data), is_cut)
    return Shown(hex_lines(part), "hex", len(data), is_cut)


def _pretty(data: bytes) -> str | None:
    """Return a JSON object or array with indentation; None for anything else."""
    head = data.lstrip()[:1]
    if head not in (b"{", b"["):
        return None
    try:
        written = data.decode("utf-8")
        # Only a check: numbers, repeated names and escapes are shown as they were written.
        json.loads(written)
    except (ValueError, RecursionError):
        return None
    found = _spread(written)
    return found if len(found) <= _SPREAD * max(len(data), PREVIEW) else None


def _spread(written: str) -> str:
    """Return valid JSON with a line for each member."""
    parts: list[str] = []
    depth, before = 0, ""
    for token in _TOKEN.findall(written):
        if token in ("}", "]"):
            depth -= 1
            if before not in ("{", "["):
                parts.append(_line(depth))
        elif before in ("{", "[", ","):
            parts.append(_line(depth))
        parts.append(": " if token == ":" else token)
        if token in ("{", "["):
            depth += 1
        before = token
    return "".join(parts)


def _line(depth: int) -> str:
    return "\n" + "  " * min(depth, MOST_INDENT)


def _text(data: bytes, is_cut: bool, anyway: bool) -> str | None:
    for cut in range(4 if is_cut else 1):
        try:
            words = data[: len(data) - cut].decode("utf-8")
        except UnicodeDecodeError:
            continue
        odd = sum(not (c.isprintable() or c in "\r\n\t") for c in words)
        return words if anyway or odd <= len(words) // 10 else None
    return data.decode("utf-8", "backslashreplace") if anyway else None


def hex_lines(data: bytes) -> str:
    """Return sixteen bytes a line, as hex editors do."""
    lines = []
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        plain = "".join(chr(b) if 0x20 <= b < 0x7F else "." for b in row)
        lines.append(f"{at:08x}  {row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}  {plain}")
    return "\n".join(lines)


def as_json_line(partition: int, record: Record) -> str:
    """Return one record as a line of JSON; bytes that are not text become base64, marked as such."""
    row: dict[str, Any] = {
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _plain(record.key),
        "value": _plain(record.value),
        "headers": [
            [name if isinstance(name, str) else _plain(name), _plain(value)] for name, value in record.headers
        ],
    }
    return json.dumps(row, ensure_ascii=False)


def _plain(data: bytes | None) -> object:
    if data is None:
        return None
    with contextlib.suppress(UnicodeDecodeError):
        # Each unprintable byte would become six characters.
        if len(data) - len(data.translate(None, _CONTROLS)) <= len(data) // 10:
            return data.decode("utf-8")
    return {"base64": base64.b64encode(data).decode("ascii")}
