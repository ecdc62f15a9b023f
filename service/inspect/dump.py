"""Output of dumps: lines for people, one JSON document for programs.

Both are written as the rows come, so a segment of a gigabyte costs no memory. Where the file is damaged, the
good rows are printed and the error follows: the JSON is closed first, with an `error` at its end, so it
parses.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, TextIO
from uuid import UUID

from service.base.errors import CorruptionError
from service.base.printable import escaped

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Dump:
    """A dump. `kind` names the file's format; `head` is known at once; each table is a name and rows to come.

    In JSON the fields of `head` lie at the top level beside `kind` and the tables.
    """

    kind: str
    head: Row
    tables: tuple[tuple[str, Iterable[Row]], ...] = ()


def write_json(dump: Dump, out: TextIO) -> None:
    """Print one JSON document; a `CorruptionError` from the rows is raised once the document is closed."""
    out.write(json.dumps({"kind": dump.kind, **dump.head}, default=plain, ensure_ascii=False)[:-1])
    error: CorruptionError | None = None
    for name, rows in dump.tables:
        out.write(f", {json.dumps(name)}: [")
        separator = "\n  "
        try:
            for row in rows:
                out.write(separator + json.dumps(row, default=plain, ensure_ascii=False))
                separator = ",\n  "
        except CorruptionError as e:
            error = e
        out.write("]")
        if error is not None:
            out.write(f', "error": {json.dumps(str(error))}')
            break
    out.write("}\n")
    if error is not None:
        raise error


def write_text(dump: Dump, out: TextIO) -> None:
    """Print `key: value` lines, then one line for each row."""
    out.write(f"{dump.kind}\n")
    for key, value in dump.head.items():
        out.write(f"  {key}: {_word(value)}\n")
    for name, rows in dump.tables:
        out.write(f"{name}:\n")
        for row in rows:
            out.write("  " + " ".join(f"{key}: {_word(value)}" for key, value in row.items()) + "\n")


def plain(value: Any) -> Any:
    """Convert a value that JSON lacks: bytes to text or hex, ids to strings, records to objects."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return {"hex": data.hex()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, datetime):
        return int(value.timestamp() * 1000)
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (tuple, set, frozenset, range)):
        return list(value)
    raise TypeError(f"{type(value).__name__} in a dump")


def _word(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, (str, UUID)):
        return escaped(str(value))
    return json.dumps(value, default=plain, ensure_ascii=False)
