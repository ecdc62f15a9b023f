"""Config providers: values of properties that stand elsewhere, as `${env:NAME}` or `${file:/path:key}`.

Kafka's three classes under their names (KIP-297, KIP-421, KIP-887): environment variables, keys of properties
files, and files of a directory. `env` need not be named, unless `config.providers` gives that name away. A
variable without a value is refused; Kafka takes its text as the value.

>>> resolved({"broker.rack": "${env:RACK}"}, {"RACK": "r1"})["broker.rack"]
'r1'
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from service.base.errors import ConfigError
from service.base.properties_file import MAX_FILE_BYTES, load_properties
from service.config.suggestions import did_you_mean

PROVIDERS: Final = "config.providers"
PACKAGE: Final = "org.apache.kafka.common.config.provider"
_PREFIX: Final = f"{PROVIDERS}."
_VARIABLE: Final = re.compile(r"\$\{([^}]*?):(([^}]*?):)?([^}]*?)\}")

Lookup = Callable[[str, str], str | None]
"""Value by path and key, None if there is none. Raises `ConfigError`."""


def resolved(
    properties: Mapping[str, str],
    environment: Mapping[str, str],
    found: dict[str, dict[str, str]] | None = None,
) -> dict[str, str]:
    """Return the properties with values in place of variables, and without the settings of providers.

    `found` gets the value of each variable, by the key whose value names it. Raises `ConfigError`, a line for
    each error; none of them has a value.
    """
    found = {} if found is None else found
    problems: list[str] = []
    lookups = _lookups(properties, environment, problems)
    values = {}
    for name, text in properties.items():
        if not name.startswith(_PREFIX):
            try:
                of_key = {one[0]: _value(lookups, one) for one in _VARIABLE.finditer(text)}
                values[name] = _VARIABLE.sub(partial(_told, of_key), text)
                found |= {name: of_key} if of_key else {}
            except ConfigError as e:
                problems.append(f"{name}: {e}")
    if problems:
        raise ConfigError(*problems)
    return values


def _value(lookups: Mapping[str, Lookup], variable: re.Match[str]) -> str:
    """Return the value of one variable: provider, path and key."""
    provider, path, key = variable[1], variable[3] or "", variable[4]
    lookup = lookups.get(provider)
    if lookup is None:
        raise ConfigError(f"{variable[0]}: {PROVIDERS} does not name {provider!r}")
    value = lookup(path, key)
    if value is None:
        raise ConfigError(f"{variable[0]}: there is no such value")
    return value


def _told(values: Mapping[str, str], variable: re.Match[str]) -> str:
    return values[variable[0]]


def _lookups(
    properties: Mapping[str, str], environment: Mapping[str, str], problems: list[str]
) -> dict[str, Lookup]:
    """Return the lookup of each provider that `config.providers` names."""
    names = [name.strip() for name in properties.get(PROVIDERS, "").split(",") if name.strip()]
    lookups: dict[str, Lookup] = {"env": partial(_of_environment, re.compile(".*", re.DOTALL), environment)}
    for name in names:
        own = f"{_PREFIX}{name}."
        given = {key.removeprefix(own): text for key, text in properties.items() if key.startswith(own)}
        try:
            lookups[name] = _lookup(own, given, environment)
        except ConfigError as e:
            problems.append(str(e))
    problems += [
        f"{key}: {PROVIDERS} does not name this provider"
        for key in properties
        if key.startswith(_PREFIX) and not any(key.startswith(f"{_PREFIX}{name}.") for name in names)
    ]
    return lookups


def _lookup(own: str, given: Mapping[str, str], environment: Mapping[str, str]) -> Lookup:
    """Return the lookup of the provider whose keys begin with `own`; `given` has the rest of them."""
    classes = {
        f"{PACKAGE}.EnvVarConfigProvider": "allowlist.pattern",
        f"{PACKAGE}.FileConfigProvider": "allowed.paths",
        f"{PACKAGE}.DirectoryConfigProvider": "allowed.paths",
    }
    name = given.get("class", "")
    if name not in classes:
        found = f"{name!r} is not served" if name else "not set"
        raise ConfigError(f"{own}class: {found}; there is {', '.join(classes)}")
    known = ("class", f"param.{classes[name]}")
    if unknown := [key for key in given if key not in known]:
        raise ConfigError(f"{own}{unknown[0]}: unknown configuration key{did_you_mean(unknown[0], known)}")
    value = given.get(known[1])
    try:
        if name.endswith("EnvVarConfigProvider"):
            return partial(_of_environment, re.compile(".*" if value is None else value), environment)
        allowed = _allowed_paths(value)
    except (ConfigError, re.error) as e:
        raise ConfigError(f"{own}{known[1]}: {e}") from None
    return partial(_of_file if name.endswith("FileConfigProvider") else _of_directory, allowed)


def _allowed_paths(text: str | None) -> tuple[Path, ...] | None:
    """Parse `allowed.paths`: None allows every path."""
    if not text:
        return None
    paths = tuple(Path(os.path.normpath(part.strip())) for part in text.split(","))
    for path in paths:
        if not path.is_absolute():
            raise ConfigError(f"Path {path} is not absolute")
        if not path.exists():
            raise ConfigError(f"Path {path} does not exist")
    return paths


def _of_environment(
    pattern: re.Pattern[str], environment: Mapping[str, str], path: str, key: str
) -> str | None:
    if path:
        raise ConfigError(f"Path is not supported for EnvVarConfigProvider, invalid value '{path}'")
    return environment.get(key) if pattern.fullmatch(key) else None


def _of_file(allowed: tuple[Path, ...] | None, path: str, key: str) -> str | None:
    return load_properties(_place(allowed, path)).get(key)


def _of_directory(allowed: tuple[Path, ...] | None, path: str, key: str) -> str | None:
    place = _place(allowed, path)
    if not place.is_dir():
        raise ConfigError(f"The path {path} is not a directory")
    if "/" in key or key in ("", ".", ".."):
        return None
    if not (place / key).is_file():
        return None
    try:
        with open(place / key, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as e:
        raise ConfigError(f"Could not read file {place / key} for property {key}: {e.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{place / key}: a value over {MAX_FILE_BYTES} bytes is refused")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:  # its text would have a byte of the secret
        raise ConfigError(f"{place / key}: not UTF-8 text") from None


def _place(allowed: tuple[Path, ...] | None, path: str) -> Path:
    if not path:
        raise ConfigError("the path is missing, as in ${file:/etc/firn/secrets.properties:key}")
    if allowed is None:
        return Path(path)
    place = Path(os.path.normpath(path))
    if not any(place.is_relative_to(one) for one in allowed):
        raise ConfigError(f"The path {path} is not allowed to be accessed")
    return place
