"""A commit plan whose shard has left the node makes room for the plan of what its connection commits now."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.java_hash import partition_of
from service.serving.internal_topics import OFFSETS
from service.wire.api import ApiKey, request_module
from tests.support.one_of_three import ME, OneOfThree, changed, partition, topic
from tests.unit.serving.leadership import NONE, run

OF_GROUPS = UUID(int=200)
PLACES = (
    topic(),
    topic(OFFSETS, OF_GROUPS),
    partition(0, ME),
    *(partition(number, ME, topic_id=OF_GROUPS) for number in range(2)),
)
CONNECTION = 1
"""that of all requests of `OneOfThree.call`"""


async def commit(node: OneOfThree, group: str, offset: int) -> None:
    module, clock = request_module(ApiKey.OFFSET_COMMIT), node.broker.clock
    assert hasattr(clock, "advance")
    clock.advance(1)
    one = module.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    while True:
        answer = await node.call(
            ApiKey.OFFSET_COMMIT, "OffsetCommitRequest", 9, group_id=group, member_id="",
            topics=(module.OffsetCommitRequestTopic(name="t", partitions=(one,)),),
        )  # fmt: skip
        error = ErrorCode(answer.topics[0].partitions[0].error_code)
        if error is not ErrorCode.coordinator_load_in_progress:
            assert error is NONE
            return
        await asyncio.sleep(0)


def test_a_plan_without_its_shard_is_replaced(tmp_path: Path) -> None:
    gone, stays = "a", "b"
    assert (partition_of(gone, 2), partition_of(stays, 2)) == (1, 0)

    async def scenario(node: OneOfThree) -> None:
        for offset in range(4):
            await commit(node, gone, offset)
        plans: Any = node.broker.groups.plans
        assert plans.find(CONNECTION).plain.group_id == gone
        assert plans.find(CONNECTION).is_like
        await node.tell(changed(1, OF_GROUPS, leader=-1))
        assert node.broker.groups.runtime.active(1) is None
        for offset in range(20):
            await commit(node, stays, offset)
        assert plans.find(CONNECTION).plain.group_id == stays
        assert plans.find(CONNECTION).taken

    run(tmp_path, scenario, *PLACES)
