"""Properties files for a node or a Spark session.

They are read before a node exists, and so without its disk port.
"""

from __future__ import annotations

from pathlib import Path

from service.base.errors import ConfigError
from service.base.properties import MalformedProperty, PropertyLine, parse_property_lines

MAX_FILE_BYTES = 1 << 20


def load_properties(path: Path | str) -> dict[str, str]:
    """Read a properties file (UTF-8). Of several equal keys the last one wins, as in Java.

    Raises `ConfigError` when the file cannot be read, is not text or is over 1 MiB.
    """
    return {line.key: line.value for line in load_property_lines(path)}


def load_property_lines(path: Path | str) -> list[PropertyLine]:
    """Read a properties file as `load_properties` does, with the place of each key."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as e:
        raise ConfigError(f"{path}: {e.strerror}") from e
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: a properties file over {MAX_FILE_BYTES} bytes is refused")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as e:  # its text, and a traceback's, would have a byte of a value
        line = data.count(b"\n", 0, e.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text") from None
    try:
        return list(parse_property_lines(text))
    except MalformedProperty as e:
        raise ConfigError(f"{path}:{e.number}: {e}") from None
