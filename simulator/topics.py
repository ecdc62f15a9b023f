"""Topics of the kinds that there are, made by a client and known to the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from simulator.client import Client, NoAnswer
from simulator.durable import segment_bases
from simulator.machine import Machine
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


def retention_ms_of(kind: str) -> int:
    """Return ``retention.ms`` of a topic of this kind; -1: for ever."""
    return 20_000 if "expiring" in kind else -1


def configs_of(random: Random, kind: str) -> dict[str, str]:
    """Return the settings with which a topic of this kind is created."""
    configs = {
        "internal.segment.bytes": str(random.choice((700, 1500, 6000))),
        "retention.ms": str(retention_ms_of(kind)),
        "index.interval.bytes": str(random.choice((1, 300, 4096))),
        "file.delete.delay.ms": "1000",
    }
    if "tiered" in kind:
        configs["remote.storage.enable"] = "true"
        configs["local.retention.bytes"] = str(random.choice((1, 3000)))
    if "compacted" in kind:
        configs |= COMPACTED
    if "flushed" in kind:
        configs["flush.messages"] = "1"
    return configs


def offset_to_delete(random: Random, machine: Machine, topic: TopicModel, partition: PartitionModel) -> int:
    """Anywhere, a segment's border more often than by chance, the end and beyond; -1: all there is."""
    end = max(partition.end_offset, partition.log_start)
    borders = segment_bases(machine.platter, machine.log_dirs, topic.name, partition.index) or [0]
    anywhere, border = random.randint(0, end), random.choice(borders)
    return random.choice((-1, anywhere, anywhere, border, border, end, end + 100))


async def delete_up_to(
    client: Client, tell: Callable[[str], None], topic: TopicModel, partition: PartitionModel, offset: int
) -> None:
    """DeleteRecords, and what the model is to know of it."""
    partition.delete_asked(offset)
    try:
        error, low_watermark = await client.delete_records(topic.name, partition.index, offset)
    except NoAnswer:
        error, low_watermark = ErrorCode.request_timed_out, -1
    tell(f"delete {partition} up to {offset} at {client.address[0]}: {error.name}, {low_watermark}")
    partition.delete_answered(offset, error, low_watermark)


async def create(
    world: SimWorld, random: Random, kind: str, partitions: int, configs: Mapping[str, str] | None = None
) -> TopicModel | None:
    """Make one; None where it is not known to be there. The node is running. Without `configs` they are
    drawn."""
    configs = configs_of(random, kind) if configs is None else configs
    name = f"t{len(world.topics)}"
    # A topic whose creation nobody answered is judged only once the client has seen it.
    try:
        error, topic_id = await world.client.create_topic(name, partitions, configs)
    except NoAnswer:
        error, topic_id = ErrorCode.request_timed_out, None
    world.tell(f"create {name}: {kind}, {partitions} partitions: {error.name}")
    if error is not ErrorCode.none or topic_id is None:  # the name may be taken now
        world.topics.append(TopicModel(name, NOBODY, [], "tiered" in kind, False, -1, deleted=True))
        return None
    compacted = "compacted" in kind
    models = [PartitionModel(name, index, compacted=compacted) for index in range(partitions)]
    retention_ms = 0 if world.bytes_expire else retention_ms_of(kind)
    topic = TopicModel(name, topic_id, models, "tiered" in kind, "flushed" in kind, retention_ms)
    world.topics.append(topic)
    return topic
