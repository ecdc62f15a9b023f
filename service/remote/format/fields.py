"""Typed, bounded access to JSON from the bucket, so that no document can crash or inflate a reader. [P]"""

from __future__ import annotations

import json
from typing import Any, TypeVar
from uuid import UUID

from service.base.errors import CorruptionError
from service.remote.format.keys import MAX_EPOCH

T = TypeVar("T")
MAX_INTEGER = (1 << 53) - 1
"""Greater integers are not carried exactly by every JSON parser: since version 2 none is written."""
MAX_STRING = 4096
MAX_LEADER_EPOCHS = 100_000


_LONG_BYTES = 32 << 10
"""Size from which a document is parsed with a call of Python for each object in it: the parser itself holds
the GIL, 0.3 ms for that size."""


def _same(found: dict[str, Any]) -> dict[str, Any]:
    return found


def parse_json_object(data: bytes, what: str) -> dict[str, Any]:
    """Return `data` as one JSON object; raise `CorruptionError` when it is anything else."""
    try:
        document = json.loads(data, object_hook=_same if len(data) > _LONG_BYTES else None)
    except (ValueError, RecursionError) as e:
        raise CorruptionError(f"{what}: not JSON: {e}") from e
    if not isinstance(document, dict):
        raise CorruptionError(f"{what}: a JSON {type(document).__name__}, not an object")
    return document


def int_field(document: dict[str, Any], name: str, low: int, high: int) -> int:
    """Return an integer between `low` and `high`, both inclusive."""
    return _integer(document.get(name), name, low, high)


def _integer(value: Any, name: str, low: int, high: int) -> int:
    # Not isinstance: true and false are not integers. Called ten times for each segment of a manifest.
    if type(value) is not int or not low <= value <= high:
        raise CorruptionError(f"{name}: {_shown(value)} is not an integer from {low} to {high}")
    return value


def optional_int_field(document: dict[str, Any], name: str, high: int) -> int:
    """Return an integer from 0 to `high`, or -1 for "none"."""
    return int_field(document, name, -1, high)


def later_int_field(document: dict[str, Any], name: str, low: int, high: int, absent: T) -> int | T:
    """Return an integer as `int_field` does, or `absent` where an older writer did not write the field."""
    return int_field(document, name, low, high) if name in document else absent


def saturated(timestamp: int) -> int:
    """Return a timestamp as JSON carries it: the greatest integer stands for itself and all later
    timestamps."""
    return min(timestamp, MAX_INTEGER)


def str_field(document: dict[str, Any], name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str) or len(value) > MAX_STRING:
        raise CorruptionError(f"{name}: {_shown(value)} is not a string of at most {MAX_STRING} characters")
    return value


def uuid_field(document: dict[str, Any], name: str) -> UUID:
    return uuid_value(str_field(document, name), name)


def uuid_value(value: object, name: str) -> UUID:
    """Return `value` as a UUID in its canonical form."""
    try:
        parsed = UUID(value) if isinstance(value, str) else None
    except ValueError:
        parsed = None
    if parsed is None:
        raise CorruptionError(f"{name}: {_shown(value)} is not a UUID")
    if str(parsed) != value:
        raise CorruptionError(f"{name}: {_shown(value)} is not a UUID in its canonical form")
    return parsed


def uuids_field(document: dict[str, Any], name: str, max_length: int) -> tuple[UUID, ...]:
    """Return a list of UUIDs."""
    return tuple(uuid_value(value, name) for value in list_field(document, name, max_length))


def object_field(document: dict[str, Any], name: str) -> dict[str, Any]:
    value = document.get(name)
    if not isinstance(value, dict):
        raise CorruptionError(f"{name}: {_shown(value)} is not an object")
    return value


def list_field(document: dict[str, Any], name: str, max_length: int) -> list[Any]:
    value = document.get(name)
    if not isinstance(value, list) or len(value) > max_length:
        raise CorruptionError(f"{name}: not a list of at most {max_length} items")
    return value


def objects_field(document: dict[str, Any], name: str, max_length: int) -> list[dict[str, Any]]:
    """Return a list of JSON objects."""
    values = list_field(document, name, max_length)
    for value in values:
        if not isinstance(value, dict):
            raise CorruptionError(f"{name}: {_shown(value)} is not an object")
    return values


def epochs_field(document: dict[str, Any], name: str, most: int = MAX_INTEGER) -> tuple[tuple[int, int], ...]:
    """Return pairs of leader epoch and first offset of at most `most`, both strictly rising."""
    pairs: list[tuple[int, int]] = []
    for item in list_field(document, name, MAX_LEADER_EPOCHS):
        if not isinstance(item, list) or len(item) != 2:
            raise CorruptionError(f"{name}: {_shown(item)} is not a pair of epoch and offset")
        epoch, start = _integer(item[0], "epoch", 0, MAX_EPOCH), _integer(item[1], "offset", 0, most)
        if pairs and (epoch <= pairs[-1][0] or start <= pairs[-1][1]):
            raise CorruptionError(f"{name}: epoch {epoch} at offset {start} does not rise")
        pairs.append((epoch, start))
    return tuple(pairs)


def _shown(value: object) -> str:
    text = repr(value) if not isinstance(value, (dict, list)) else type(value).__name__
    return text if len(text) <= 80 else text[:77] + "…"
