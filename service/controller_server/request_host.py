"""Host of a controller's request handlers: the quorum, the controller and the settings; on the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

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
from service.network.request_meter import RequestQuotas
from service.network.server import Server
from service.partition.metrics import ServingMetrics
from service.quotas.mutations import MutationQuota
from service.security.operations import AclOperation
from service.serving.handlers.api_versions import Features
from service.serving.response_cache import EncodedSettings
from service.wire.api import ApiKey, RequestHeader
from service.wire.errors import Unanswered

if TYPE_CHECKING:
    from service.security.authorizer import Authorizer

_log = logging.getLogger(__name__)


class ControllerSide:
    """A controller as the handlers of its listener see it.

    `authorizer`: None: everything is allowed.
    `supported`: the feature levels that this node supports, ``kraft.version`` among them.
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
        authorizer: Authorizer | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.metadata = metadata
        self.controller = controller
        self.supported = tuple(cluster_features() if supported is None else supported)
        self.heartbeat_interval_ms = heartbeat_interval_ms
        self.authorizer = authorizer
        self.servers: Callable[[], Sequence[Server]] = tuple
        """this controller's listeners"""
        self.encoded_settings = EncodedSettings()
        self.metrics = ServingMetrics()
        self.quotas = RequestQuotas(asyncio.get_running_loop(), config().quotas)
        # One limit each: nodes of another cluster retry for ever, and would suppress the lines about brokers.
        self._strangers, self._refused_brokers = (
            RateLimitedLog(_log, now=lambda: clock.monotonic_ms() / 1000) for _ in range(2)
        )
        self._heartbeats: dict[int, tuple[int, int]] = {}
        """connection of the last heartbeat and its broker epoch, by broker"""
        self._heartbeat_connections: set[int] = set()
        """open connections on which heartbeats came"""

    @property
    def config(self) -> BrokerConfig:
        return self._config()

    @property
    def image(self) -> MetadataImage:
        """The newest committed metadata."""
        return self.metadata.image

    @property
    def kraft_version(self) -> int:
        """Newest kraft.version in this node's log, committed or not."""
        return self.metadata.kraft_version

    async def load(self, module: str) -> ModuleType:
        """Import a module on a thread, since that takes long."""
        return await asyncio.get_running_loop().run_in_executor(None, import_module, module)

    def deadline_ms(self, timeout_ms: int) -> int:
        """Return the deadline of a request with this timeout, on the monotonic clock."""
        return self._clock.monotonic_ms() + timeout_ms

    async def ask_quorum(self, api_key: int, version: int, message: Any, listener: str) -> Any:
        """Return the response of this node's replica of the quorum. Raises `Unanswered` where that ended."""
        try:
            return await self.metadata.quorum.handle(api_key, version, message, listener)
        except StorageError as e:
            raise Unanswered(f"{ApiKey(api_key).name}: {e}") from e

    async def forward(
        self, context: RequestContext, header: RequestHeader, frame: memoryview, request: Any
    ) -> Response:
        """Raise `InvariantError`: a controller forwards no request."""
        raise InvariantError(f"{ApiKey(header.api_key).name} is not forwarded from a controller")

    def refused(self, context: RequestContext, why: str) -> None:
        """Log that a peer is refused which belongs to another cluster."""
        self._strangers.warning("refused %s: %s", context, why)

    def refused_broker(self, context: RequestContext, why: str) -> None:
        """Log that the registration of a broker is refused."""
        self._refused_brokers.warning("refused %s: %s", context, why)

    # -- heartbeats and their connections

    def heartbeat_received(self, connection_id: int) -> None:
        """Note that a heartbeat came on that connection; `heartbeat_decided` follows unless it is refused."""
        self._heartbeat_connections.add(connection_id)

    def heartbeat_decided(self, connection_id: int, broker_id: int, broker_epoch: int) -> None:
        """Note the connection of an accepted heartbeat; it may have ended meanwhile."""
        self._heartbeats[broker_id] = (connection_id, broker_epoch)
        if connection_id not in self._heartbeat_connections:
            self.connection_ended(connection_id)

    def connection_ended(self, connection_id: int) -> None:
        """Note the end of a connection; tell the controller which brokers sent their last heartbeat on it."""
        self._heartbeat_connections.discard(connection_id)
        lost = [(one, epoch) for one, (by, epoch) in self._heartbeats.items() if by == connection_id]
        for broker_id, broker_epoch in lost:
            del self._heartbeats[broker_id]
            self.controller.brokers.connection_lost(broker_id, broker_epoch)


def features_of(side: ControllerSide) -> Features:
    """Return a controller's features. As with Kafka's, a kraft.version of 0 is not listed as finalized."""
    finalized = {name: level for name, level in side.image.features.items() if name != KRAFT_VERSION}
    if side.kraft_version:
        finalized[KRAFT_VERSION] = side.kraft_version
    return Features(side.supported, finalized, side.image.offset)


class Admin:
    """The controller as the admin handlers see it, for one request with its deadline.

    The broker that got the client's request has checked which broker its broker settings name.
    """

    alters_loggers: Final = AclOperation.CLUSTER_ACTION

    def __init__(self, side: ControllerSide, deadline_ms: int) -> None:
        self._side = side
        self._controller = side.controller
        self._deadline_ms = deadline_ms

    @property
    def config(self) -> BrokerConfig:
        return self._side.config

    @property
    def authorizer(self) -> Authorizer | None:
        return self._side.authorizer

    @property
    def image(self) -> MetadataImage:
        return self._side.image

    @property
    def topic_admin(self) -> Admin:
        return self

    @property
    def config_admin(self) -> Admin:
        return self

    @property
    def feature_admin(self) -> Admin:
        return self

    @property
    def quotas(self) -> RequestQuotas:
        return self._side.quotas

    async def create_topics(
        self,
        requests: Sequence[CreateTopic],
        *,
        validate_only: bool = False,
        quota: MutationQuota | None = None,
    ) -> list[CreateTopicResult]:
        return await self._controller.create_topics(
            requests, validate_only=validate_only, quota=quota, deadline_ms=self._deadline_ms
        )

    async def create_partitions(
        self,
        requests: Sequence[CreatePartitions],
        *,
        validate_only: bool = False,
        quota: MutationQuota | None = None,
    ) -> list[CreatePartitionsResult]:
        return await self._controller.create_partitions(
            requests, validate_only=validate_only, quota=quota, deadline_ms=self._deadline_ms
        )

    async def delete_topics(
        self, requests: Sequence[DeleteTopic], *, quota: MutationQuota | None = None
    ) -> list[DeleteTopicResult]:
        return await self._controller.delete_topics(requests, quota=quota, deadline_ms=self._deadline_ms)

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
    """Raise `RequestError` NOT_CONTROLLER where this controller is not active."""
    if not side.controller.is_active:
        raise RequestError(ErrorCode.not_controller, "This node does not lead the metadata quorum.")
