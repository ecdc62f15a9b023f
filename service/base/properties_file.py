"""Properties files for a node or a Spark session.

They are read before a node exists, and so without its disk port.
"""

from __future__ import annotations

from pathlib import Path

from service.base.errors import ConfigError
from service.base.properties import parse_properties

MAX_FILE_BYTES = 1 << 20


def load_properties(path: Path | str) -> dict[str, str]:
    """Read a properties file (UTF-8). Of several equal keys the last one wins, as in Java.

    Raises `ConfigError` when the file cannot be read, is not text or is over 1 MiB.
    """
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
        raise ConfigError(f"{path}: line {line} is not UTF-8 text") from None
    try:
        return parse_properties(text)
    except ConfigError as e:
        raise ConfigError(f"{path}: {e}") from e
