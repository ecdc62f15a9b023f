"""Files with one secret: their first line, and whether others on the machine may read it.

They are read before a node exists, and so without its disk port. No error has a byte of the content.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final, NamedTuple

from service.base.errors import ConfigError

_MOST_BYTES: Final = 4096


class SecretFile(NamedTuple):
    """Content of a file. `is_exposed`: whether others than its owner may read or write it."""

    text: str
    is_exposed: bool


def read_secret_file(path: Path | str, least: int) -> SecretFile:
    """Return the first line of a file without the blanks around it: `least` visible ASCII characters or more.

    Raises `ConfigError` with the file's name.
    """
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            lines = file.read(_MOST_BYTES + 1).splitlines()
    except OSError as e:
        raise ConfigError(f"{path}: {e.strerror}") from e
    text = lines[0].strip().decode("latin-1") if lines else ""
    if len(text) > _MOST_BYTES:
        raise ConfigError(f"{path}: the first line has more than {_MOST_BYTES} characters")
    if not all("!" <= char <= "~" for char in text):
        raise ConfigError(f"{path}: the first line has other characters than visible ones of ASCII")
    if len(text) < least:
        raise ConfigError(f"{path}: the first line has {len(text)} characters, and {least} are needed")
    return SecretFile(text, bool(stat.S_IMODE(mode) & 0o077))
