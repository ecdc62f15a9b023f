"""The authorizer: super users, memory, what is not loaded or fails, and the audit log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.steps import at_once
from service.security.acls import AclEntry, AclSet
from service.security.audit import Audit
from service.security.authorizer import Authorizer, AuthorizerNotReady
from service.security.operations import AclOperation, AclResourceType
from service.security.principal import Principal
from service.security.session import NODE_ITSELF, Session

TOPIC, CLUSTER = AclResourceType.TOPIC, AclResourceType.CLUSTER
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE


class Node:
    """A node with ACLs that a test sets, and its authorizer."""

    def __init__(self, *, allow_everyone: bool = False) -> None:
        self.acls: AclSet | None = AclSet.EMPTY
        self.later: list[tuple[float, Callable[[], None]]] = []
        audit = Audit(later=lambda s, call: self.later.append((s, call)), api_name=lambda api: f"Api{api}")
        self.authorizer = Authorizer(
            lambda: self.acls,
            audit,
            super_users=frozenset({"User:admin"}),
            allow_everyone=allow_everyone,
            now=lambda: 0.0,
        )

    def set(self, *entries: AclEntry) -> None:
        self.acls = AclSet.EMPTY.with_entries({UUID(int=n): one for n, one in enumerate(entries)}, ())


def session(name: str, kind: str = "User", host: str = "127.0.0.1") -> Session:
    return Session(Principal(kind, name), host, "L", "SASL_SSL")


def entry(
    name: str = "t", operation: int = 3, permission: int = 3, principal: str = "User:alice", host: str = "*"
) -> AclEntry:
    return AclEntry(2, name, 3, principal, host, operation, permission)


def test_a_super_user_may_do_everything_whatever_is_denied() -> None:
    node = Node()
    node.set(entry(operation=2, permission=2, principal="User:*"))
    assert node.authorizer.allows(session("admin"), WRITE, TOPIC, "t")
    assert not node.authorizer.allows(session("alice"), WRITE, TOPIC, "t")
    assert not node.authorizer.allows(session("admin", "user"), WRITE, TOPIC, "t")


def test_a_type_with_a_colon_is_nobody() -> None:
    node = Node()
    node.set(entry(principal="User:a:b"))
    assert node.authorizer.allows(session("a:b"), READ, TOPIC, "t")
    assert not node.authorizer.allows(session("b", "User:a"), READ, TOPIC, "t")


@pytest.mark.parametrize("text", ["2001:db8::5", "2001:db8:0:0:0:0:0:5"], ids=["ours", "Java's"])
def test_an_entry_names_a_host_of_ipv6_as_we_or_as_java_would(text: str) -> None:
    """Entries made for Apache Kafka have Java's text: a denial that they say has to hold here."""
    node = Node()
    node.set(entry(), entry(permission=2, host=text), entry("u", host=text))
    there, elsewhere = session("alice", host="2001:db8::5"), session("alice", host="2001:db8::6")
    assert not node.authorizer.allows(there, READ, TOPIC, "t")
    assert node.authorizer.allows(elsewhere, READ, TOPIC, "t")
    assert node.authorizer.allows(there, READ, TOPIC, "u")
    assert not node.authorizer.allows(elsewhere, READ, TOPIC, "u")
    assert at_once(node.authorizer.allows_any(there, READ, TOPIC))
    node.set(entry(permission=2, host=text), entry())
    assert not at_once(node.authorizer.allows_any(there, READ, TOPIC))
    assert at_once(node.authorizer.allows_any(elsewhere, READ, TOPIC))


def test_without_entries_of_a_resource_everyone_is_allowed_if_that_is_configured() -> None:
    node = Node(allow_everyone=True)
    assert node.authorizer.allows(session("bob"), WRITE, TOPIC, "t")
    node.set(entry())
    assert not node.authorizer.allows(session("bob"), WRITE, TOPIC, "t")
    assert node.authorizer.allows(session("bob"), WRITE, TOPIC, "other")


def test_before_the_acls_are_loaded_only_super_users_and_the_node_itself_pass() -> None:
    node = Node(allow_everyone=True)
    node.acls = None
    assert node.authorizer.allows(session("admin"), READ, TOPIC, "t")
    assert node.authorizer.allows(NODE_ITSELF, READ, TOPIC, "t")
    alice = session("alice")
    with pytest.raises(AuthorizerNotReady) as raised:
        node.authorizer.allows(alice, READ, TOPIC, "t")
    assert raised.value.code is ErrorCode.unknown_server_error
    with pytest.raises(AuthorizerNotReady):
        node.authorizer.allowed_operations(alice, TOPIC, "t")
    node.acls = AclSet.EMPTY
    assert node.authorizer.allows(alice, READ, TOPIC, "t")


