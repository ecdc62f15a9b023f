"""Controllers on real files, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from service.base.clock import ManualClock
from service.base.steps import Steps
from service.base.threads import SystemThreads
from service.base.types import TopicIdPartition
from service.base.world import World
from service.config.settings import BrokerConfig
from service.metadata.controller.controller import Controller, ControllerOptions
from service.metadata.controller.requests import (
    ConfigRules,
    CreateTopic,
    Endpoint,
    RegisterBroker,
    ResourceType,
    TopicDefaults,
)
from service.metadata.features import supported_features
from service.metadata.image import FeatureRange, MetadataImage
from service.metadata.publisher import MetadataOptions, Publisher
from service.remote.catalog import CatalogCommit, CatalogEntry
from service.security.tokens import TokenRules
from service.serving.config_validation import NodeConfigRules
from tests.support.world import make_world

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
LOG_DIR = UUID("1d1c8ca4-3bc9-ae6e-30fc-21b2ac5246ad")


class AnyConfig:
    """Rules by which everything goes; ``cleanup.policy`` is the one list."""

    def validate(
        self,
        image: MetadataImage,
        resource_type: ResourceType,
        resource_name: str,
        configs: Mapping[str, str],
    ) -> Steps[None]:
        """Never refuses."""
        yield

    def is_list(self, resource_type: ResourceType, key: str) -> bool:
        return key == "cleanup.policy"

    def default(self, resource_type: ResourceType, key: str) -> str | None:
        return "delete" if key == "cleanup.policy" else None

    def secrecy(self, key: str) -> str | None:
        return None

    def refusal(self, key: str) -> str | None:
        return None


class LoneController(Controller):
    """A controller with the publisher that it is a guest on: started together, and stopped."""

    def __init__(
        self, options: ControllerOptions, publisher: Publisher, world: World, rules: ConfigRules
    ) -> None:
        super().__init__(options, publisher, world, rules, on_news=self._note_deadline)
        self.publisher = publisher
        self.told_ms: int | None = None
        """what `next_deadline_ms` was when somebody was told last that it may have come nearer"""

    def _note_deadline(self) -> None:
        self.told_ms = self.next_deadline_ms

    async def start(self) -> None:
        await self.publisher.start()
        await super().start()

    async def close(self) -> None:
        self.stop()
        await self.publisher.stop()


class PoolOf(SystemThreads):
    """Threads whose pools are all `executor`."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def pool(self, name: str, size: int, *, nice: int = 0) -> Executor:
        return self._executor


def make_controller(
    directory: Path,
    *,
    rules: ConfigRules | None = None,
    on_fatal: Callable[[str, BaseException], None] | None = None,
    log_io: Executor | None = None,
    world: World | None = None,
    supported: tuple[FeatureRange, ...] | None = None,
    tokens: TokenRules | None = None,
    **options: Any,
) -> LoneController:
    """A controller of node 1, not started, with the node's own configuration rules unless given others."""
    node = BrokerConfig.from_properties({"node.id": "1", "log.dirs": str(directory), "num.partitions": "4"})
    world = world or make_world(ManualClock())
    if log_io is not None:
        world = replace(world, threads=PoolOf(log_io))
    publisher = Publisher(
        MetadataOptions(node_id=1, directory=directory, **options), world, on_fatal=on_fatal or refuse_failure
    )
    return LoneController(
        ControllerOptions(
            node_id=1,
            cluster_id=CLUSTER_ID,
            defaults=TopicDefaults(num_partitions=4, replication_factor=1),
            listeners=(Endpoint("CONTROLLER", "127.0.0.1", 9093),),
            supported=supported_features() if supported is None else supported,
            tokens=tokens or TokenRules(),
        ),
        publisher,
        world,
        rules or NodeConfigRules(lambda: node),
    )


def refuse_failure(what: str, error: BaseException) -> None:
    """Fail a test that expects no failure."""
    raise AssertionError(f"{what} failed") from error


@asynccontextmanager
async def running(directory: Path, **options: Any) -> AsyncIterator[LoneController]:
    """A controller that leads, stopped in the end."""
    controller = make_controller(directory, **options)
    try:
        await controller.start()
        yield controller
    finally:
        await controller.close()


def registration(broker_id: int = 1, **changes: Any) -> RegisterBroker:
    """A broker process of this cluster."""
    log_dirs = (LOG_DIR if broker_id == 1 else UUID(int=LOG_DIR.int + broker_id),)
    fields: dict[str, Any] = {
        "broker_id": broker_id,
        "incarnation_id": uuid4(),
        "endpoints": (Endpoint("PLAINTEXT", "127.0.0.1", 9092),),
        "cluster_id": CLUSTER_ID,
        "log_dirs": log_dirs,
    }
    return RegisterBroker(**{**fields, **changes})


async def join(controller: Controller, broker_id: int = 1) -> int:
    """Register and unfence a broker; returns its epoch."""
    epoch = await controller.brokers.register(registration(broker_id))
    await controller.brokers.unfence(broker_id, epoch)
    return epoch


async def create(controller: Controller, name: str, partitions: int = 1) -> UUID:
    """Create a topic that must not fail; returns its id."""
    (result,) = await controller.create_topics([CreateTopic(name, partitions)])
    assert result.error.value == 0, result
    return result.topic_id


def catalog_commit(
    topic_id: UUID, partition: int, version: int, leader_epoch: int, end_offset: int = 100
) -> CatalogCommit:
    """A commit of `version` on top of the version before it."""
    entry = CatalogEntry(
        version=version,
        manifest_key=f"data/{topic_id}/{partition}/manifest/{version}",
        leader_epoch=leader_epoch,
        start_offset=0,
        end_offset=end_offset,
        segments=1,
        size_bytes=1000,
    )
    return CatalogCommit(TopicIdPartition(topic_id, "topic", partition), version - 1, entry)
