"""Value of `firn format --add-scram`: a user with a password or a salted one. [P]

Source: Kafka ``ScramParser``. No error repeats a password.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from typing import Final, NamedTuple

from service.base.errors import ConfigError
from service.security.scram import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    SCRAM_MECHANISMS,
    credential_from,
    salted_password,
)
from service.security.scram_credential import ScramCredential

_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,10}")


class ScramArgument(NamedTuple):
    """A user to create. Either `password` or `salted` is there; `salt` None is chosen later."""

    mechanism: str
    name: str
    password: str | None
    salted: bytes | None
    salt: bytes | None
    iterations: int

    def __repr__(self) -> str:
        return f"ScramArgument({self.mechanism}, {self.name!r})"

    def credential(self, new_salt: Callable[[], bytes]) -> ScramCredential:
        """Return the user's keys: PBKDF2, some milliseconds."""
        salt = new_salt() if self.salt is None else self.salt
        salted = self.salted
        if salted is None:
            assert self.password is not None
            salted = salted_password(self.mechanism, self.password.encode(), salt, self.iterations)
        return credential_from(self.mechanism, salted, salt, self.iterations)


def parse_scram(text: str) -> ScramArgument:
    """Parse ``SCRAM-SHA-256=[name=alice,password=…]`` and its other forms. Raises `ConfigError`.

    >>> parse_scram("SCRAM-SHA-256=[name=alice,iterations=8192,password=secret]").iterations
    8192
    """
    mechanism, equals, rest = text.strip().partition("=")
    if not equals:
        raise ConfigError("Failed to find equals sign in SCRAM argument")
    if mechanism not in SCRAM_MECHANISMS:
        raise ConfigError(f"The add-scram mechanism {mechanism} is not supported.")
    for has, where, bracket in ((rest.startswith("["), "start", "["), (rest.endswith("]"), "end", "]")):
        if not has:
            raise ConfigError(f"Expected configuration string to {where} with {bracket}")
    given = _components(rest[1:-1])
    name, password, salted = (given.pop(key, None) for key in ("name", "password", "saltedpassword"))
    salt, iterations = given.pop("salt", None), given.pop("iterations", None)
    if not name:
        raise ConfigError("You must supply 'name' to add-scram")
    if given:
        raise ConfigError(f"Unknown SCRAM configurations: {', '.join(sorted(given))}")
    if password is None and salted is None:
        raise ConfigError("You must supply one of 'password' or 'saltedpassword' to add-scram")
    if password == "":
        raise ConfigError("The 'password' of add-scram is empty")
    if password is not None and salted is not None:
        raise ConfigError("'password' and 'saltedpassword' of add-scram: one of them")
    if password is None and salt is None:
        raise ConfigError("You must supply 'salt' with 'saltedpassword' to add-scram")
    return ScramArgument(
        mechanism,
        name,
        password,
        None if salted is None else _decoded(salted, "saltedPassword"),
        None if salt is None else _decoded(salt, "salt"),
        _iterations(iterations, mechanism),
    )


def _components(text: str) -> dict[str, str]:
    found = {}
    parts = text.split(",")
    while parts and not parts[-1]:
        parts.pop()
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals:
            raise ConfigError("No equals sign found in SCRAM component")
        if len(value) >= 2 and value[0] == value[-1] == '"':
            value = value[1:-1]
        found[key] = value
    return found


def _decoded(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError(f"Failed to decode given {what}") from None


def _iterations(text: str | None, mechanism: str) -> int:
    if text is None:
        return MIN_ITERATIONS
    if _NUMBER.fullmatch(text) is None:
        raise ConfigError(f"Failed to parse iterations count: {text}")
    count = int(text)
    for is_wrong, sign, limit in (
        (count < MIN_ITERATIONS, ">=", MIN_ITERATIONS),
        (count > MAX_ITERATIONS, "<=", MAX_ITERATIONS),
    ):
        if is_wrong:
            raise ConfigError(
                f"The 'iterations' value must be {sign} {limit} for add-scram using {mechanism}"
            )
    return count