def test_a_change_is_seen_by_the_next_question() -> None:
    node, alice = Node(), session("alice")
    node.set(entry())
    assert node.authorizer.allows(alice, READ, TOPIC, "t")
    node.set(entry(), entry(permission=2))
    assert not node.authorizer.allows(alice, READ, TOPIC, "t")
    node.set()
    assert not node.authorizer.allows(alice, READ, TOPIC, "t")


def test_a_session_remembers_a_bounded_number_of_short_names() -> None:
    node, alice = Node(), session("alice")
    for n in range(2500):
        node.authorizer.allows(alice, READ, TOPIC, f"t{n}")
        assert len(fields(alice)) <= 1000
    node.authorizer.allows(alice, READ, AclResourceType.GROUP, "g" * 20_000)
    assert max(len(name) for _, name in fields(alice)) <= 255


def fields(of: Session) -> dict[tuple[int, str], int]:
    memo: Any = of.memo
    found: dict[tuple[int, str], int] = memo.fields
    return found


def test_an_authorizer_that_fails_denies_and_does_not_remember(caplog: pytest.LogCaptureFixture) -> None:
    node, alice = Node(), session("alice")
    node.set(entry())

    class Broken(AclSet):
        __slots__ = ()

        def rights(self, *asked: object) -> int:
            raise ZeroDivisionError

        def allows_any(self, *asked: object) -> Any:
            raise ZeroDivisionError

    good = node.acls
    assert good is not None
    node.acls = Broken(good._by_id, good._indexes, good._lengths)
    assert not node.authorizer.allows(alice, READ, TOPIC, "t")
    assert not at_once(node.authorizer.allows_any(alice, READ, TOPIC))
    assert node.authorizer.metrics.failed == 3
    assert "ZeroDivisionError" in caplog.text
    node.acls = good
    assert node.authorizer.allows(alice, READ, TOPIC, "t")


def test_operations_told_are_those_of_the_type() -> None:
    node = Node()
    node.set(entry(operation=2), AclEntry(3, "g", 3, "User:alice", "*", 2, 3))
    alice = session("alice")
    assert node.authorizer.allowed_operations(alice, TOPIC, "t") == sum(
        1 << one for one in (3, 4, 5, 6, 7, 8, 10, 11)
    )
    group = node.authorizer.allowed_operations(alice, AclResourceType.GROUP, "g")
    assert group == sum(1 << one for one in (3, 6, 8, 10, 11))
    cluster = node.authorizer.allowed_operations(session("admin"), CLUSTER, "kafka-cluster")
    assert cluster == sum(1 << one for one in (5, 7, 8, 9, 10, 11, 12))
    assert node.authorizer.allowed_operations(alice, CLUSTER, "kafka-cluster") == 0


def test_answers_are_counted_by_api() -> None:
    node, alice = Node(), session("alice")
    node.set(entry())
    node.authorizer.allows(alice, READ, TOPIC, "t", api=1)
    node.authorizer.allows(alice, READ, TOPIC, "t", api=1)
    node.authorizer.allows(alice, WRITE, TOPIC, "t", api=0, quiet=True)
    assert dict(node.authorizer.metrics.allowed) == {1: 2}
    assert dict(node.authorizer.metrics.denied) == {0: 1}


# The audit log


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[int], list[str]]:
    caplog.set_level(logging.INFO, "firn.audit")

    def lines(level: int) -> list[str]:
        return [
            one.getMessage() for one in caplog.records if one.levelno == level and one.name == "firn.audit"
        ]

    return lines


def test_a_denial_is_told_in_kafkas_words(lines: Callable[[int], list[str]]) -> None:
    node = Node()
    node.authorizer.allows(session("alice"), READ, TOPIC, "t", api=1, count=3)
    assert lines(logging.INFO) == [
        "Principal = User:alice is Denied operation = READ from host = 127.0.0.1 "
        "on resource = Topic:LITERAL:t for request = Api1 with resourceRefCount = 3 based on rule DefaultDeny"
    ]


