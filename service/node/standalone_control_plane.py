"""What a node needs of its cluster's metadata and controller, wherever that is; and that of a node alone.

A node that is alone, and that nobody can join, decides for itself, in memory (`AlonePlane`); one of several,
or one that can be joined, goes by what its quorum says (`cluster_plane`). Owned by the event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

from service.base.errors import StorageError
from service.base.world import World
from service.broker.alone_apis import alone_apis
from service.broker.config_rules import NodeConfigRules
from service.broker.controller_side import ControllerSide
from service.broker.forwarding import Asker, Forwarder
from service.broker.housekeeper import ClusterHouse
from service.broker.lifecycle import FullDirectories
from service.broker.ports import BrokerAdmin
from service.broker.tables import Served
from service.config.listeners import Listener
from service.config.settings import BrokerConfig
from service.metadata.bootstrap import first_records
from service.metadata.controller.controller import Controller, ControllerOptions
from service.metadata.controller.requests import Endpoint, PartitionLimit, RegisterBroker, TopicDefaults
from service.metadata.features import bootstrap_records, supported_features
from service.metadata.publisher import MetadataOptions, Publisher
from service.network.server import Server
from service.remote.catalog import Catalog

_log = logging.getLogger(__name__)


class ControlPlane(Protocol):
    """Used from the bottom up: `start`, `caught_up`, `join`; what each puts on the stack ends it."""

    @property
    def metadata(self) -> Publisher: ...
    @property
    def admin(self) -> BrokerAdmin: ...
    @property
    def catalog(self) -> Catalog: ...
    @property
    def decides(self) -> Controller | None:
        """The controller, where it is an object of this process that decides what clients ask for."""

    @property
    def house(self) -> ClusterHouse | None:
        """The brokers that share the bucket's prefix; None: this node has it alone."""

    @property
    def incarnation_id(self) -> UUID:
        """Of this process, as its broker registers."""

    @property
    def forwarder(self) -> Forwarder | None:
        """By which clients' changes go to the controller; None: they are decided here."""

    @property
    def new_queue(self) -> Callable[[], Asker] | None:
        """Makes queues to the controller, in which nothing waits behind what is asked in another one; None:
        there are no other brokers."""

    @property
    def apis(self) -> Mapping[int, Served]:
        """What brokers' listeners serve."""

    @property
    def adopter(self) -> Controller | None:
        """The controller that may take an archive over: that of a node that is its whole cluster."""

    @property
    def servers(self) -> Sequence[Server]:
        """The controller's listeners, where it has some."""

    @property
    def epoch(self) -> int:
        """Of this process's registration as a broker; -1 before the first one."""

    async def start(self, stack: AsyncExitStack) -> None:
        """Open the metadata and take part in the quorum; raises as `Publisher.start`, and `ConfigError`."""

    async def caught_up(self, stack: AsyncExitStack, endpoints: tuple[Endpoint, ...]) -> None:
        """Return once the image says what this broker has: then its logs may be opened. `endpoints`: where it
        is reached."""

    async def join(self, stack: AsyncExitStack) -> None:
        """The logs are open, and the broker becomes what the image says: return once it is unfenced."""

    async def leave(self) -> None:
        """Clients are still served: have the leaderships move away first."""

    def directory_failed(self, directory_id: UUID) -> None:
        """A log directory is offline."""

    def room_changed(self, directories: FullDirectories) -> None:
        """Other log directories than before are without room."""

    @property
    def moves_leaders(self) -> bool:
        """Whether the controller moves leaderships away from full directories."""


@dataclass(frozen=True, slots=True)
class Home:
    """Whose a node's directories are, and what they say of it."""

    cluster_id: str
    metadata_directory_id: UUID
    log_directory_ids: tuple[UUID, ...] = ()
    previous_epoch: int = -1
    """of the process before, where all that it acknowledged is there; -1 where that is not known"""
    registered: Callable[[int], None] = lambda epoch: None
    """to be called with the epoch of each registration, before anything else is made of it"""


def metadata_options(config: BrokerConfig, home: Home) -> MetadataOptions:
    """What the configuration says of the metadata log."""
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
    """Where listeners are reached."""
    return tuple(Endpoint(one.name, one.host, one.port) for one in listeners)


class AlonePlane:
    """The controller of a node that is its whole cluster, as an object in memory."""

    forwarder: Final = None
    new_queue: Final = None
    house: Final = None
    servers: Final = ()

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
    ) -> None:
        """`current`: the settings as they are now. Raises as `first_records`."""
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
        )
        self.admin = self.catalog = self.decides = self.adopter = Controller(
            options, self.metadata, world, NodeConfigRules(current)
        )
        self.apis = alone_apis(
            ControllerSide(current, world.clock, config.node_id, home.cluster_id, self.metadata, self.admin)
        )

    async def start(self, stack: AsyncExitStack) -> None:
        """The image holds all there is, and this node leads, when it returns."""
        stack.push_async_callback(self.metadata.stop)
        await self.metadata.start()
        stack.callback(self.admin.stop)
        await self.admin.start()

    async def caught_up(self, stack: AsyncExitStack, endpoints: tuple[Endpoint, ...]) -> None:
        self._endpoints = endpoints

    async def join(self, stack: AsyncExitStack) -> None:
        """Make this process the broker that leads; it is fenced again at the end, so that the next one may
        be."""
        node_id = self._config.node_id
        self.epoch = await self.admin.register_broker(
            RegisterBroker(
                broker_id=node_id,
                incarnation_id=self.incarnation_id,
                endpoints=self._endpoints,
                cluster_id=self._home.cluster_id,
                rack=self._config.broker_rack,
                log_dirs=self._home.log_directory_ids,
            )
        )
        await self.admin.unfence_broker(node_id, self.epoch)
        stack.push_async_callback(self._fence)

    async def _fence(self) -> None:
        try:
            await self.admin.fence_broker(self._config.node_id, self.epoch)
        except StorageError as e:
            _log.warning("node %d stops without saying so in the metadata: %s", self._config.node_id, e)

    async def leave(self) -> None:
        """There is nobody to whom they could move."""

    def directory_failed(self, directory_id: UUID) -> None:
        """The only broker has nobody to give its partitions to."""

    def room_changed(self, directories: FullDirectories) -> None:
        """As `directory_failed`."""

    @property
    def moves_leaders(self) -> bool:
        return False
