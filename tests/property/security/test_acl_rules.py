"""ACLs, indexed and remembered, say what a look at every entry says, whatever is added and removed."""

from __future__ import annotations

from random import Random
from uuid import UUID

import pytest

from service.base.steps import at_once
from service.security.acls import AclEntry, AclSet
from service.security.audit import Audit
from service.security.authorizer import Authorizer
from service.security.operations import AclOperation, AclResourceType
from service.security.principal import Principal
from service.security.session import Session
from tests.support.acl_rules import (
    HOSTS,
    NAMES,
    OPERATIONS,
    PRINCIPALS,
    TYPES,
    expected,
    expected_somewhere,
    random_entry,
)


def _principal(text: str) -> Principal:
    kind, _, name = text.partition(":")
    return Principal(kind, name)


class _Asked:
    """An authorizer over a set that changes, and the sessions that ask it."""

    def __init__(self, *, allow_everyone: bool) -> None:
        self.acls = AclSet.EMPTY
        self.default = allow_everyone
        audit = Audit(later=lambda seconds, call: None, api_name=str)
        self.authorizer = Authorizer(
            lambda: self.acls, audit, super_users=frozenset(), allow_everyone=allow_everyone, now=lambda: 0.0
        )
        self.sessions = {
            (principal, host): Session(_principal(principal), host, "L", "PLAINTEXT")
            for principal in PRINCIPALS
            for host in HOSTS
        }

    def change(self, random: Random, entries: dict[UUID, AclEntry]) -> None:
        removed = random.sample(sorted(entries), min(len(entries), random.randrange(4)))
        for one in removed:
            del entries[one]
        added: dict[UUID, AclEntry] = {}
        for _ in range(random.randrange(60)):
            entry = random_entry(random)
            if entry not in entries.values() and entry not in added.values():
                added[UUID(int=random.getrandbits(128))] = entry
        self.acls = self.acls.with_entries(added, removed)
        entries.update(added)

    def ask(self, random: Random, entries: list[AclEntry]) -> None:
        principal, host = random.choice(PRINCIPALS), random.choice(HOSTS)
        operation, resource = AclOperation(random.choice(OPERATIONS)), AclResourceType(random.choice(TYPES))
        name = random.choice(NAMES)
        session = self.sessions[principal, host]
        asked = principal, host, operation, resource
        found = self.authorizer.allows(session, operation, resource, name)
        assert found is expected(entries, *asked, name, self.default), (asked, name, entries)
        found = at_once(self.authorizer.allows_any(session, operation, resource))
        assert found is expected_somewhere(entries, *asked, self.default), (asked, entries)


def _cases(number: int, seed: int) -> None:
    random = Random(seed)
    while number > 0:
        asked, entries = _Asked(allow_everyone=random.random() < 0.3), dict[UUID, AclEntry]()
        for _ in range(random.randrange(1, 6)):
            asked.change(random, entries)
            listed = list(entries.values())
            assert dict(asked.acls.entries) == entries
            for _ in range(40):
                asked.ask(random, listed)
                number -= 1


@pytest.mark.parametrize("seed", range(3))
def test_answers_are_those_of_a_look_at_every_entry(seed: int) -> None:
    _cases(1500, seed)


@pytest.mark.thorough
def test_answers_are_those_of_a_look_at_every_entry_in_many_cases() -> None:
    _cases(100_000, 35)


@pytest.mark.parametrize("seed", range(3))
def test_a_resource_and_a_principal_with_many_entries_are_like_any_other(seed: int) -> None:
    random = Random(seed)
    of_many = [
        AclEntry(2, "a", random.choice((3, 4)), f"User:{n % 40}", random.choice(HOSTS), n % 12 + 2, 2 + n % 2)
        for n in range(600)
    ]
    of_one = [
        AclEntry(2, str(n), 3 + n % 2, "User:1", random.choice(HOSTS), n % 12 + 2, 3) for n in range(600)
    ]
    entries = dict(enumerate(dict.fromkeys(of_many + of_one)))
    acls = AclSet.EMPTY.with_entries({UUID(int=key): one for key, one in entries.items()}, ())
    for round_ in range(4):
        for _ in range(150):
            _ask_one(random, acls, list(entries.values()))
        gone = random.sample(sorted(entries), len(entries) // 3) if round_ < 3 else list(entries)
        acls = acls.with_entries({}, [UUID(int=one) for one in gone])
        for one in gone:
            del entries[one]
    assert acls == AclSet.EMPTY


def _ask_one(random: Random, acls: AclSet, entries: list[AclEntry]) -> None:
    asked = _Asked(allow_everyone=False)
    asked.acls = acls
    principal, host = f"User:{random.randrange(45)}", random.choice(HOSTS)
    session = Session(_principal(principal), host, "L", "PLAINTEXT")
    operation, name = AclOperation(random.choice(OPERATIONS)), random.choice(("a", "ab", "7", "77", "777"))
    found = asked.authorizer.allows(session, operation, AclResourceType.TOPIC, name)
    assert found is expected(entries, principal, host, operation, 2, name, False)
    found = at_once(asked.authorizer.allows_any(session, operation, AclResourceType.TOPIC))
    assert found is expected_somewhere(entries, principal, host, operation, 2, False)
