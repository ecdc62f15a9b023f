"""Topics of the kinds that there are, made by a client and known to the model."""

from __future__ import annotations

from random import Random
from typing import Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from simulator.client import NoAnswer
from simulator.model import PartitionModel, TopicModel
from simulator.world import SimWorld

COMPACTED: Final = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}
NOBODY: Final = UUID(int=0)
TOPIC_KINDS: Final = (
    "plain",
    "flushed",
    "tiered",
    "tiered and flushed",
    "expiring",
    "tiered and expiring",
    "compacted",
    "compacted and flushed",
)


async def create(world: SimWorld, random: Random, kind: str, partitions: int) -> TopicModel | None:
    """Make one; None where it is not known to be there. The node is running."""
    tiered, expiring = "tiered" in kind, "expiring" in kind
    retention_ms = 20_000 if expiring else -1
    configs = {
        "internal.segment.bytes": str(random.choice((700, 1500, 6000))),
        "retention.ms": str(retention_ms),
        "index.interval.bytes": str(random.choice((1, 300, 4096))),
        "file.delete.delay.ms": "1000",
    }
    if tiered:
        configs["remote.storage.enable"] = "true"
        configs["local.retention.bytes"] = str(random.choice((1, 3000)))
    if "compacted" in kind:
        configs |= COMPACTED
    if "flushed" in kind:
        configs["flush.messages"] = "1"
    name = f"t{len(world.topics)}"
    # A topic whose creation nobody answered is judged only once the client has seen it.
    try:
        error, topic_id = await world.client.create_topic(name, partitions, configs)
    except NoAnswer:
        error, topic_id = ErrorCode.request_timed_out, None
    world.tell(f"create {name}: {kind}, {partitions} partitions: {error.name}")
    if error is not ErrorCode.none or topic_id is None:  # the name may be taken now
        world.topics.append(TopicModel(name, NOBODY, [], tiered, False, -1, deleted=True))
        return None
    compacted = "compacted" in kind
    models = [PartitionModel(name, index, compacted=compacted) for index in range(partitions)]
    retention_ms = 0 if world.bytes_expire else retention_ms
    topic = TopicModel(name, topic_id, models, tiered, "flushed" in kind, retention_ms)
    world.topics.append(topic)
    return topic
