"""ACL rules told a second time, by looking at every entry, and random ACLs and questions."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from service.security.acls import AclEntry

NAMES = ("a", "ab", "abc", "b", "*", "", "a*", "é", "hardcode")
PRINCIPALS = ("User:alice", "User:bob", "User:*", "user:alice", "Group:alice", "User:a:b")
HOSTS = ("*", "127.0.0.1", "10.0.0.9")
TYPES = (2, 3, 4, 5, 7)
READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS = 3, 4, 5, 6, 7, 8, 10, 11
OPERATIONS = tuple(range(3, 16))
IMPLIES = {DESCRIBE: (READ, WRITE, DELETE, ALTER), DESCRIBE_CONFIGS: (ALTER_CONFIGS,)}


def random_entry(random: Random, types: tuple[int, ...] = TYPES) -> AclEntry:
    operation = random.choice((2, READ, WRITE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS, 12))
    return AclEntry(
        random.choice(types),
        random.choice(NAMES),
        random.choice((3, 4)),
        random.choice(PRINCIPALS),
        random.choice(HOSTS),
        operation,
        random.choice((2, 3, 3)),
    )


def matches(entry: AclEntry, resource: int, name: str) -> bool:
    if entry.resource_type != resource:
        return False
    if entry.pattern == 3:
        return entry.name in (name, "*")
    return name.startswith(entry.name)


def expected(
    entries: Iterable[AclEntry],
    principal: str,
    host: str,
    operation: int,
    resource: int,
    name: str,
    default: bool,
) -> bool:
    """Whether the operation is allowed, by every entry one after the other."""
    on_it = [one for one in entries if matches(one, resource, name)]
    if not on_it:
        return default
    own = [one for one in on_it if one.principal in (principal, "User:*") and one.host in (host, "*")]
    if any(one.permission == 2 and one.operation in (2, operation) for one in own):
        return False
    enough = (2, operation, *IMPLIES.get(operation, ()))
    return any(one.permission == 3 and one.operation in enough for one in own)


def expected_somewhere(
    entries: Iterable[AclEntry], principal: str, host: str, operation: int, resource: int, default: bool
) -> bool:
    """Whether the operation is allowed on some resource of the type."""
    entries = list(entries)
    if expected(entries, principal, host, operation, resource, "hardcode", default):
        return True
    own = [
        one
        for one in entries
        if one.resource_type == resource
        and one.principal in (principal, "User:*")
        and one.host in (host, "*")
        and one.operation in (2, operation)
    ]
    denied = {(one.pattern, one.name) for one in own if one.permission == 2}
    allowed = {(one.pattern, one.name) for one in own if one.permission == 3}
    if (3, "*") in denied:
        return False
    if (3, "*") in allowed:
        return True
    for pattern, name in allowed:
        if pattern == 3 and (3, name) in denied:
            continue
        if not any((4, name[:n]) in denied for n in range(1, len(name) + 1)):
            return True
    return False
