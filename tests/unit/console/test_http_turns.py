"""Requests to a node's HTTP listener: each has a turn of the loop for itself, whatever comes behind it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from service.base.world import system_world
from service.console.access_settings import AccessSettings
from service.console.server import Console


def test_no_request_is_answered_in_the_turn_of_the_one_before() -> None:
    async def run() -> None:
        node: Any = SimpleNamespace()
        console = Console(node, system_world(), AccessSettings("http"), most_partitions=0)
        request: Any = SimpleNamespace(path="/healthz", method="GET", headers={})
        answering = console._serve(request)
        assert answering.send(None) is None, "it waits for the next turn"
        with pytest.raises(StopIteration) as answered:
            answering.send(None)
        assert answered.value.value.text == "ok\n"

    asyncio.run(run())
