"""Options of `firn console` for schemas: a registry's address and credentials, and a file of schemas."""

from __future__ import annotations

import os
import urllib.parse
from pathlib import Path
from typing import Final

from service.base.errors import ConfigError
from service.base.properties import parse_properties
from service.console.web.schemas.settings import MOST_FILE, DecodeSettings, parse_schema_file

CREDENTIALS: Final = "SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO"


def decode_settings(url: str | None, config: str | None, schemas: str | None) -> DecodeSettings:
    """Return the settings of these options. Raises `ConfigError` and `OSError`."""
    if config is not None and url is None:
        raise ConfigError("--schema-registry-config has no effect without --schema-registry")
    registry: dict[str, str] | None = None
    if url is not None:
        registry = {"url": _checked(url)}
        if credentials := os.environ.get(CREDENTIALS):
            registry["basic.auth.user.info"] = credentials
        if config is not None:
            registry |= {k: v for k, v in parse_properties(_read(Path(config))).items() if k != "url"}
    if schemas is None:
        return DecodeSettings(registry)
    place = Path(schemas)
    try:
        return DecodeSettings(
            registry, parse_schema_file(_read(place), lambda name: _read(place.parent / name))
        )
    except ConfigError as e:
        raise ConfigError(f"--schemas {schemas}: {e}") from e


def _read(path: Path) -> str:
    with path.open("rb") as file:
        data = file.read(MOST_FILE + 1)
    if len(data) > MOST_FILE:
        raise ConfigError(f"{path}: more than {MOST_FILE} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise ConfigError(f"{path}: not UTF-8: {e}") from e


def _checked(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise ConfigError(f"--schema-registry: no credentials in the URL, use {CREDENTIALS}")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(f"--schema-registry {url}: not an address as in https://host:8081")
    return url.rstrip("/")
