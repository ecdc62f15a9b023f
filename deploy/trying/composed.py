"""The services of compose.yaml, as far as they are tried: command, environment, volumes, checks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

_VARIABLE: Final = re.compile(r"\$\{([A-Z0-9_]+)(?::-([^}]*))?\}")


class Service(NamedTuple):
    """One service: `command` without its entry point, None for the image's."""

    name: str
    entrypoint: tuple[str, ...] | None
    command: tuple[str, ...] | None
    environ: Mapping[str, str]
    check: tuple[str, ...]
    grace_s: int


def services(path: Path, given: Mapping[str, str]) -> dict[str, Service]:
    """Read the file; `given`: the variables that a shell would have."""
    return {name: _service(name, found) for name, found in _document(path, given)["services"].items()}


def _document(path: Path, given: Mapping[str, str]) -> dict[str, Any]:
    """Read the file, with values in place of variables, which are put in once it is parsed."""

    def filled(found: Any) -> Any:
        if isinstance(found, dict):
            return {key: filled(one) for key, one in found.items()}
        if isinstance(found, list):
            return [filled(one) for one in found]
        if isinstance(found, str):
            return _VARIABLE.sub(lambda name: given.get(name[1], name[2] or ""), found)
        return found

    document: dict[str, Any] = filled(yaml.safe_load(path.read_text("utf-8")))
    return document


def _service(name: str, found: Mapping[str, Any]) -> Service:
    check = found.get("healthcheck", {}).get("test", ["NONE"])
    return Service(
        name,
        tuple(found["entrypoint"]) if "entrypoint" in found else None,
        tuple(found["command"]) if "command" in found else None,
        {key: str(value) for key, value in found.get("environment", {}).items()},
        tuple(check[1:]),
        _seconds(str(found.get("stop_grace_period", "10s"))),
    )


def _seconds(text: str) -> int:
    """Return the seconds of a duration as `3m` or `10s`."""
    return int(text[:-1]) * {"s": 1, "m": 60}[text[-1]]
