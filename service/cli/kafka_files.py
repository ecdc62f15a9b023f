"""Files of Kafka's own tools: JSON of reassignments, elections and deletions, CSV of offsets."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from service.base.errors import ConfigError
from service.client.admin_models import Place

_VERSION: Final = 1
_MOST_BYTES: Final = 256 << 20
ANY_DIRECTORY: Final = "any"
Replicas = Mapping[Place, Sequence[int]]


def _document(path: str, key: str) -> list[Any]:
    """Return the list under `key` of a JSON document of version 1. Raises `ConfigError` with the file."""
    text = _text(path)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"{path} is not JSON: {e}") from e
    if not isinstance(found, dict) or found.get("version", _VERSION) != _VERSION:
        raise ConfigError(f"{path} is not a JSON object of version {_VERSION}")
    rows = found.get(key)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows) or not rows:
        raise ConfigError(f"{path} has no list {key!r} of objects")
    return rows


def _text(path: str) -> str:
    file = Path(path)
    if file.stat().st_size > _MOST_BYTES:
        raise ConfigError(f"{path} is larger than {_MOST_BYTES} bytes")
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as e:
        raise ConfigError(f"{path} is not UTF-8") from e


def _is_number(value: object, most: int = 2**31 - 1, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _place(path: str, row: dict[str, Any]) -> Place:
    topic, number = row.get("topic"), row.get("partition")
    if not isinstance(topic, str) or not topic or not _is_number(number):
        raise ConfigError(f"{path}: {json.dumps(row)} does not name topic and partition")
    assert isinstance(number, int)
    return topic, number


def _unique(path: str, rows: Iterable[tuple[Place, Any]]) -> dict[Place, Any]:
    found: dict[Place, Any] = {}
    for place, value in rows:
        if place in found:
            raise ConfigError(f"{path} names {place[0]}-{place[1]} twice")
        found[place] = value
    return found


def read_reassignment(path: str) -> dict[Place, tuple[int, ...]]:
    """Return the replicas that a file of kafka-reassign-partitions wants. Raises `ConfigError`."""
    return _unique(path, _wanted_replicas(path))


def _wanted_replicas(path: str) -> Iterator[tuple[Place, tuple[int, ...]]]:
    for row in _document(path, "partitions"):
        place = _place(path, row)
        name, replicas = f"{place[0]}-{place[1]}", row.get("replicas")
        if not isinstance(replicas, list) or not replicas or not all(map(_is_number, replicas)):
            raise ConfigError(f"{path}: {name} has no list of replicas")
        if len(set(replicas)) != len(replicas):
            raise ConfigError(f"{path}: {name} names a replica twice")
        directories = row.get("log_dirs", [])
        if not isinstance(directories, list) or any(one != ANY_DIRECTORY for one in directories):
            raise ConfigError(
                f"{path}: {name} names log directories: Firn's brokers choose them; write"
                f' "{ANY_DIRECTORY}", or leave log_dirs out'
            )
        yield place, tuple(replicas)


def reassignment_json(wanted: Replicas) -> dict[str, object]:
    """Return the document of kafka-reassign-partitions for these replicas."""
    return {
        "version": _VERSION,
        "partitions": [
            {
                "topic": topic,
                "partition": number,
                "replicas": list(replicas),
                "log_dirs": [ANY_DIRECTORY] * len(replicas),
            }
            for (topic, number), replicas in sorted(wanted.items())
        ],
    }


def read_topics_to_move(path: str) -> list[str]:
    """Return the topics of a `--topics-to-move-json-file`. Raises `ConfigError`."""
    names = [row.get("topic") for row in _document(path, "topics")]
    if not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"{path}: an entry of topics has no topic")
    if len(set(names)) != len(names):
        raise ConfigError(f"{path} names a topic twice")
    return [str(name) for name in names]


def read_election(path: str) -> list[Place]:
    """Return the partitions of a `--path-to-json-file` of kafka-leader-election. Raises `ConfigError`."""
    return list(_unique(path, ((_place(path, row), None) for row in _document(path, "partitions"))))


def read_record_offsets(path: str) -> dict[Place, int]:
    """Return by partition the offset of a `--offset-json-file` of kafka-delete-records. Raises
    `ConfigError`."""
    rows = _document(path, "partitions")
    for row in rows:
        if not _is_number(row.get("offset"), 2**63 - 1, -1):
            raise ConfigError(f"{path}: {json.dumps(row)} has no offset")
    return _unique(path, ((_place(path, row), int(row["offset"])) for row in rows))


def read_group_offsets(path: str, groups: Sequence[str]) -> dict[str, dict[Place, int]]:
    """Return the offsets of a file that `--export` wrote, ours or kafka-consumer-groups', by group.

    Rows are topic, partition and offset, of the one group that is named, or begin with the group. Raises
    `ConfigError` with file and line.
    """
    found: dict[str, dict[Place, int]] = {}
    for line, row in _csv_rows(path):
        if not row:
            continue
        if len(row) == 3 and len(groups) == 1:
            row = [groups[0], *row]
        if len(row) != 4:
            raise ConfigError(f"{path}, line {line}: expected [group,]topic,partition,offset")
        group, topic, number, offset = (cell.strip() for cell in row)
        if not (topic and number.isascii() and number.isdigit() and offset.isascii() and offset.isdigit()):
            raise ConfigError(f"{path}, line {line}: partition and offset have to be numbers")
        of_group = found.setdefault(group, {})
        if (topic, int(number)) in of_group:
            raise ConfigError(f"{path}, line {line}: {topic}-{number} is there twice")
        of_group[topic, int(number)] = int(offset)
    return found


def _csv_rows(path: str) -> Iterator[tuple[int, list[str]]]:
    line = 0
    try:
        for line, row in enumerate(csv.reader(io.StringIO(_text(path))), 1):
            yield line, row
    except csv.Error as e:
        raise ConfigError(f"{path}, line {line + 1}: {e}") from None


_LONG: Final = 24
_SAFE_FROM: Final = "-"
"""Kafka's writer puts longer texts, and those with a character below this one, in quotes."""


def group_offsets_csv(offsets: Mapping[str, Mapping[Place, int]], *, has_group: bool) -> str:
    """Return the rows of offsets as kafka-consumer-groups exports them: with the group unless one was
    named."""
    rows = (
        [*([_cell(group)] if has_group else []), _cell(topic), str(number), str(offset)]
        for group, of_group in sorted(offsets.items())
        for (topic, number), offset in sorted(of_group.items())
    )
    return "".join(",".join(row) + "\n" for row in rows)


def _cell(text: str) -> str:
    if len(text) <= _LONG and all(character >= _SAFE_FROM for character in text):
        return text
    return '"' + text.replace('"', '""') + '"'
