"""A node with an authorizer: what each API asks, and what nobody learns without a right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from service.network import server_connection
from service.security.principal import Principal
from service.security.session import Session
from tests.node.conftest import NodeThread, Talk
from tests.support.acl_requests import Asker
from tests.support.acl_table import CASES
from tests.support.processes import free_port

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


class People:
    """Clients of a node by name: who connects next is decided by the test, as there is no login yet."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.next = Principal("User", "admin")

        def session(host: str, listener: str) -> Session:
            return Session(self.next, host, listener, "PLAINTEXT")

        monkeypatch.setattr(server_connection, "anonymous", session)

    def client(self, node: NodeThread, name: str, kind: str = "User") -> Any:
        self.next = Principal(kind, name)
        return node.client()


@pytest.fixture
def people(monkeypatch: pytest.MonkeyPatch) -> People:
    return People(monkeypatch)


SETTINGS = {"authorizer_class_name": AUTHORIZER, "super_users": "User:admin"}


def of_a_cluster() -> dict[str, str]:
    """Settings of a node with a controller's listener: its broker forwards in Envelopes."""
    controller = free_port()
    return {
        "node_id": "1",
        "process_roles": "broker,controller",
        "listeners": f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{controller}",
        "controller_listener_names": "CONTROLLER",
        "controller_quorum_voters": f"1@127.0.0.1:{controller}",
    }


@pytest.fixture(params=["alone", "of a cluster"])
def node(request: Any, start: Callable[..., NodeThread], people: People) -> NodeThread:
    return start(**SETTINGS, **(of_a_cluster() if request.param == "of a cluster" else {}))


@pytest.fixture
def asker(node: NodeThread, people: People) -> Iterator[Asker]:
    with ExitStack() as stack:
        admin, alice = (Talk(stack.enter_context(people.client(node, name))) for name in ("admin", "alice"))
        asker = Asker(admin, alice)
        asker.wait_for_groups()
        yield asker


def test_each_api_asks_what_kafka_asks(asker: Asker) -> None:
    found = {case.name: tuple(asker.run(case)) for case in CASES}
    assert found == {case.name: case.expected for case in CASES}
