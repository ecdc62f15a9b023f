"""ACL entries that the options of `firn acl` ask for, in the words of Kafka's tools.

Source: Kafka ``AclCommand``: what `--producer` and `--consumer` stand for, and which options go together.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from service.base.errors import ConfigError
from service.client.access_requests import AclQuery
from service.security.acl_index import AclEntry
from service.security.operations import (
    CLUSTER_NAME,
    OPERATION_WORDS,
    SUPPORTED,
    WILDCARD,
    AclOperation,
    AclPermissionType,
    AclResourceType,
    PatternType,
)

_Op = AclOperation
_Type = AclResourceType
PATTERNS: Final = {one.name.lower(): one for one in PatternType if one is not PatternType.UNKNOWN}
_ADDED_PATTERNS: Final = (PatternType.LITERAL, PatternType.PREFIXED)
NAMED: Final = {
    "topic": _Type.TOPIC,
    "group": _Type.GROUP,
    "transactional_id": _Type.TRANSACTIONAL_ID,
    "delegation_token": _Type.DELEGATION_TOKEN,
    "user_principal": _Type.USER,
}
"""Type of the resources that an option names, by the option's field."""


class AclResource(NamedTuple):
    """A resource pattern."""

    resource_type: int
    name: str
    pattern: int


def resources_of(args: argparse.Namespace) -> list[AclResource]:
    """Return the resources that the options name, each once."""
    pattern = PATTERNS[args.resource_pattern_type]
    found = [
        AclResource(kind, name, pattern)
        for field, kind in NAMED.items()
        for name in getattr(args, field) or ()
    ]
    if args.cluster:
        found.append(AclResource(_Type.CLUSTER, CLUSTER_NAME, PatternType.LITERAL))
    return list(dict.fromkeys(found))


def entries_of(args: argparse.Namespace) -> list[AclEntry]:
    """Return the entries that the options of `firn acl add` ask for. Raises `ConfigError`."""
    if PATTERNS[args.resource_pattern_type] not in _ADDED_PATTERNS:
        raise ConfigError("--resource-pattern-type: an entry is literal or prefixed")
    if not (args.allow_principal or args.deny_principal):
        raise ConfigError("whom is it about? --allow-principal or --deny-principal")
    return _expanded(args)


def queries_of(args: argparse.Namespace) -> list[AclQuery]:
    """Return the filters of what `firn acl remove` removes. Raises `ConfigError`.

    With principals exactly the entries that `add` would add; without any, all of the resources.
    """
    if args.allow_principal or args.deny_principal:
        return [AclQuery(*one) for one in _expanded(args)]
    if args.producer or args.consumer or args.operation or args.allow_host or args.deny_host:
        raise ConfigError("whom is it about? --allow-principal or --deny-principal")
    if not (resources := resources_of(args)):
        raise ConfigError(f"of which resource? {_SOME}")
    return [AclQuery(*one) for one in resources]


_SOME: Final = "--topic, --group, --cluster, --transactional-id, --delegation-token or --user-principal"


def _expanded(args: argparse.Namespace) -> list[AclEntry]:
    if args.allow_host and not args.allow_principal:
        raise ConfigError("--allow-host says nothing without --allow-principal")
    if args.deny_host and not args.deny_principal:
        raise ConfigError("--deny-host says nothing without --deny-principal")
    found: dict[AclEntry, None] = {}
    for resource, operations in _rights(args):
        for principals, hosts, permission in (
            (args.allow_principal, args.allow_host, AclPermissionType.ALLOW),
            (args.deny_principal, args.deny_host, AclPermissionType.DENY),
        ):
            found |= dict.fromkeys(
                AclEntry(*resource, principal, host, operation, permission)
                for principal in principals or ()
                for host in hosts or (WILDCARD,)
                for operation in operations
            )
    return list(found)


def _rights(args: argparse.Namespace) -> Iterable[tuple[AclResource, Sequence[AclOperation]]]:
    """Return each resource with the operations on it."""
    resources = resources_of(args)
    if args.producer or args.consumer:
        _check_role(args)
        return _rights_of_role(args, resources)
    if args.idempotent:
        raise ConfigError("--idempotent says nothing without --producer")
    if not resources:
        raise ConfigError(f"of which resource? {_SOME}")
    operations = tuple(OPERATION_WORDS[one] for one in args.operation or ("All",))
    for resource in resources:
        supported = SUPPORTED[AclResourceType(resource.resource_type)] | 1 << _Op.ALL
        for one in operations:
            if not supported >> one & 1:
                names = ", ".join(name for name, each in OPERATION_WORDS.items() if supported >> each & 1)
                kind = AclResourceType(resource.resource_type).name.lower().replace("_", " ")
                raise ConfigError(f"there is no {word(one)} on a {kind}: {names}")
    return [(resource, operations) for resource in resources]


def _check_role(args: argparse.Namespace) -> None:
    if args.operation or args.deny_principal or args.deny_host:
        raise ConfigError("--producer and --consumer allow what they need: no --operation, nothing denied")
    if not args.topic:
        raise ConfigError("--producer and --consumer need --topic")
    if args.consumer and not args.group:
        raise ConfigError("--consumer needs --group")
    if args.group and not args.consumer:
        raise ConfigError("--group says nothing with --producer alone")
    if args.idempotent and not args.producer:
        raise ConfigError("--idempotent says nothing without --producer")
    if args.transactional_id and not args.producer:
        raise ConfigError("--transactional-id says nothing with --consumer alone")
    if args.cluster or args.delegation_token or args.user_principal:
        raise ConfigError("--producer and --consumer are about topics, groups and transactional ids")


def _rights_of_role(
    args: argparse.Namespace, resources: Iterable[AclResource]
) -> list[tuple[AclResource, Sequence[AclOperation]]]:
    found: list[tuple[AclResource, Sequence[AclOperation]]] = []
    for resource in resources:
        kind = resource.resource_type
        if args.producer and kind == _Type.TOPIC:
            found.append((resource, (_Op.WRITE, _Op.DESCRIBE, _Op.CREATE)))
        if args.producer and kind == _Type.TRANSACTIONAL_ID:
            found.append((resource, (_Op.WRITE, _Op.DESCRIBE)))
        if args.consumer and kind == _Type.TOPIC:
            found.append((resource, (_Op.READ, _Op.DESCRIBE)))
        if args.consumer and kind == _Type.GROUP:
            found.append((resource, (_Op.READ,)))
    if args.idempotent:
        cluster = AclResource(_Type.CLUSTER, CLUSTER_NAME, PatternType.LITERAL)
        found.append((cluster, (_Op.IDEMPOTENT_WRITE,)))
    return found


def word(operation: int) -> str:
    """Return an operation's name in Kafka's tools, its number where it has none.

    >>> word(9), word(99)
    ('ClusterAction', '99')
    """
    return next((name for name, one in OPERATION_WORDS.items() if one == operation), str(operation))


def row_of(entry: AclEntry) -> dict[str, str]:
    """Return an entry in words, for tables and JSON."""
    return {
        "resource_type": _named(AclResourceType, entry.resource_type),
        "name": entry.name,
        "pattern": _named(PatternType, entry.pattern),
        "principal": entry.principal,
        "host": entry.host,
        "permission": _named(AclPermissionType, entry.permission),
        "operation": word(entry.operation),
    }


def _named(kind: type[AclResourceType] | type[PatternType] | type[AclPermissionType], number: int) -> str:
    try:
        return kind(number).name.lower()
    except ValueError:
        return str(number)
