"""The control plane of a node that is its whole cluster: its controller is an object in memory.

A node that is alone, and that no other can join, decides for itself, in memory (`AlonePlane`); a node among
others, or one that can be joined, follows its quorum (`quorum_control_plane`). Owned by the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from service.base.errors import RequestError, StorageError
from service.base.world import World
from service.config.listeners import Listener
from service.config.settings import BrokerConfig
from service.controller_client.broker_lifecycle import FullDirectories
from service.controller_server.request_host import ControllerSide
from service.metadata.bootstrap import first_records
from service.metadata.controller.controller import Controller, ControllerOptions
from service.metadata.controller.requests import Endpoint, PartitionLimit, RegisterBroker, TopicDefaults
from service.metadata.features import bootstrap_records, supported_features
from service.metadata.publisher import MetadataOptions, Publisher
from service.node.standalone_apis import alone_apis
from service.security.tokens import token_rules
from service.serving.config_validation import NodeConfigRules

if TYPE_CHECKING:
    from service.security.authorizer import Authorizer

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Home:
    """Identity of a node's directories: the cluster, their ids, and the epoch of the last process."""

    cluster_id: str
    metadata_directory_id: UUID
    log_directory_ids: tuple[UUID, ...] = ()
    previous_epoch: int = -1
    """broker epoch of the previous process if all that it acknowledged is on disk, else -1"""
    registered: Callable[[int], None] = lambda epoch: None
    """Call with the epoch of each registration before any other use of it."""


def metadata_options(config: BrokerConfig, home: Home) -> MetadataOptions:
    """Return the options of the metadata log, from the configuration."""
    return MetadataOptions(
        node_id=config.node_id,
        directory=config.cluster.metadata_log_dir,
        directory_id=home.metadata_directory_id,
        segment_bytes=config.metadata_log_segment_bytes,
        snapshot_max_bytes=config.metadata_log_max_record_bytes_between_snapshots,
        snapshot_interval_ms=config.metadata_log_max_snapshot_interval_ms,
        retention_bytes=config.cluster.metadata_max_retention_bytes,
        retention_ms=config.cluster.metadata_max_retention_ms,
    )


def endpoints_of(listeners: tuple[Listener, ...]) -> tuple[Endpoint, ...]:
    """Return the endpoints of advertised listeners."""
    return tuple(Endpoint(one.name, one.host, one.port, int(one.protocol)) for one in listeners)


class AlonePlane:
    """The controller of a node that is its whole cluster, as an object in memory."""

    forwarder: Final = None
    new_queue: Final = None
    prefix_owner: Final = None
    servers: Final = ()
    quotas: Final = ()

    def __init__(
        self,
        config: BrokerConfig,
        current: Callable[[], BrokerConfig],
        world: World,
        home: Home,
        incarnation_id: UUID,
        *,
        partition_limit: PartitionLimit | None,
        on_fatal: Callable[[str, BaseException], None],
        authorizer: Authorizer | None = None,
    ) -> None:
        """`current` returns the current settings. Raises the errors of `first_records`."""
        self._config = config
        self._home = home
        self.incarnation_id = incarnation_id
        self.epoch = -1
        self.metadata = Publisher(metadata_options(config, home), world, on_fatal=on_fatal)
        first = first_records(world.disk, config.cluster.metadata_log_dir, supported_features())
        options = ControllerOptions(
            node_id=config.node_id,
            cluster_id=home.cluster_id,
            defaults=TopicDefaults(config.num_partitions, config.default_replication_factor),
            partition_limit=partition_limit,
            bootstrap=first or bootstrap_records(),
            tokens=token_rules(config.tokens),
        )
        self.admin = self.decides = Controller(options, self.metadata, world, NodeConfigRules(current))
        self.catalog = self.adopter = self.admin.catalog
        self.apis = alone_apis(
            ControllerSide(
                current, world.clock, config.node_id, home.cluster_id, self.metadata, self.admin,
                authorizer=authorizer,
            )
        )  # fmt: skip

    async def start(self, stack: AsyncExitStack) -> None:
        """Load the metadata log, and become the active controller."""
        stack.push_async_callback(self.metadata.stop)
        await self.metadata.start()
        stack.callback(self.admin.stop)
        await self.admin.start()
        if self._config.tokens.secret_key is not None or self.metadata.image.tokens:
            expiring = asyncio.get_running_loop().create_task(self._expire_tokens(), name="token-expiry")
            stack.callback(expiring.cancel)

    async def _expire_tokens(self) -> None:
        """Remove delegation tokens whose time is over, at intervals; no other task of a controller runs
        here."""
        while True:
            await asyncio.sleep(self._config.tokens.expiry_check_interval_ms / 1000)
            try:
                while self.metadata.image.tokens and await self.admin.access.tokens.sweep_expired():
                    continue
            except (RequestError, StorageError) as e:
                _log.warning("delegation tokens that have ended are not removed yet: %s", e)

    async def caught_up(self, stack: AsyncExitStack, endpoints: tuple[Endpoint, ...]) -> None:
        self._endpoints = endpoints

    async def join(self, stack: AsyncExitStack) -> None:
        """Register and unfence this process as the only broker; it is fenced again when the node stops."""
        node_id = self._config.node_id
        self.epoch = await self.admin.brokers.register(
            RegisterBroker(
                broker_id=node_id,
                incarnation_id=self.incarnation_id,
                endpoints=self._endpoints,
                cluster_id=self._home.cluster_id,
                rack=self._config.broker_rack,
                log_dirs=self._home.log_directory_ids,
            )
        )
        await self.admin.brokers.unfence(node_id, self.epoch)
        stack.push_async_callback(self._fence)

    async def _fence(self) -> None:
        try:
            await self.admin.brokers.fence(self._config.node_id, self.epoch)
        except StorageError as e:
            _log.warning("node %d stops, but the metadata log did not record it: %s", self._config.node_id, e)

    async def leave(self) -> None:
        """Do nothing: leaderships cannot move to another broker."""

    def directory_failed(self, directory_id: UUID) -> None:
        """Do nothing: partitions cannot move to another broker."""

    def room_changed(self, directories: FullDirectories) -> None:
        """Do nothing: leaderships cannot move to another broker."""

    @property
    def moves_leaders(self) -> bool:
        return False
