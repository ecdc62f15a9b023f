"""Elections that are asked for come by the hundred thousand, and a controller has other things to do."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from service.controller_server.handlers.partitions import elect
from service.metadata.controller.requests import ElectionResult, ElectLeaders
from service.network.request import RequestContext
from service.security.session import anonymous
from service.wire.api import ApiKey, request_module
from tests.support.turns import Clock, count_turns, with_clock

COUNT = 20_000


class Elects:
    """The controller: every partition has its leader."""

    async def elect_leaders(self, asked: ElectLeaders, *, deadline_ms: int) -> list[ElectionResult]:
        places = [(f"t{n % 2}", n) for n in range(COUNT)] if asked.partitions is None else asked.partitions
        return [ElectionResult(*place, ErrorCode.none) for place in places]


@pytest.mark.parametrize("is_every", [False, True])
def test_many_elections_are_read_and_answered_in_slices(is_every: bool) -> None:
    module = request_module(ApiKey.ELECT_LEADERS)
    topics = tuple(
        module.TopicPartitions(topic=f"t{n}", partitions=tuple(range(n, COUNT, 2))) for n in range(2)
    )
    request = module.ElectLeadersRequest(election_type=0, topic_partitions=None if is_every else topics)
    side = SimpleNamespace(controller=Elects(), deadline_ms=lambda timeout_ms: timeout_ms)

    async def scenario(clock: Clock) -> Any:
        context = RequestContext(1, "127.0.0.1", 50_000, "C", anonymous("127.0.0.1", "C"))
        work = asyncio.ensure_future(elect(cast("Any", side), context, request))
        return await count_turns(work), work.result()

    turns, answer = with_clock(scenario)
    told = {
        one.topic: [each.partition_id for each in one.partition_result]
        for one in answer.replica_election_results
    }
    assert told == {f"t{n}": list(range(n, COUNT, 2)) for n in range(2)}
    assert turns >= COUNT // 200, "200 steps are a slice of a clock that stands still"
