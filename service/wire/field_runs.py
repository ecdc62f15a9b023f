"""Fields of fixed size that follow one another: read and written by one call of `struct`. [P]

A message is mostly such fields, and each call of its own costs as much as the work in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from struct import Struct
from typing import Any, NamedTuple

from service.wire.primitives import Cursor


class FixedLayout(NamedTuple):
    """Layout of a value of fixed size in a message: `code` of `struct`, and conversions from what that reads
    and to what it writes, None where there are none."""

    code: str
    load: Callable[[Any], Any] | None = None
    dump: Callable[[Any], Any] | None = None


class FieldRun:
    """Two or more fields of fixed size, one behind the other."""

    __slots__ = ("_dumps", "_get", "_loads", "_names", "_struct")

    def __init__(self, fields: Sequence[tuple[str, FixedLayout]]) -> None:
        self._names = tuple(name for name, _ in fields)
        self._struct = Struct(">" + "".join(layout.code for _, layout in fields))
        self._get: Callable[[Any], tuple[Any, ...]] = attrgetter(*self._names)
        self._loads = tuple((name, one.load) for name, one in fields if one.load is not None)
        self._dumps = tuple((at, one.dump) for at, (_, one) in enumerate(fields) if one.dump is not None)

    def read(self, cursor: Cursor, values: dict[str, Any]) -> None:
        """Read the fields into `values`. Raises `struct.error` where the message ends before them."""
        values.update(zip(self._names, self._struct.unpack_from(cursor.data, cursor.position), strict=True))
        cursor.position += self._struct.size
        for name, load in self._loads:
            values[name] = load(values[name])

    def write(self, out: bytearray, message: Any) -> None:
        """Write the fields of `message`. Raises `struct.error` for a value that its field cannot hold."""
        found: Sequence[Any] = self._get(message)
        if self._dumps:
            found = list(found)
            for at, dump in self._dumps:
                found[at] = dump(found[at])
        out += self._struct.pack(*found)
