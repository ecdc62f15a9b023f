"""Properties files for a node or a Spark session.

They are read before a node exists, and so without its disk port.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from pathlib import Path
from typing import Final

from service.base.errors import ConfigError
from service.base.properties import MalformedProperty, PropertyLine, parse_property_lines

MAX_FILE_BYTES = 1 << 20
_LINE_END: Final = re.compile(rb"\r\n|\r|\n")


def load_properties(path: Path | str) -> dict[str, str]:
    """Read a properties file. Of several equal keys the last one wins, as in Java.

    It is UTF-8; its comments may be anything. Raises `ConfigError` when the file cannot be read, is not text
    or is over 1 MiB.
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
    text = _decoded(data, path)
    try:
        return list(parse_property_lines(text))
    except MalformedProperty as e:
        raise ConfigError(f"{path}:{e.number}: {e}") from None


def _decoded(data: bytes, path: Path | str) -> str:
    """Return the text without the mark that editors of Windows begin a file with."""
    lines = []
    goes_on = False
    for number, raw in enumerate(_LINE_END.split(data.removeprefix(BOM_UTF8)), start=1):
        is_comment = not goes_on and raw.lstrip(b" \t\f")[:1] in (b"#", b"!")
        try:
            lines.append(raw.decode("utf-8", "replace" if is_comment else "strict"))
        except UnicodeDecodeError:  # its text, and a traceback's, would have a byte of a value
            raise ConfigError(f"{path}:{number}: not UTF-8 text") from None
        goes_on = not is_comment and (len(raw) - len(raw.rstrip(b"\\"))) % 2 == 1
    return "\n".join(lines)
