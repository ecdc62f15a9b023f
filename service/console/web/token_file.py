"""File with the console's token: its first line."""

from __future__ import annotations

from typing import Final

from service.base.errors import ConfigError
from service.console.web.guard import LEAST_TOKEN

_MOST_BYTES: Final = 4096


def read_token(path: str) -> str:
    """Return the token of a file. Raises `ConfigError`, which has no byte of it."""
    try:
        with open(path, "rb") as file:
            lines = file.read(_MOST_BYTES).decode("utf-8", "replace").splitlines()
    except OSError as e:
        raise ConfigError(f"--token-file: {path}: {e.strerror}") from e
    token = lines[0].strip() if lines else ""
    if len(token) < LEAST_TOKEN:
        raise ConfigError(
            f"--token-file: {path}: its first line has {len(token)} characters, and {LEAST_TOKEN} are needed"
        )
    return token
