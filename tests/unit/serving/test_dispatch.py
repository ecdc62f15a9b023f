"""Every API that the wire knows is answered, by one handler each, and by ports of the controller alone."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from service.base.errors import InvariantError
from service.controller_server.api_table import CONTROLLER_APIS
from service.metadata.raft.keys import ReplicaKey
from service.metadata.raft.messages_out import to_request
from service.metadata.raft.requests import FetchAsked
from service.network.exchange import RequestContext
from service.serving import handlers
from service.serving.api_table import BROKER_APIS, CONTROLLER_KEYS, controller_apis
from service.serving.dispatch import Dispatcher
from service.serving.handlers import fetch, produce
from service.serving.served_api import Served
from service.wire.api import APIS, ApiKey, encode_request

FOLDER = Path(handlers.__file__).parent


TODAY = {
    0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 19, 20, 21, 22, 23, 32, 33, 35, 37, 42, 44, 47, 57, 60,
    61, 68, 69, 74, 75,
}  # fmt: skip


def test_each_api_has_one_row_in_the_table_of_its_listener() -> None:
    assert set(BROKER_APIS) == TODAY
    assert set(APIS) == TODAY | CONTROLLER_KEYS
    assert len({(row.handle, row.late) for row in BROKER_APIS.values()}) == len(BROKER_APIS)


def test_a_controllers_listener_tells_of_the_rows_it_has_and_takes_no_others() -> None:
    table = controller_apis({ApiKey.FETCH: Served(fetch.handle)})
    assert list(table) == [ApiKey.FETCH, ApiKey.API_VERSIONS]
    assert table[ApiKey.API_VERSIONS].handle is not BROKER_APIS[ApiKey.API_VERSIONS].handle
    with pytest.raises(InvariantError, match=r"\[0\]"):
        controller_apis({ApiKey.PRODUCE: Served(produce.handle)})


def test_what_kafkas_controllers_serve_may_be_served_on_ours() -> None:
    """ApiMessageType.ListenerType of 4.3.1, without SASL, ACLs, tokens, SCRAM and quotas; and our own."""
    kafka = {1, 18, 19, 20, 32, 33, 37, *range(43, 47), *range(52, 61), 62, 63, 64, 67, 70, 73, 80, 81, 82}
    assert kafka | {20000} == CONTROLLER_KEYS


@pytest.mark.parametrize("apis", [BROKER_APIS, CONTROLLER_APIS], ids=["broker", "controller"])
def test_a_slow_fetch_is_described_on_either_listener(apis: dict[int, Served]) -> None:
    """It was once the end of a follower's connection, as the loop had been held by something else."""
    host: Any = None
    _, _, message = to_request(FetchAsked(ReplicaKey(2), 1, 0, 0, 0, 0, 0, None))
    frame = memoryview(encode_request(ApiKey.FETCH, 18, 7, "client", message))[4:]
    context = RequestContext(1, "192.0.2.9", 5, "CONTROLLER")
    context.api_key, context.api_version = ApiKey.FETCH, 18
    assert Dispatcher(host, apis).describe(context, frame).startswith("FETCH ")


def test_no_handler_knows_the_controller_itself() -> None:
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.module != "service.metadata.controller.controller", path
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) != ("broker", "controller"), path
