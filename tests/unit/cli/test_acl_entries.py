"""Options of `firn acl` become the entries that kafka-acls makes of them."""

from __future__ import annotations

import pytest

from service.base.errors import ConfigError
from service.cli.acl_entries import entries_of, queries_of, row_of
from service.cli.main import build_parser
from service.security.acl_index import AclEntry


def added(line: str) -> set[tuple[object, ...]]:
    return {tuple(one) for one in entries_of(build_parser("acl").parse_args(["acl", "add", *line.split()]))}


def test_a_producer_writes_describes_and_creates() -> None:
    line = "--allow-principal User:alice --producer --topic orders --transactional-id tx --idempotent"
    assert added(line) == {
        (2, "orders", 3, "User:alice", "*", 4, 3),
        (2, "orders", 3, "User:alice", "*", 8, 3),
        (2, "orders", 3, "User:alice", "*", 5, 3),
        (5, "tx", 3, "User:alice", "*", 4, 3),
        (5, "tx", 3, "User:alice", "*", 8, 3),
        (4, "kafka-cluster", 3, "User:alice", "*", 12, 3),
    }


def test_a_consumer_reads_topics_and_groups() -> None:
    line = "--allow-principal User:bob --consumer --topic o- --group r- --resource-pattern-type prefixed"
    assert added(line) == {
        (2, "o-", 4, "User:bob", "*", 3, 3),
        (2, "o-", 4, "User:bob", "*", 8, 3),
        (3, "r-", 4, "User:bob", "*", 3, 3),
    }


def test_one_principal_may_be_both() -> None:
    line = "--allow-principal User:a --producer --consumer --topic t --group g --allow-host 192.0.2.1"
    assert added(line) == {
        *((2, "t", 3, "User:a", "192.0.2.1", operation, 3) for operation in (3, 4, 5, 8)),
        (3, "g", 3, "User:a", "192.0.2.1", 3, 3),
    }


def test_each_principal_host_and_operation_is_an_entry() -> None:
    line = (
        "--allow-principal User:a --allow-principal User:b --deny-principal User:c --deny-host 192.0.2.7 "
        "--operation Read --operation DescribeConfigs --topic t --group g"
    )
    whom = (("User:a", "*", 3), ("User:b", "*", 3), ("User:c", "192.0.2.7", 2))
    assert added(line) == {
        (kind, name, 3, principal, host, operation, permission)
        for kind, name in ((2, "t"), (3, "g"))
        for principal, host, permission in whom
        for operation in (3, 10)
    }


def test_an_entry_without_an_operation_is_about_all() -> None:
    assert added("--deny-principal User:* --cluster") == {(4, "kafka-cluster", 3, "User:*", "*", 2, 2)}
    line = "--allow-principal User:a --delegation-token T --user-principal User:o"
    assert {one[:2] for one in added(line)} == {(6, "T"), (7, "User:o")}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("--topic t", "whom is it about"),
        ("--allow-principal User:a", "of which resource"),
        ("--allow-principal User:a --producer", "need --topic"),
        ("--allow-principal User:a --consumer --topic t", "--consumer needs --group"),
        ("--allow-principal User:a --producer --topic t --group g", "--group says nothing"),
        ("--allow-principal User:a --producer --topic t --operation Read", "no --operation"),
        ("--deny-principal User:a --consumer --topic t --group g", "nothing denied"),
        ("--allow-principal User:a --consumer --topic t --group g --cluster", "are about topics"),
        ("--allow-principal User:a --topic t --idempotent", "--idempotent says nothing"),
        ("--allow-principal User:a --topic t --operation ClusterAction", "no ClusterAction on a topic: All"),
        ("--allow-principal User:a --group g --operation Write", "no Write on a group"),
        ("--allow-principal User:a --topic t --deny-host 192.0.2.1", "--deny-host says nothing"),
    ],
)
def test_options_that_do_not_go_together_are_refused(line: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        added(line)


@pytest.mark.parametrize("principal", ["alice", ":alice", "User:"])
def test_a_principal_has_a_type(principal: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        added(f"--allow-principal {principal} --topic t")
    assert "expected User:NAME" in capsys.readouterr().err


def removed(line: str) -> list[tuple[object, ...]]:
    return [
        tuple(one) for one in queries_of(build_parser("acl").parse_args(["acl", "remove", *line.split()]))
    ]


def test_removal_takes_what_was_added_or_all_of_a_resource() -> None:
    assert removed("--allow-principal User:a --topic t --operation Read") == [
        (2, "t", 3, "User:a", "*", 3, 3)
    ]
    assert removed("--topic t --resource-pattern-type match") == [(2, "t", 2, None, None, 1, 1)]
    assert removed("--cluster --group *") == [
        (3, "*", 3, None, None, 1, 1),
        (4, "kafka-cluster", 3, None, None, 1, 1),
    ]


@pytest.mark.parametrize("line", ["", "--operation Read --topic t", "--producer --topic t"])
def test_nothing_is_removed_by_a_line_that_is_not_whole(line: str) -> None:
    with pytest.raises(ConfigError):
        removed(line)


def test_numbers_of_a_newer_kafka_are_shown_as_numbers() -> None:
    assert row_of(AclEntry(2, "t", 4, "User:a", "*", 9, 2)) == {
        "resource_type": "topic",
        "name": "t",
        "pattern": "prefixed",
        "principal": "User:a",
        "host": "*",
        "permission": "deny",
        "operation": "ClusterAction",
    }
    assert list(row_of(AclEntry(70, "t", 40, "User:a", "*", 99, 50)).values()) == [
        "70", "t", "40", "User:a", "*", "50", "99",
    ]  # fmt: skip
