"""Variables of a container that say what may be formatted. [P]

>>> told = told_by({"FIRN_CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw", "FIRN_IMAGE_FORM": "s3://bucket/formed"})
>>> told.guard
's3://bucket/formed'
>>> voters_of("1@a:9093", "4L6g3nShT-eMCtK--X86sw")
'1@a:9093:jRMFOw-pRJ66k_eS8OV5pw'
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import UUID

from service.base.errors import ConfigError
from service.base.uuids import encode_uuid

FORM: Final = "FIRN_IMAGE_FORM"
VOTERS: Final = "FIRN_IMAGE_VOTERS"
REPLACE: Final = "FIRN_IMAGE_REPLACE"
USERS: Final = "FIRN_IMAGE_ADD_SCRAM"
HTTP: Final = "FIRN_IMAGE_HTTP"
UNGUARDED: Final = "unguarded"
_SCHEMES: Final = ("s3://", "gs://", "az://", "file:///")


class Told(NamedTuple):
    """The variables `FIRN_IMAGE_…`, checked.

    `guard`: URL of the place where each node that was formed is noted, `UNGUARDED` for none; None: nothing
    may be formatted. `voters`: ID@HOST:PORT, or with a directory id behind it. `replaced`: ids of nodes whose
    empty volume takes the place of a lost one. `users`: values of `firn format --add-scram`.
    """

    guard: str | None
    voters: str
    replaced: frozenset[int]
    users: tuple[str, ...]


def told_by(environ: Mapping[str, str]) -> Told:
    """Return what the variables say. Raises `ConfigError` for a value that means nothing, or a name that is
    none of them."""
    names = {FORM, VOTERS, REPLACE, USERS, HTTP}
    for name in sorted(environ):
        if name.startswith("FIRN_IMAGE_") and name not in names:
            raise ConfigError(f"{name}: there is no such variable; {', '.join(sorted(names))}")
    guard = environ.get(FORM) or None
    if guard is not None and guard != UNGUARDED and not guard.startswith(_SCHEMES):
        raise ConfigError(f"{FORM}={guard}: neither {UNGUARDED} nor a URL ({', '.join(_SCHEMES)})")
    replaced = [one.strip() for one in environ.get(REPLACE, "").split(",") if one.strip()]
    if wrong := [one for one in replaced if not (one.isascii() and one.isdecimal() and len(one) < 10)]:
        raise ConfigError(f"{REPLACE}: {wrong[0]!r} is no node's id")
    users = tuple(line for line in environ.get(USERS, "").splitlines() if line.strip())
    return Told(guard, environ.get(VOTERS, ""), frozenset(map(int, replaced)), users)


def voters_of(text: str, cluster_id: str) -> str:
    """Return the list for `firn format --initial-controllers`, the same on each node.

    A voter without a directory id gets one that is made from the cluster's id and its own.
    """
    found = []
    for one in filter(None, (part.strip() for part in text.split(","))):
        node_id, at, place = one.partition("@")
        if not at or not node_id.isdecimal():
            raise ConfigError(f"{VOTERS}: {one!r} is not ID@HOST:PORT")
        has_directory = not place.rpartition(":")[2].isdecimal()
        found.append(one if has_directory else f"{one}:{directory_id(cluster_id, int(node_id))}")
    return ",".join(found)


def directory_id(cluster_id: str, node_id: int) -> str:
    """Return the id of a first voter's directory: always the same, and none that looks like an option."""
    for salt in range(1 << 16):
        said = hashlib.sha256(f"{cluster_id}/{node_id}/{salt}".encode()).digest()
        text = encode_uuid(UUID(bytes=said[:16]))
        if not text.startswith("-"):
            return text
    raise AssertionError("65,536 hashes that begin with the same character")


def has_voter(voters: str, node_id: int) -> bool:
    """Return whether the list names the node."""
    return any(one.partition("@")[0].strip() == str(node_id) for one in voters.split(","))
