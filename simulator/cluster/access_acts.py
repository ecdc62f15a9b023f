"""Acts that change who may log in and do what, and those that strike only a secured cluster.

Changes are asked for one after the other, so that what is asked last is known; one without an answer may come
later, or never.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.security.scram import salted_password
from service.wire.api import ApiKey, request_module
from simulator.client import Client, NoAnswer
from simulator.cluster.access import (
    ALL,
    ALLOW,
    ALTER_CONFIGS,
    CLUSTER,
    CREATE,
    DENY,
    DESCRIBE,
    GROUP,
    LITERAL,
    PREFIXED,
    READ,
    THE_CLUSTER,
    TOPIC,
    WRITE,
    Access,
    Entry,
)
from simulator.cluster.secured import HOST, ITERATIONS, SCRAM, SECRET, USERS, SecuredWorld
from simulator.cluster.world import CONTROLLERS
from simulator.machine import Machine
from simulator.model import Violation

_ANY: Final = 1
GROUPS: Final = ("g1", "g2")
_OF_TOPICS: Final = (READ, READ, READ, WRITE, WRITE, DESCRIBE, ALTER_CONFIGS, ALL)
_QUOTAS: Final = (
    ("consumer_byte_rate", 10.0),
    ("producer_byte_rate", 10.0),
    ("request_percentage", 50.0),
    ("controller_mutation_rate", 0.1),
)
_OF_ALL: Final = ("consumer_byte_rate", 1e9)
"""A quota of the default user is the admin's and the nodes', too."""


class Change(NamedTuple):
    """A change of the access: the request, its error, and whether a state has it."""

    said: str
    key: ApiKey
    request: Any
    error_of: Callable[[Any], ErrorCode]
    is_there: Callable[[Access], bool]
    may_be: frozenset[ErrorCode] = frozenset()
    """errors that a change has which is done already"""


async def change(world: SecuredWorld, machine: Machine, wanted: Change) -> None:
    """Ask for a change at a node, and check what it says (A1, A3)."""
    client, calm, before = Client(machine.address), world.is_calm, len(world.access.states) - 1
    try:
        error = wanted.error_of(await client.ask(wanted.key, wanted.request))
    except NoAnswer:
        error = ErrorCode.request_timed_out
    finally:
        client.close()
    world.tell(f"{wanted.said}, by {machine.name}: {error.name}")
    if error is not ErrorCode.none:
        return
    world.answered += 1
    states = world.access.states
    found = next((at for at in range(before, len(states)) if wanted.is_there(states[at])), None)
    if found is None:
        raise Violation(f"A1: {machine.name} says that it is done: {wanted.said}, and nothing is committed")
    world.is_known(machine, calm, world.access.offset_of(found), wanted.said)


async def _change(world: SecuredWorld, random: Random, wanted: Change) -> None:
    """Ask a node for it, sometimes while other things go on."""
    work = change(world, random.choice(world.machines), wanted)
    if random.random() < 0.3:
        await world.settle()
        world.spawn(work)
        await asyncio.sleep(random.random() * 0.1)
    else:
        await work


# Entries


def drawn_entry(world: SecuredWorld, random: Random, permission: int = ALLOW) -> Entry:
    """Draw an entry that says something of what users try."""
    user = random.choice((*USERS, *USERS, "*"))
    host = random.choice((HOST, "*", "*", "*", "10.0.0.9"))
    if (drawn := random.random()) < 0.15:
        return Entry(GROUP, random.choice((*GROUPS, "*")), LITERAL, f"User:{user}", host, READ, permission)
    if drawn < 0.25:
        operation = random.choice((CREATE, DESCRIBE))
        return Entry(CLUSTER, THE_CLUSTER, LITERAL, f"User:{user}", host, operation, permission)
    names = [topic.name for topic in world.topics] or ["t0"]
    name, pattern = random.choice((*names, "*")), LITERAL
    if random.random() < 0.2:
        name, pattern = random.choice(("t", "t1", "u")), PREFIXED
    return Entry(TOPIC, name, pattern, f"User:{user}", host, random.choice(_OF_TOPICS), permission)


def added(entry: Entry) -> Change:
    """Return the change that adds an entry."""
    m = request_module(ApiKey.CREATE_ACLS)
    one = m.AclCreation(
        resource_type=entry.kind,
        resource_name=entry.name,
        resource_pattern_type=entry.pattern,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission_type=entry.permission,
    )
    return Change(
        f"add {'a denial' if entry.permission == DENY else 'a right'} {tuple(entry)}",
        ApiKey.CREATE_ACLS,
        m.CreateAclsRequest(creations=(one,)),
        lambda answer: answer.results[0].error_code,
        lambda state: entry in state.entries.values(),
    )


def removed(entry: Entry) -> Change:
    """Return the change that removes an entry."""
    m = request_module(ApiKey.DELETE_ACLS)
    one = m.DeleteAclsFilter(
        resource_type_filter=entry.kind,
        resource_name_filter=entry.name,
        pattern_type_filter=entry.pattern,
        principal_filter=entry.principal,
        host_filter=entry.host,
        operation=entry.operation,
        permission_type=entry.permission,
    )
    return Change(
        f"remove {tuple(entry)}",
        ApiKey.DELETE_ACLS,
        m.DeleteAclsRequest(filters=(one,)),
        lambda answer: answer.filter_results[0].error_code,
        lambda state: entry not in state.entries.values(),
    )


def _all_removed(user: str) -> Change:
    m = request_module(ApiKey.DELETE_ACLS)
    one = m.DeleteAclsFilter(
        resource_type_filter=_ANY,
        resource_name_filter=None,
        pattern_type_filter=_ANY,
        principal_filter=f"User:{user}",
        host_filter=None,
        operation=_ANY,
        permission_type=_ANY,
    )
    return Change(
        f"remove all of {user}",
        ApiKey.DELETE_ACLS,
        m.DeleteAclsRequest(filters=(one,)),
        lambda answer: answer.filter_results[0].error_code,
        lambda state: all(one.principal != f"User:{user}" for one in state.entries.values()),
    )


async def grant(world: SecuredWorld, random: Random) -> None:
    await _change(world, random, added(drawn_entry(world, random)))


async def deny(world: SecuredWorld, random: Random) -> None:
    await _change(world, random, added(drawn_entry(world, random, DENY)))


async def revoke(world: SecuredWorld, random: Random) -> None:
    """Remove an entry, or all of a user."""
    entries = [*world.access.newest.entries.values()]
    if not entries or random.random() < 0.1:
        await _change(world, random, _all_removed(random.choice(USERS)))
    else:
        await _change(world, random, removed(random.choice(entries)))


# Users


async def set_password(world: SecuredWorld, random: Random) -> None:
    """Give a user a password: it is made by that, if it was not there."""
    account = random.choice([one for one in world.accounts if one.mechanism in SCRAM])
    password, salt = f"{SECRET}{account.user}-{random.getrandbits(32):x}", random.randbytes(16)
    if account.passwords and random.random() < 0.15:
        password = random.choice(account.passwords)  # an earlier one comes back
    world.access.passwords[salt] = password
    account.passwords.append(password)
    m = request_module(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
    one = m.ScramCredentialUpsertion(
        name=account.user,
        mechanism=SCRAM[account.mechanism],
        iterations=ITERATIONS,
        salt=salt,
        salted_password=salted_password(account.mechanism, password.encode(), salt, ITERATIONS),
    )
    key = account.user, SCRAM[account.mechanism]
    await _change(
        world,
        random,
        Change(
            f"set a password of {account.user} for {account.mechanism}",
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
            m.AlterUserScramCredentialsRequest(deletions=(), upsertions=(one,)),
            lambda answer: answer.results[0].error_code,
            lambda state: state.salts.get(key) == salt,
        ),
    )


async def delete_user(world: SecuredWorld, random: Random) -> None:
    account = random.choice([one for one in world.accounts if one.mechanism in SCRAM])
    key = account.user, SCRAM[account.mechanism]
    m = request_module(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
    one = m.ScramCredentialDeletion(name=account.user, mechanism=key[1])
    await _change(
        world,
        random,
        Change(
            f"delete {account.user} for {account.mechanism}",
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
            m.AlterUserScramCredentialsRequest(deletions=(one,), upsertions=()),
            lambda answer: answer.results[0].error_code,
            lambda state: key not in state.salts,
        ),
    )


async def set_quota(world: SecuredWorld, random: Random) -> None:
    """Set or remove a quota of a user or of the default user."""
    user, (key, value) = random.choice((*USERS, *USERS, None)), random.choice(_QUOTAS)
    if user is None:
        key, value = _OF_ALL
    remove = random.random() < 0.4
    m = request_module(ApiKey.ALTER_CLIENT_QUOTAS)
    entry = m.EntryData(
        entity=(m.EntityData(entity_type="user", entity_name=user),),
        ops=(m.OpData(key=key, value=value, remove=remove),),
    )
    place = (("user", user),), key
    await _change(
        world,
        random,
        Change(
            f"{'no' if remove else 'a'} {key} of {user or 'any user'}",
            ApiKey.ALTER_CLIENT_QUOTAS,
            m.AlterClientQuotasRequest(entries=(entry,), validate_only=False),
            lambda answer: answer.entries[0].error_code,
            lambda state: (place in state.quotas) is not remove,
        ),
    )


# Faults


async def flip_bits(world: SecuredWorld, random: Random) -> None:
    """Change bits on the links of a node until the network heals: a broken seal ends its connection."""
    machine, odds = random.choice(world.machines), random.choice((0.001, 0.01, 0.1))
    world.disturbed()
    links = world.links_of(machine.name)
    world.network.links.flips.update(dict.fromkeys(sorted(links), odds))
    world.tell(f"bits flip on the links of {machine.name}, in {odds} of the chunks")


async def copy_metadata(world: SecuredWorld, random: Random) -> None:
    """Keep a copy of the disks of pure brokers."""
    for machine in world.machines[CONTROLLERS:]:
        world.pasts[machine.name] = machine.platter.copy()
        world.tell(f"the metadata of {machine.name} is kept, at {world.oracle.end}")


async def restore_metadata(world: SecuredWorld, random: Random) -> None:
    """Start a pure broker with the metadata log of a copy: rights that were revoked since are in there."""
    if not world.pasts:
        return
    machine = world.machine(random.choice(sorted(world.pasts)))
    if machine.run is not None and not machine.run.ended:
        world.kill(machine)
    world.disturbed()
    machine.platter.restore(machine.metadata_dir, world.pasts[machine.name])
    world.tell(f"the metadata of {machine.name} is what was kept")
    world.ended_for_reasons()
    if not world.dark(machine.name):
        world.start(machine)


ACCESS_ACTS: Final[dict[str, Callable[[Any, Random], Awaitable[None]]]] = {
    one.__name__: one
    for one in (
        grant, deny, revoke, set_password, delete_user, set_quota, flip_bits, copy_metadata, restore_metadata
    )
}  # fmt: skip
