"""ACLs of a node: none before the metadata is loaded, those of the newest image after that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

from service.config.settings import BrokerConfig
from service.node.authorizer import LoadedAcls, api_name, make_authorizer
from service.security.acls import AclEntry, AclSet


def test_acls_are_known_once_the_metadata_has_loaded_and_are_the_newest_then() -> None:
    log: Any = SimpleNamespace(has_loaded=False, image=SimpleNamespace(acls=AclSet.EMPTY))
    metadata: list[Any] = [None]
    acls = LoadedAcls(lambda: metadata[0])
    assert acls() is None
    metadata[0] = log
    assert acls() is None
    log.has_loaded = True
    assert acls() is AclSet.EMPTY
    later = AclSet.EMPTY.with_entries({UUID(int=1): AclEntry(2, "t", 3, "User:alice", "*", 3, 3)}, ())
    log.image = SimpleNamespace(acls=later)
    assert acls() is later


def test_a_node_without_the_key_has_no_authorizer() -> None:
    assert make_authorizer(BrokerConfig.from_properties({}), lambda: None) is None


def test_apis_have_kafkas_names() -> None:
    assert [api_name(key) for key in (0, 2, 60, 75, 31_000)] == [
        "Produce", "ListOffsets", "DescribeCluster", "DescribeTopicPartitions", "31000",
    ]  # fmt: skip
