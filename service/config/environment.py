"""Settings of a node in environment variables, as images for containers have them. [P]

A variable is `FIRN_` and the key in capitals, with `_` for a dot, `__` for an underscore and `___` for a
hyphen. A key of our own needs its `firn.` not.

>>> found = of_environment({"FIRN_LOG_DIRS": "/data", "FIRN_REMOTE_URL": "s3://bucket/prefix"}, ())
>>> sorted(found.properties)
['firn.remote.url', 'log.dirs']
>>> variable_key("FIRN_LISTENER_NAME_INTERNAL_SCRAM___SHA___512_SASL_JAAS_CONFIG")
'listener.name.internal.scram-sha-512.sasl.jaas.config'
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from service.config.foreign import foreign_key
from service.config.parsing import LISTENER_PREFIX
from service.config.suggestions import did_you_mean
from service.config.tables import BROKER_KEYS

PREFIX: Final = "FIRN_"
RESERVED: Final = (
    "FIRN_BOOTSTRAP", "FIRN_COMMAND_CONFIG", "FIRN_PROFILE", "FIRN_URL", "FIRN_LOCALSTACK", "FIRN_CHROMIUM",
    "FIRN_PROMTOOL", "FIRN_VERSITYGW", "FIRN_SCHEMA_REGISTRY", "FIRN_COMMIT", "FIRN_PACKAGE", "FIRN_UNIT",
)  # fmt: skip
"""Variables that commands, the build, images and tests have: never settings of a node."""
RESERVED_PREFIXES: Final = ("FIRN_TEST_", "FIRN_SPARK_", "FIRN_IMAGE_")
_OF_SERVICES: Final = re.compile(
    r"FIRN_([A-Z0-9_]+_)?(SERVICE_(HOST|PORT)|SERVICE_PORT_[A-Z0-9_]+|PORT|PORT_[0-9]+_(TCP|UDP|SCTP)(_[A-Z]+)?)"
)
"""Addresses of services whose name begins with `firn`, which Kubernetes and Docker put into containers."""
_ALMOST: Final = 0.92
"""Likeness of a name with a slip or two to the one that was meant."""
_MEANING: Final = {"_": ".", "__": "_", "___": "-"}


class Environment(NamedTuple):
    """Settings that the environment has. `variables`: the variable of each key. `unknown`: a text for each
    variable that begins as a setting does and is none; `mistyped`: for one that is almost a setting's."""

    properties: dict[str, str]
    variables: dict[str, str]
    unknown: tuple[str, ...]
    mistyped: tuple[str, ...] = ()


def of_environment(environ: Mapping[str, str], named: Iterable[str]) -> Environment:
    """Return the settings that are among these variables.

    `named`: variables that values of the configuration name, as `${env:FIRN_RACK}` does; they need not be
    settings.
    """
    named = frozenset(named)
    properties: dict[str, str] = {}
    variables: dict[str, str] = {}
    unknown: list[str] = []
    mistyped: list[str] = []
    for variable, text in sorted(environ.items()):
        if not variable.startswith(PREFIX) or variable.startswith(RESERVED_PREFIXES):
            continue
        if variable in RESERVED or _OF_SERVICES.fullmatch(variable):
            continue
        key = variable_key(variable)
        if variable in named and (key is None or foreign_key(key) is not None):
            continue
        if key is None:
            told = mistyped if _hint(variable, _ALMOST) else unknown
            told.append(f"{variable}: no setting has this environment variable{_hint(variable)}")
        elif key in properties:
            unknown.append(f"{variable}: the same setting as {variables[key]}, which counts")
        else:
            properties[key], variables[key] = text, variable
    return Environment(properties, variables, tuple(unknown), tuple(mistyped))


def variable_key(variable: str) -> str | None:
    """Return the key that a variable sets, None if it sets none."""
    name = _decoded(variable)
    for key in (name, f"firn.{name}"):
        if key in BROKER_KEYS or key.startswith((LISTENER_PREFIX, "config.providers.")):
            return key
    return name if foreign_key(name) is not None else None


def key_variable(key: str) -> str:
    """Return the variable that sets a key.

    >>> key_variable("firn.remote.url"), key_variable("listener.name.a-b.ssl.client.auth")
    ('FIRN_REMOTE_URL', 'FIRN_LISTENER_NAME_A___B_SSL_CLIENT_AUTH')
    """
    name = key.removeprefix("firn.").replace("_", "__").replace("-", "___").replace(".", "_")
    return PREFIX + name.upper()


def _decoded(variable: str) -> str:
    name = variable.removeprefix(PREFIX)
    return re.sub(r"_{1,3}", lambda found: _MEANING[found[0]], name).lower()


def _hint(variable: str, likeness: float = 0.75) -> str:
    return did_you_mean(variable, map(key_variable, BROKER_KEYS), likeness)
