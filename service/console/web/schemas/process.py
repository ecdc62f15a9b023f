"""The decoder's process: reads lines of JSON from standard input, writes one for each value.

It has a limit of memory, opens nothing but the registry, and ends with its input. The console ends it when a
value takes too long.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import sys
from typing import Any, Final

from service.console.web.schemas.protobuf import quiet_output
from service.console.web.schemas.registry import SchemaIds
from service.console.web.schemas.settings import settings_of_json
from service.console.web.schemas.values import SchemaUnavailable, Undecodable, ValueReader

MEMORY_BYTES: Final = 2 << 30
"""Address space, most of which libraries map and never touch."""


def _bound_memory() -> None:
    import resource

    # Where the system has no such limit, time alone bounds a value.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def decoded(reader: ValueReader, topic: str, part: str, data: bytes) -> list[str | bool | None]:
    """Return the text and the kind of schema, None and why it is not decoded, or nothing for other data.

    A third item, True, says that the schema cannot be had for now.
    """
    try:
        found = reader.read(topic, part, data)
    except SchemaUnavailable as e:
        return [None, str(e), True]
    except Undecodable as e:
        return [None, str(e)]
    except (MemoryError, RecursionError) as e:
        return [None, f"the value is too large to be decoded ({type(e).__name__})"]
    return [] if found is None else list(found)


def main() -> None:
    _bound_memory()
    out = os.fdopen(quiet_output(), "wb")
    lines = sys.stdin.buffer
    settings = settings_of_json(json.loads(lines.readline()))
    find = None if settings.registry is None else SchemaIds(settings.registry).find
    reader = ValueReader(settings, find)
    for line in lines:
        values: list[Any] = json.loads(line)
        for topic, part, written in values:
            answer = decoded(reader, topic, part, base64.b64decode(written))
            out.write(json.dumps(answer).encode() + b"\n")
            out.flush()


if __name__ == "__main__":
    main()