def test_a_line_names_the_entry_that_decided(
    lines: Callable[[int], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "firn.audit")
    node = Node()
    node.set(
        AclEntry(2, "t", 4, "User:alice", "*", 2, 2), entry("s", 4), AclEntry(5, "x", 3, "User:*", "*", 2, 3)
    )
    alice = session("alice")
    node.authorizer.allows(alice, READ, TOPIC, "topic")
    node.authorizer.allows(alice, DESCRIBE, TOPIC, "s")
    node.authorizer.allows(alice, WRITE, AclResourceType.TRANSACTIONAL_ID, "x")
    node.authorizer.allows(session("admin"), READ, TOPIC, "t")
    [denied] = lines(logging.INFO)
    assert denied.endswith(
        "based on rule MatchingAcl(acl=StandardAcl[resourceType=TOPIC, resourceName=t, patternType=PREFIXED, "
        "principal=User:alice, host=*, operation=ALL, permissionType=DENY])"
    )
    by_write, by_all, as_super = lines(logging.DEBUG)
    assert "operation=WRITE, permissionType=ALLOW" in by_write
    assert "is Allowed operation = WRITE" in by_all
    assert "on resource = TransactionalId:LITERAL:x" in by_all
    assert "principal=User:*" in by_all
    assert as_super.endswith("based on rule SuperUser")


def test_allowed_and_quiet_answers_are_not_told_at_info(
    lines: Callable[[int], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    node, alice = Node(), session("alice")
    node.set(entry())
    node.authorizer.allows(alice, READ, TOPIC, "t")
    node.authorizer.allows(alice, WRITE, TOPIC, "t", quiet=True)
    assert lines(logging.INFO) == []
    caplog.set_level(5, "firn.audit")
    node.authorizer.allows(alice, WRITE, TOPIC, "t", quiet=True)
    assert len(lines(5)) == 1


def test_the_same_line_is_written_once_in_ten_seconds_with_its_count(
    lines: Callable[[int], list[str]],
) -> None:
    node, alice = Node(), session("alice")
    for _ in range(42):
        node.authorizer.allows(alice, READ, TOPIC, "t")
    node.authorizer.allows(alice, READ, TOPIC, "u")
    assert len(lines(logging.INFO)) == 2
    [(seconds, tell)] = node.later
    assert seconds == 10
    tell()
    assert len(lines(logging.INFO)) == 3
    assert lines(logging.INFO)[2].endswith("(41 times more in 10 s)")
    node.authorizer.allows(alice, READ, TOPIC, "t")
    assert len(lines(logging.INFO)) == 4


def test_lines_without_end_are_counted_and_not_kept(lines: Callable[[int], list[str]]) -> None:
    node, alice = Node(), session("alice")
    for n in range(5000):
        node.authorizer.allows(alice, READ, TOPIC, f"t{n}")
    assert len(lines(logging.INFO)) == 1000
    node.later[0][1]()
    assert lines(logging.INFO)[-1] == "4000 more answers, each of a line of its own, are left out"


def test_a_line_names_no_entry_of_somebody_else(lines: Callable[[int], list[str]]) -> None:
    """A principal whose type has a colon is nobody, though it reads like another one."""
    node = Node()
    node.set(entry(permission=2, principal="User:a:b"))
    node.authorizer.allows(session("b", "User:a"), READ, TOPIC, "t")
    node.set(entry(permission=2, principal="User:a:b"), entry(permission=2, principal="User:*"))
    node.authorizer.allows(session("c", "User:a"), READ, TOPIC, "t")
    first, second = lines(logging.INFO)
    assert first.endswith("based on rule DefaultDeny")
    assert "principal=User:*" in second


def test_lines_of_long_names_hold_no_memory(lines: Callable[[int], list[str]]) -> None:
    node, alice = Node(), session("alice")
    for n in range(1000):
        node.authorizer.allows(alice, READ, AclResourceType.GROUP, f"{n}-" + "g" * 32_000)
    kept = node.authorizer._audit._lines
    assert len(kept) == 1000
    assert max(len(one.name) for one in kept) < 300


def test_names_cannot_forge_a_line(lines: Callable[[int], list[str]]) -> None:
    node = Node()
    hostile = "x\r\n2026-01-01 INFO all is well \x1b[2J" + "y" * 70_000
    for principal in (session(hostile), session("a", hostile)):
        node.authorizer.allows(principal, READ, TOPIC, hostile)
    for line in lines(logging.INFO):
        assert line.isprintable()
        assert len(line) < 1500
