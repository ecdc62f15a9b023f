"""Schemas of a registry by their ids, through confluent-kafka's client. For the decoder's process.

The client bounds no response: the process has a limit of memory and is ended when it takes too long. Failures
are remembered for a while, so that a registry that is away does not delay each value.
"""

from __future__ import annotations

import time
from typing import Any, Final

from service.console.web.schemas.values import (
    MOST_KNOWN,
    MOST_REFERENCES,
    FoundSchema,
    RegistryError,
    Undecodable,
)

TIMEOUT_S: Final = 2.0
AGAIN_S: Final = 15.0
MOST_TEXT: Final = 1 << 20


class SchemaIds:
    """Schemas by id; failures for `AGAIN_S`."""

    def __init__(self, properties: dict[str, str]) -> None:
        self._properties = properties
        self._client: Any = None
        self._found: dict[int, FoundSchema] = {}
        self._failed: dict[int, tuple[float, str]] = {}
        self._away_until = 0.0

    def find(self, number: int) -> FoundSchema:
        """Return a schema with its references. Raises `RegistryError`."""
        if (known := self._found.get(number)) is not None:
            return known
        now = time.monotonic()
        until, why = self._failed.get(number, (0.0, ""))
        if now < until:
            raise RegistryError(why)
        if now < self._away_until:
            raise RegistryError("the schema registry does not answer")
        try:
            found = self._ask(number)
        except Undecodable as e:
            self._remember(number, str(e))
            raise
        self._found[number] = found
        if len(self._found) > MOST_KNOWN:
            del self._found[next(iter(self._found))]
        return found

    def _remember(self, number: int, why: str) -> None:
        self._failed[number] = (time.monotonic() + AGAIN_S, why)
        if len(self._failed) > MOST_KNOWN:
            del self._failed[next(iter(self._failed))]

    def _ask(self, number: int) -> FoundSchema:
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient
            from confluent_kafka.schema_registry.error import SchemaRegistryError
        except ImportError as e:
            raise RegistryError(f"the schema registry's client is not installed (extra schemas): {e}") from e
        try:
            if self._client is None:
                self._client = SchemaRegistryClient(
                    {"timeout": TIMEOUT_S, "max.retries": 0, **self._properties}
                )
            schema = self._client.get_schema(number)
            references: dict[str, str] = {}
            self._follow(schema, references)
        except SchemaRegistryError as e:
            raise RegistryError(f"schema {number}: the registry says: {e.error_message}"[:300]) from e
        except Undecodable:
            raise
        except MemoryError:
            raise
        except Exception as e:
            # Whatever its HTTP client and its parsers raise.
            self._away_until = time.monotonic() + AGAIN_S
            raise RegistryError(f"the schema registry does not answer ({type(e).__name__}: {e})"[:300]) from e
        return FoundSchema(str(schema.schema_type or "AVRO"), _checked(schema.schema_str), references)

    def _follow(self, schema: Any, found: dict[str, str]) -> None:
        """Add the schemas that one refers to, the deepest first."""
        for one in schema.references or ():
            name = str(one.name)
            if name in found:
                continue
            if len(found) >= MOST_REFERENCES:
                raise RegistryError(f"the schema refers to more than {MOST_REFERENCES} others")
            found[name] = ""  # a circle ends here
            there = self._client.get_version(one.subject, one.version).schema
            self._follow(there, found)
            del found[name]
            found[name] = _checked(there.schema_str)


def _checked(text: object) -> str:
    if not isinstance(text, str) or len(text) > MOST_TEXT:
        raise RegistryError("the registry's answer is not a schema")
    return text
