"""The dispatcher's description of requests; handlers know the controller by its ports alone."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from service.controller_server.api_table import CONTROLLER_APIS
from service.metadata.raft.keys import ReplicaKey
from service.metadata.raft.messages_out import to_request
from service.metadata.raft.requests import RaftFetchRequest
from service.network.request import RequestContext
from service.security.session import anonymous
from service.serving import handlers
from service.serving.api_table import BROKER_APIS
from service.serving.dispatch import Dispatcher
from service.serving.served_api import Served
from service.wire.api import ApiKey, encode_request
from tests.support.fetch_frames import Named, fetch_frame

FOLDER = Path(handlers.__file__).parent


@pytest.mark.parametrize("apis", [BROKER_APIS, CONTROLLER_APIS], ids=["broker", "controller"])
def test_a_slow_fetch_is_described_on_either_listener(apis: dict[int, Served]) -> None:
    """It was once the end of a follower's connection, as the loop had been held by something else."""
    host: Any = None
    _, _, message = to_request(RaftFetchRequest(ReplicaKey(2), 1, 0, 0, 0, 0, 0, None))
    frame = memoryview(encode_request(ApiKey.FETCH, 18, 7, "client", message))[4:]
    context = RequestContext(1, "192.0.2.9", 5, "CONTROLLER", anonymous("192.0.2.9", "CONTROLLER"))
    context.api_key, context.api_version = ApiKey.FETCH, 18
    assert Dispatcher(host, apis).describe(context, frame).startswith("FETCH ")


def test_a_fetch_of_many_partitions_is_not_parsed_in_vain() -> None:
    host: Any = SimpleNamespace(quotas=SimpleNamespace(active=False))
    parsed: list[int] = []

    def parse(version: int, frame: memoryview, body: int, most: int) -> Any:
        parsed.append(len(frame))
        return SimpleNamespace(topics=[("t", [(3,)])])

    apis: dict[int, Served] = {ApiKey.FETCH: BROKER_APIS[ApiKey.FETCH]._replace(parse=parse)}
    dispatcher = Dispatcher(host, apis)
    context = RequestContext(1, "192.0.2.9", 5, "CLIENTS", anonymous("192.0.2.9", "CLIENTS"))
    context.api_key, context.api_version = ApiKey.FETCH, 11
    short, long = (
        memoryview(fetch_frame(11, [("t", [Named(number, 0) for number in range(count)])], {}))
        for count in (100, 2000)
    )
    assert dispatcher.describe(context, short).startswith("FETCH of t-3 from ")
    assert dispatcher.describe(context, long).startswith(f"FETCH ({len(long)} bytes) from ")
    in_slices: Any = dispatcher(context, long)
    in_slices.close()
    assert parsed == [len(short)]


def test_no_handler_knows_the_controller_itself() -> None:
    paths = [*FOLDER.glob("*.py")]
    assert len(paths) > 30
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.module != "service.metadata.controller.controller", path
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) != ("broker", "controller"), path
