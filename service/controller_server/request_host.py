"""What controllers' handlers work with: the quorum, the controller, and what tells of them; on the loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from kio.schema.errors import ErrorCode

from service.base.clock import Clock
from service.base.errors import InvariantError, RequestError, StorageError
from service.base.rate_limited_log import RateLimitedLog
from service.config.settings import BrokerConfig
from service.metadata.controller.controller import Controller
from service.metadata.controller.features_control import FeatureUpdate
from service.metadata.controller.requests import (
    AlterResource,
    AlterResourceResult,
    CreatePartitions,
    CreatePartitionsResult,
    CreateTopic,
    CreateTopicResult,
    DeleteTopic,
    DeleteTopicResult,
)
from service.metadata.features import cluster_features
from service.metadata.image import KRAFT_VERSION, FeatureRange, MetadataImage
from service.metadata.publisher import Publisher
from service.network.request import RequestContext, Response
from service.partition.metrics import ServingMetrics
from service.serving.handlers.api_versions import Features
from service.serving.response_cache import EncodedSettings
from service.wire.api import ApiKey, RequestHeader
from service.wire.errors import Unanswered

_log = logging.getLogger(__name__)


class ControllerSide:
    """A controller as the handlers of its listener see it.

    `supported`: the feature levels that this node tells of, ``kraft.version`` among them.
    """

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        clock: Clock,
        node_id: int,
        cluster_id: str,
        metadata: Publisher,
        controller: Controller,
        *,
        supported: Sequence[FeatureRange] | None = None,
        heartbeat_interval_ms: int = 2_000,
    ) -> None:
        self._config = config
        self._clock = clock
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.metadata = metadata
        self.controller = controller
        self.supported = tuple(cluster_features() if supported is None else supported)
        self.heartbeat_interval_ms = heartbeat_interval_ms
        self.encoded_settings = EncodedSettings()
        self.metrics = ServingMetrics()
        # a limit for each, as those of another cluster ask without end and would leave no line for a broker
        self._strangers, self._refused_brokers = (
            RateLimitedLog(_log, now=lambda: clock.monotonic_ms() / 1000) for _ in range(2)
        )
        self._heartbeats: dict[int, tuple[int, int]] = {}
        """by broker: the connection by which it told of itself last, and its epoch"""
        self._tellers: set[int] = set()
        """connections by which heartbeats come, until they end"""

    @property
    def config(self) -> BrokerConfig:
        return self._config()

    @property
    def image(self) -> MetadataImage:
        """The newest committed metadata."""
        return self.metadata.image

    @property
    def kraft_version(self) -> int:
        """As this node's log says, committed or not."""
        return self.metadata.kraft_version

    async def load(self, module: str) -> ModuleType:
        """Everything that this listener's table names is there already, or small."""
        return import_module(module)

    def deadline_ms(self, timeout_ms: int) -> int:
        """Return when a request that may wait for so long is over, on the monotonic clock."""
        return self._clock.monotonic_ms() + timeout_ms

    async def ask_quorum(self, api_key: int, version: int, message: Any) -> Any:
        """What this node's part in the quorum answers. `Unanswered` where the quorum has ended."""
        try:
            return await self.metadata.quorum.handle(api_key, version, message)
        except StorageError as e:
            raise Unanswered(f"{ApiKey(api_key).name}: {e}") from e

    async def forward(
        self, context: RequestContext, header: RequestHeader, frame: memoryview, request: Any
    ) -> Response:
        """Nothing is decided elsewhere of what this listener serves."""
        raise InvariantError(f"{ApiKey(header.api_key).name} is not forwarded from a controller")

    def refused(self, context: RequestContext, why: str) -> None:
        """Say who asked for what only another node may ask for."""
        self._strangers.warning("refused %s: %s", context, why)

    def refused_broker(self, context: RequestContext, why: str) -> None:
        """Say which broker was not taken in."""
        self._refused_brokers.warning("refused %s: %s", context, why)

    # -- heartbeats and their connections

    def hears(self, connection_id: int) -> None:
        """A heartbeat came by that connection; `heard` once it is decided."""
        self._tellers.add(connection_id)

    def heard(self, connection_id: int, broker_id: int, broker_epoch: int) -> None:
        """The broker process told of itself by that connection, which may have ended meanwhile."""
        self._heartbeats[broker_id] = (connection_id, broker_epoch)
        if connection_id not in self._tellers:
            self.gone(connection_id)

    def gone(self, connection_id: int) -> None:
        """The connection ended. Where a broker told of itself by it last, the controller looks after it."""
        self._tellers.discard(connection_id)
        lost = [(one, epoch) for one, (by, epoch) in self._heartbeats.items() if by == connection_id]
        for broker_id, broker_epoch in lost:
            del self._heartbeats[broker_id]
            self.controller.brokers.connection_lost(broker_id, broker_epoch)


def features_of(side: ControllerSide) -> Features:
    """What a controller tells: as Kafka's, a kraft.version of 0 is not told of as finalized."""
    finalized = {name: level for name, level in side.image.features.items() if name != KRAFT_VERSION}
    if side.kraft_version:
        finalized[KRAFT_VERSION] = side.kraft_version
    return Features(side.supported, finalized, side.image.offset)


class Admin:
    """The controller as the admin's handlers ask it, for one request with its deadline.

    A broker's own checks of which broker is meant were made where the client spoke to it.
    """

    def __init__(self, side: ControllerSide, deadline_ms: int) -> None:
        self._side = side
        self._controller = side.controller
        self._deadline_ms = deadline_ms

    @property
    def config(self) -> BrokerConfig:
        return self._side.config

    @property
    def topic_admin(self) -> Admin:
        return self

    @property
    def config_admin(self) -> Admin:
        return self

    @property
    def feature_admin(self) -> Admin:
        return self

    async def create_topics(
        self, requests: Sequence[CreateTopic], *, validate_only: bool = False
    ) -> list[CreateTopicResult]:
        return await self._controller.create_topics(
            requests, validate_only=validate_only, deadline_ms=self._deadline_ms
        )

    async def create_partitions(
        self, requests: Sequence[CreatePartitions], *, validate_only: bool = False
    ) -> list[CreatePartitionsResult]:
        return await self._controller.create_partitions(
            requests, validate_only=validate_only, deadline_ms=self._deadline_ms
        )

    async def delete_topics(self, requests: Sequence[DeleteTopic]) -> list[DeleteTopicResult]:
        return await self._controller.delete_topics(requests, deadline_ms=self._deadline_ms)

    async def incremental_alter_configs(
        self,
        resources: Sequence[AlterResource],
        *,
        validate_only: bool = False,
        via_broker: int | None = None,
    ) -> list[AlterResourceResult]:
        return await self._controller.incremental_alter_configs(resources, validate_only=validate_only)

    async def alter_configs(
        self,
        resources: Sequence[AlterResource],
        *,
        validate_only: bool = False,
        via_broker: int | None = None,
    ) -> list[AlterResourceResult]:
        return await self._controller.alter_configs(resources, validate_only=validate_only)

    async def update_features(self, updates: Sequence[FeatureUpdate], *, validate_only: bool = False) -> None:
        await self._controller.update_features(updates, validate_only=validate_only)


def check_active(side: ControllerSide) -> None:
    """Raises `RequestError` NOT_CONTROLLER where this node does not decide now."""
    if not side.controller.is_active:
        raise RequestError(ErrorCode.not_controller, "This node does not lead the metadata quorum.")
