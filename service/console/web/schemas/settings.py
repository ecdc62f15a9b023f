"""Settings of decoding: a schema registry, and a file of schemas. [P]

The file is JSON, a list of objects, as in docs/console.md. One with ``topic`` and ``part`` names the schema
of a topic's keys or values, which have no header; one with ``id`` that of a schema id.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from service.base.errors import ConfigError

TYPES: Final = ("AVRO", "JSON", "PROTOBUF")
PARTS: Final = ("key", "value")
MOST_FILE: Final = 4 << 20
MOST_SCHEMAS: Final = 1_000
_FIELDS: Final = frozenset({"topic", "part", "id", "type", "file", "schema", "message"})


class LocalSchema(NamedTuple):
    """A schema of the file: of a topic's keys or values, or of an id."""

    kind: str
    text: str
    topic: str | None = None
    part: str = "value"
    id: int | None = None
    message: str | None = None


class DecodeSettings(NamedTuple):
    """`registry`: properties of confluent-kafka's registry client, its URL among them; None: no registry."""

    registry: dict[str, str] | None = None
    local: tuple[LocalSchema, ...] = ()

    @property
    def is_any(self) -> bool:
        return self.registry is not None or bool(self.local)

    def as_json(self) -> dict[str, Any]:
        return {"registry": self.registry, "local": [one._asdict() for one in self.local]}


def settings_of_json(said: dict[str, Any]) -> DecodeSettings:
    """Return what `as_json` was called on."""
    return DecodeSettings(said["registry"], tuple(LocalSchema(**one) for one in said["local"]))


def parse_schema_file(text: str, read: Callable[[str], str]) -> tuple[LocalSchema, ...]:
    """Parse a file of schemas; `read` returns the text of a file named in it. Raises `ConfigError`."""
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"not JSON: {e}") from e
    if not isinstance(rows, list) or len(rows) > MOST_SCHEMAS:
        raise ConfigError(f"expected a JSON list of at most {MOST_SCHEMAS} objects")
    return tuple(_local(number, row, read) for number, row in enumerate(rows, start=1))


def _local(number: int, row: Any, read: Callable[[str], str]) -> LocalSchema:
    def wrong(words: str) -> ConfigError:
        return ConfigError(f"entry {number}: {words}")

    if not isinstance(row, dict):
        raise wrong("expected an object")
    if unknown := sorted(row.keys() - _FIELDS):
        raise wrong(f"unknown field {unknown[0]!r}")
    kind, part = str(row.get("type", "AVRO")).upper(), row.get("part", "value")
    topic, number_ = row.get("topic"), row.get("id")
    if kind not in TYPES:
        raise wrong(f"type {kind!r} is not one of {', '.join(TYPES)}")
    if part not in PARTS:
        raise wrong(f"part {part!r} is not one of {', '.join(PARTS)}")
    if (topic is None) == (number_ is None):
        raise wrong("expected either a topic or an id")
    if topic is not None and not isinstance(topic, str):
        raise wrong("the topic is not text")
    if number_ is not None and (type(number_) is not int or not 0 <= number_ < 2**31):
        raise wrong("the id is not a number from 0 to 2147483647")
    message = row.get("message")
    if message is not None and not isinstance(message, str):
        raise wrong("the message is not text")
    if isinstance(row.get("file"), str):
        text = read(row["file"])
    elif "schema" in row:
        text = row["schema"] if isinstance(row["schema"], str) else json.dumps(row["schema"])
    elif kind == "JSON":
        text = ""
    else:
        raise wrong("expected a file or a schema")
    return LocalSchema(kind, text, topic, part, number_, message)
