"""Sets of ACLs: what may be in them, and that a change leaves the set before as it was."""

from __future__ import annotations

from uuid import UUID

import pytest

from service.base.errors import CorruptionError
from service.security.acls import AclEntry, AclSet
from service.security.operations import allowed_by

ONE, TWO = UUID(int=1), UUID(int=2)
READ = AclEntry(2, "t", 3, "User:alice", "*", 3, 3)


def allowed(acls: AclSet, name: str, principal: str = "User:alice", host: str = "10.0.0.1") -> int:
    rights = acls.rights(2, name, principal, host)
    return -1 if rights == -1 else allowed_by(rights)


def test_a_change_makes_another_set_and_leaves_the_one_before() -> None:
    before = AclSet.EMPTY.with_entries({ONE: READ}, ())
    after = before.with_entries({TWO: READ._replace(operation=4)}, (ONE,))
    assert dict(before.entries) == {ONE: READ}
    assert dict(after.entries) == {TWO: READ._replace(operation=4)}
    assert allowed(before, "t") == 1 << 3 | 1 << 8
    assert allowed(after, "t") == 1 << 4 | 1 << 8


def test_no_change_is_the_same_object() -> None:
    acls = AclSet.EMPTY.with_entries({ONE: READ}, ())
    assert acls.with_entries({}, ()) is acls


@pytest.mark.parametrize("number", [1, 5, 20], ids=["one", "few", "many"])
def test_an_equal_entry_with_another_id_contradicts(number: int) -> None:
    entries = {UUID(int=n): READ._replace(principal=f"User:{n}") for n in range(number)}
    acls = AclSet.EMPTY.with_entries(entries, ())
    with pytest.raises(CorruptionError, match="is there twice"):
        acls.with_entries({UUID(int=999): entries[UUID(int=0)]}, ())


def test_an_id_that_is_there_and_one_that_is_not_contradict() -> None:
    acls = AclSet.EMPTY.with_entries({ONE: READ}, ())
    with pytest.raises(CorruptionError, match="is there already"):
        acls.with_entries({ONE: READ._replace(operation=4)}, ())
    with pytest.raises(CorruptionError, match="there is no ACL"):
        acls.with_entries({}, (TWO,))


@pytest.mark.parametrize(
    "entry",
    [
        READ._replace(resource_type=1), READ._replace(resource_type=8),
        READ._replace(pattern=2), READ._replace(permission=1),
    ],
    ids=["any type", "unknown type", "pattern match", "permission any"],
)  # fmt: skip
def test_numbers_that_no_entry_can_have_contradict(entry: AclEntry) -> None:
    with pytest.raises(CorruptionError, match="unknown"):
        AclSet.EMPTY.with_entries({ONE: entry}, ())


def test_an_operation_of_a_newer_kafka_is_kept_and_allows_nothing_known() -> None:
    entry = READ._replace(operation=16)
    acls = AclSet.EMPTY.with_entries({ONE: entry, TWO: entry._replace(permission=2)}, ())
    assert dict(acls.entries)[ONE].operation == 16
    assert allowed(acls, "t") == 0
    assert acls.with_entries({}, (ONE, TWO)) == AclSet.EMPTY


def test_a_resource_of_somebody_elses_entry_has_an_entry() -> None:
    acls = AclSet.EMPTY.with_entries({ONE: READ}, ())
    assert allowed(acls, "t", "User:bob") == 0
    assert allowed(acls, "other", "User:bob") == -1


@pytest.mark.parametrize(
    ("pattern", "name", "asked", "hit"),
    [
        (3, "t", "t", True),
        (3, "t", "tt", False),
        (3, "*", "anything", True),
        (3, "a*", "ab", False),
        (4, "t", "tt", True),
        (4, "t", "t", True),
        (4, "t", "s", False),
        (4, "*", "*x", True),
        (4, "*", "x", False),
        (3, "T", "t", False),
        (3, "\u0430", "a", False),
    ],
)
def test_names_match_whole_by_prefix_or_by_the_wildcard(
    pattern: int, name: str, asked: str, hit: bool
) -> None:
    acls = AclSet.EMPTY.with_entries({ONE: READ._replace(pattern=pattern, name=name)}, ())
    assert (allowed(acls, asked) > 0) is hit


@pytest.mark.parametrize(
    ("of", "asks", "hit"),
    [
        ("User:*", "User:bob", True),
        ("User:*", "Group:bob", True),
        ("User:bob", "User:bob", True),
        ("user:bob", "User:bob", False),
        ("User:Bob", "User:bob", False),
        ("User:bob", "User:*", False),
        ("Group:*", "Group:bob", False),
    ],
)
def test_principals_match_with_type_and_case_or_as_everybody(of: str, asks: str, hit: bool) -> None:
    acls = AclSet.EMPTY.with_entries({ONE: READ._replace(principal=of)}, ())
    assert (allowed(acls, "t", asks) > 0) is hit


def test_hosts_match_as_text() -> None:
    acls = AclSet.EMPTY.with_entries({ONE: READ._replace(host="10.0.0.1")}, ())
    assert allowed(acls, "t", host="10.0.0.1") > 0
    assert allowed(acls, "t", host="10.0.0.10") == 0


def test_a_denial_of_everything_leaves_nothing_and_one_of_read_leaves_describe() -> None:
    everything = READ._replace(operation=2)
    acls = AclSet.EMPTY.with_entries({ONE: everything, TWO: READ._replace(permission=2)}, ())
    assert allowed(acls, "t") & (1 << 3 | 1 << 8) == 1 << 8
    acls = AclSet.EMPTY.with_entries({ONE: everything, TWO: everything._replace(permission=2)}, ())
    assert allowed(acls, "t") == 0


@pytest.mark.parametrize(
    ("operation", "told"),
    [
        (3, {3, 8}), (4, {4, 8}), (6, {6, 8}), (7, {7, 8}), (11, {10, 11}), (5, {5}), (8, {8}), (10, {10}),
        (2, set(range(3, 16))),
    ],
)  # fmt: skip
def test_some_operations_allow_another_one(operation: int, told: set[int]) -> None:
    acls = AclSet.EMPTY.with_entries({ONE: READ._replace(operation=operation)}, ())
    field = allowed(acls, "t")
    assert {one for one in range(32) if field >> one & 1} == told


def test_the_length_of_a_removed_prefix_is_forgotten() -> None:
    prefix = READ._replace(pattern=4)
    acls = AclSet.EMPTY.with_entries({ONE: prefix, TWO: prefix._replace(operation=4)}, ())
    assert allowed(acls.with_entries({}, (ONE,)), "tx") == 1 << 4 | 1 << 8
    assert allowed(acls.with_entries({}, (ONE, TWO)), "tx") == -1
    assert allowed(acls, "tx") == 1 << 3 | 1 << 4 | 1 << 8
