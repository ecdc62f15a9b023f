"""Operations, resource types, pattern types and permissions of ACLs, with Kafka's numbers. [P]"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from typing import Final


class AclOperation(IntEnum):
    """Operations on resources (Kafka `AclOperation`)."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


OPERATION_WORDS: Final = {
    one.name.title().replace("_", ""): one
    for one in AclOperation
    if one not in (AclOperation.UNKNOWN, AclOperation.ANY)
}
"""Operations by their names in Kafka's tools: ``Read``, ``ClusterAction``."""


class AclResourceType(IntEnum):
    """Type of a resource that ACLs are about (Kafka `ResourceType`)."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """Ways to compare the name of an ACL (Kafka `PatternType`)."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclPermissionType(IntEnum):
    """Effect of an ACL: it allows or denies (Kafka `AclPermissionType`)."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


CLUSTER_NAME: Final = "kafka-cluster"
"""Name of the only resource of type CLUSTER."""
WILDCARD: Final = "*"
"""Literal name that matches every resource of its type, and host that matches every address."""
ANY_USER: Final = "User:*"
"""Principal of an entry that is about everybody, whatever the type of their principal."""

RESOURCE_TYPES: Final = len(AclResourceType)

_O = AclOperation
IMPLIED_BY: Final = {
    _O.DESCRIBE: (_O.READ, _O.WRITE, _O.DELETE, _O.ALTER),
    _O.DESCRIBE_CONFIGS: (_O.ALTER_CONFIGS,),
}
"""Operations whose ALLOW allows another one, too. A DENY implies nothing."""


def bits(*operations: AclOperation) -> int:
    """Return a bit field with the bit of each operation, as Kafka tells authorized operations."""
    field = 0
    for one in operations:
        field |= 1 << one
    return field


KNOWN_OPERATIONS: Final = bits(*(one for one in _O if one > _O.ALL))

SUPPORTED: Final = {
    AclResourceType.TOPIC: bits(
        _O.READ,
        _O.WRITE,
        _O.CREATE,
        _O.DELETE,
        _O.ALTER,
        _O.DESCRIBE,
        _O.DESCRIBE_CONFIGS,
        _O.ALTER_CONFIGS,
    ),
    AclResourceType.GROUP: bits(_O.READ, _O.DELETE, _O.DESCRIBE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS),
    AclResourceType.CLUSTER: bits(
        _O.CREATE,
        _O.ALTER,
        _O.DESCRIBE,
        _O.CLUSTER_ACTION,
        _O.DESCRIBE_CONFIGS,
        _O.ALTER_CONFIGS,
        _O.IDEMPOTENT_WRITE,
    ),
    AclResourceType.TRANSACTIONAL_ID: bits(_O.DESCRIBE, _O.WRITE, _O.TWO_PHASE_COMMIT),
    AclResourceType.DELEGATION_TOKEN: bits(_O.DESCRIBE),
    AclResourceType.USER: bits(_O.CREATE_TOKENS, _O.DESCRIBE_TOKENS),
}
"""Operations that make sense for a type (Kafka `AclEntry.supportedOperations`)."""

_DENY_SHIFT: Final = 16
_OTHER_SHIFT: Final = 32
NO_RIGHTS: Final = 0
"""Rights of somebody whom no entry of a resource is about."""


@lru_cache(maxsize=1024)
def rights_of(operation: int, permission: int) -> int:
    """Return what one entry does, as a number that is combined with ``|`` and read by `allowed_by`.

    Each operation and permission has a bit of its own. Those of a newer Kafka have one, too, which no
    question looks at.
    """
    if 0 <= operation < _DENY_SHIFT:
        if permission == AclPermissionType.ALLOW:
            return 1 << operation
        if permission == AclPermissionType.DENY:
            return 1 << (operation + _DENY_SHIFT)
    return 1 << (_OTHER_SHIFT + ((operation & 0xFF) << 8 | permission & 0xFF))


@lru_cache(maxsize=4096)
def allowed_by(rights: int) -> int:
    """Return the bit field of operations that combined entries allow: denials come first."""
    allow, deny = rights & 0xFFFF, rights >> _DENY_SHIFT & 0xFFFF
    if deny >> _O.ALL & 1:
        return 0
    if allow >> _O.ALL & 1:
        return KNOWN_OPERATIONS & ~deny
    for operation, by in IMPLIED_BY.items():
        if allow & bits(*by):
            allow |= 1 << operation
    return allow & KNOWN_OPERATIONS & ~deny
