"""Control plane of a node in a cluster: its replica of the quorum, its controller, its broker registration.

The quorum, heartbeats, clients' requests and the catalog have connections of their own, so that none waits
behind slow requests of another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import ConfigError, RequestError, StorageError
from service.base.told_waits import wait_logged
from service.base.turns import TurnTimes
from service.base.world import World
from service.client.node_channel import ChannelOptions, Channels, Reachable
from service.client.node_security import outgoing_security
from service.config.cluster import ClusterConfig, QuorumConfig
from service.config.listeners import PLAINTEXT
from service.config.settings import BrokerConfig
from service.controller_client.broker_lifecycle import Exit, FullDirectories, MoveAway, Recover, Serve
from service.controller_client.broker_lifecycle import Timing as LifeTiming
from service.controller_client.broker_lifecycle_manager import Membership
from service.controller_client.catalog_image import CatalogImage
from service.controller_client.controller_channel import Controllers, Here
from service.controller_client.forwarded_admin import RemoteAdmin
from service.controller_client.forwarding import Forwarder
from service.controller_client.keeper_candidate import ClusterPrefixOwner
from service.controller_client.lifecycle_messages import Feature, Identity
from service.controller_client.remote_log_catalog import Registration, RpcCatalog
from service.controller_server.broker_prober import probe_connect
from service.controller_server.controller_server import (
    ControllerNode,
    ControllerNodeOptions,
    QuorumLeaders,
    quorum_channels,
)
from service.controller_server.handlers.cluster import CONTROLLERS
from service.metadata.bootstrap import first_records
from service.metadata.controller.broker_sessions import ProbeOutcome, SessionTimes
from service.metadata.controller.controller import ControllerOptions
from service.metadata.controller.elections_control import ElectionSettings
from service.metadata.controller.periodic import PeriodicTaskIntervals
from service.metadata.controller.remote_catalog import ControllerCatalog
from service.metadata.controller.requests import Endpoint, ResourceType, TopicDefaults
from service.metadata.features import cluster_bootstrap_records, cluster_features
from service.metadata.image import KRAFT_VERSION
from service.metadata.publisher import MetadataOptions, Publisher, QuorumOptions
from service.metadata.raft import roles
from service.metadata.raft.keys import ReplicaKey
from service.metadata.raft.voters import VoterNode, VoterSet
from service.network.metrics import OF_CONTROLLER, OF_QUORUM, ChannelMetrics, NetworkMetrics
from service.network.request import PeerLimits
from service.network.request_meter import RequestQuotas
from service.network.server import Server
from service.node.standalone_control_plane import Home, endpoints_of, metadata_options
from service.node.supervisor import NodeEnds
from service.security.tokens import token_rules
from service.serving.api_table import BROKER_APIS
from service.serving.authorization import BY_CONTROLLER, NOTHING
from service.serving.config_validation import NodeConfigRules
from service.serving.handlers import api_versions
from service.serving.handlers.api_versions import Features
from service.serving.listener_logins import new_nonce
from service.serving.served_api import Served
from service.wire.api import ApiKey, request_module
from service.wire.apis import ListenerType, served_on
from service.wire.errors import UnsupportedVersion

_log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from service.network.jwks.key_sets import KeySets
    from service.network.tls.node_tls import NodeTls
    from service.security.authorizer import Authorizer

_POLL_S: Final = 0.02
_ASK_MS: Final = 5_000
_AGAIN_S: Final = 0.2
_HOPELESS_S: Final = 0.2
_HOPELESS_ROUNDS: Final = 3
_OF_A_BROKER: Final = frozenset({ResourceType.BROKER, ResourceType.BROKER_LOGGER})


# APIs of the broker's listeners


def _always(request: object) -> bool:
    return True


def _is_not_of_a_broker(request: Any) -> bool:
    """Return whether no resource is a broker's: a broker validates its own settings before it sends them."""
    return not any(one.resource_type in _OF_A_BROKER for one in request.resources)


def features_of_member(broker: object) -> Features:
    """Return the features of a broker in a cluster, supported and finalized."""
    metadata: Publisher = broker.metadata  # type: ignore[attr-defined]
    finalized = {name: level for name, level in metadata.image.features.items() if name != KRAFT_VERSION}
    if metadata.kraft_version:
        finalized[KRAFT_VERSION] = metadata.kraft_version
    return Features(cluster_features(), finalized, metadata.image.offset)


def _member_apis() -> Mapping[int, Served]:
    forwarded = Served(BY_CONTROLLER, forwards=_always)
    checked = forwarded._replace(is_checked_first=True)
    table: dict[int, Served] = {
        api.key: (checked if api.is_checked_first else forwarded)
        if api.is_forwardable
        else BROKER_APIS[api.key]
        for api in served_on(ListenerType.BROKER)
    }
    for key in (ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS):
        table[key] = BROKER_APIS[key]._replace(forwards=_is_not_of_a_broker)
    versions = api_versions.handler_for(ListenerType.BROKER, features_of_member)
    table[ApiKey.API_VERSIONS] = Served(NOTHING, versions)
    return table


MEMBER_APIS: Final = _member_apis()
"""APIs of the broker's listeners on a node in a cluster."""


# Options from the configuration


def quorum_options(config: BrokerConfig, home: Home) -> QuorumOptions:
    """Return the quorum's options: this node's identity, the static voters, the timing."""
    cluster = config.cluster
    # without protocols, as in the records of voters that they are compared with
    own = tuple(Endpoint(one.name, one.host, one.port) for one in cluster.advertised_controller_listeners)
    listener = next(iter(cluster.controller_listener_names), "CONTROLLER")
    voters = [
        VoterNode(ReplicaKey(one.node_id), (Endpoint(listener, one.address.host, one.address.port),))
        for one in cluster.quorum.voters
    ]
    if cluster.is_alone and not voters:
        voters = [VoterNode(ReplicaKey(cluster.node_id), own[:1])]
    bootstrap = tuple(Endpoint(listener, one.host, one.port) for one in cluster.quorum.bootstrap_servers)
    key = ReplicaKey(cluster.node_id, home.metadata_directory_id)
    identity = roles.ReplicaIdentity(
        key, home.cluster_id, own, bootstrap, can_vote=cluster.is_controller, listener=listener
    )
    return QuorumOptions(identity, VoterSet(voters), _quorum_timing(cluster.quorum))


def _quorum_timing(quorum: QuorumConfig) -> roles.RaftTiming:
    return roles.RaftTiming(
        election_timeout_ms=quorum.election_timeout_ms,
        fetch_timeout_ms=quorum.fetch_timeout_ms,
        election_backoff_max_ms=quorum.election_backoff_max_ms,
        request_timeout_ms=quorum.request_timeout_ms,
        retry_backoff_ms=quorum.retry_backoff_ms,
        append_linger_ms=quorum.append_linger_ms,
        fetch_max_bytes=quorum.fetch_max_bytes,
        snapshot_max_bytes=quorum.fetch_snapshot_max_bytes,
        refused_election=quorum.refused_election,
        auto_join=quorum.auto_join_enable,
    )


def _controller_options(
    config: BrokerConfig, world: World, home: Home, incarnation_id: UUID
) -> ControllerOptions:
    """Return the controller's options.

    Raises `CorruptionError` and `StorageError` for a ``bootstrap.checkpoint`` that cannot be read."""
    cluster = config.cluster
    supported = cluster_features()
    first = first_records(world.disk, cluster.metadata_log_dir, supported)
    balances = cluster.auto_leader_rebalance_enable
    return ControllerOptions(
        node_id=config.node_id,
        cluster_id=home.cluster_id,
        defaults=TopicDefaults(config.num_partitions, config.default_replication_factor),
        listeners=endpoints_of(cluster.advertised_controller_listeners),
        bootstrap=first or cluster_bootstrap_records(),
        supported=supported,
        voters=tuple(one.node_id for one in cluster.quorum.voters),
        incarnation_id=incarnation_id,
        elections=ElectionSettings(
            config.node_id,
            config.log.min_insync_replicas,
            cluster.unclean_leader_election_enable,
            checks_directories=True,
        ),
        sessions=SessionTimes(
            cluster.broker_session_timeout_ms,
            cluster.broker_heartbeat_interval_ms,
            cluster.broker_refused_fence_ms,
        ),
        periodic_tasks=PeriodicTaskIntervals(
            cluster.metadata_max_idle_interval_ms,
            cluster.leader_imbalance_check_interval_seconds * 1000 if balances else 0,
            cluster.unclean_leader_election_interval_ms,
            config.tokens.expiry_check_interval_ms,
        ),
        tokens=token_rules(config.tokens),
    )


class ClusterPlane:
    """`ControlPlane` of a node in a cluster. Owned by the event loop."""

    apis: Final = MEMBER_APIS
    decides: Final = None

    def __init__(
        self,
        config: BrokerConfig,
        current: Callable[[], BrokerConfig],
        world: World,
        home: Home,
        incarnation_id: UUID,
        *,
        limits: PeerLimits,
        network: NetworkMetrics,
        turns: TurnTimes,
        stopped: Callable[[], Awaitable[None]],
        on_fatal: Callable[[str, BaseException], None],
        tls: NodeTls | None,
        authorizer: Authorizer | None = None,
        key_sets: KeySets | None = None,
    ) -> None:
        """`current` returns the current settings. `stopped` returns once the node is to stop: waits end then.

        Raises the errors of `first_records`: `CorruptionError` and `StorageError`.
        """
        self._config = config
        self._world = world
        self._home = home
        self.incarnation_id = incarnation_id
        self._stopped = stopped
        self._on_fatal = on_fatal
        self._authorizer = authorizer
        self._channels: list[Channels] = []
        self._tls = tls
        self._key_sets = key_sets
        self._security = outgoing_security(
            config.cluster.security.controller,
            partial(new_nonce, world),
            None if tls is None else tls.controller,
            world.disk,
        )
        metadata = replace(metadata_options(config, home), quorum=quorum_options(config, home))
        self.controller: ControllerNode | None = None
        here: Here | None = None
        if config.cluster.is_controller:
            self.controller = self._make_controller(metadata, current, limits, network, turns)
            self.metadata, here = self.controller.publisher, self.controller.here
        else:
            peers = self._new_channels(network.channel(OF_QUORUM), quorum_channels(metadata))
            self.metadata = Publisher(metadata, world, on_fatal=on_fatal, peers=peers)
        leaders = QuorumLeaders(self.metadata)

        def new_queue(on_lost: Callable[[], None] = lambda: None) -> Controllers:
            channels = self._new_channels(network.channel(OF_CONTROLLER), on_lost=on_lost)
            return Controllers(config.node_id, leaders, channels, here)

        self.new_queue = new_queue
        self._heartbeats = new_queue(self._controller_changed)
        self.metadata.watch_leader(self._controller_changed)
        self._admin_queue, self._catalog_queue = (new_queue() for _ in range(2))
        self.catalog = RpcCatalog(self._catalog_queue, CatalogImage(self.metadata), self._registration)
        self.prefix_owner = ClusterPrefixOwner(
            config.node_id, incarnation_id, lambda: self.metadata.image, self.catalog.barrier
        )
        self.metadata.subscribe(self.prefix_owner.published)
        self.admin = RemoteAdmin(
            self._admin_queue, lambda: self.metadata.image, NodeConfigRules(current), self._catch_up
        )
        self.forwarder = Forwarder(self._admin_queue, self._catch_up)
        self._membership: Membership | None = None
        self._recovers, self._serves, self._gone = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    def _controller_changed(self) -> None:
        self._heartbeats.leader_changed()
        if self._membership is not None:
            self._membership.controller_changed()

    def _new_channels(
        self,
        metrics: ChannelMetrics,
        options: ChannelOptions | None = None,
        *,
        on_lost: Callable[[], None] = lambda: None,
    ) -> Channels:
        options = (options or ChannelOptions())._replace(security=self._security)
        channels = Channels(options, metrics=metrics, chance=self._world.random.random, on_lost=on_lost)
        self._channels.append(channels)
        return channels

    def _make_controller(
        self,
        metadata: MetadataOptions,
        current: Callable[[], BrokerConfig],
        limits: PeerLimits,
        network: NetworkMetrics,
        turns: TurnTimes,
    ) -> ControllerNode:
        config = self._config
        cluster = config.cluster
        options = ControllerNodeOptions(
            metadata,
            _controller_options(config, self._world, self._home, self.incarnation_id),
            cluster.controller_listeners,
            cluster.inter_broker_listener_name or PLAINTEXT,
            cluster.broker_heartbeat_interval_ms,
            limits,
        )
        return ControllerNode(
            options, current, self._world,
            on_fatal=self._on_fatal, metrics=network, turns=turns, tls=self._tls,
            authorizer=self._authorizer, key_sets=self._key_sets,
        )  # fmt: skip

    @property
    def epoch(self) -> int:
        return -1 if self._membership is None else self._membership.epoch

    @property
    def adopter(self) -> ControllerCatalog | None:
        """The catalog that may adopt a bucket: this node's, while it is its whole cluster."""
        is_alone = self.controller is not None and self._config.cluster.is_alone
        return self.controller.controller.catalog if self.controller is not None and is_alone else None

    @property
    def servers(self) -> Sequence[Server]:
        """The controller's listeners."""
        return () if self.controller is None else self.controller.servers

    @property
    def quotas(self) -> Sequence[RequestQuotas]:
        """Quotas of clients at the controller."""
        return () if self.controller is None else (self.controller.side.quotas,)

    async def in_quorum(self) -> None:
        """Return once this node leads the quorum or follows its leader. Raises `NodeEnds`."""
        await self._poll_until(lambda: self.metadata.quorum.machine.leader_id >= 0)

    async def recorded(self) -> None:
        """Return once the voters' record has this controller's address. Raises `NodeEnds`.

        The next leader then finds it there, even if the other voters restart meanwhile."""
        core = self.metadata.quorum.machine.core
        if core.is_recorded:
            return
        _log.info("node %d waits until the voters' record has its address", self._config.node_id)
        await self._poll_until(lambda: core.is_recorded)

    async def _poll_until(self, is_true: Callable[[], bool]) -> None:
        """Wait until `is_true` returns True. Raises `NodeEnds` where the node is to stop first."""
        happened = asyncio.Event()

        async def poll() -> None:
            while not is_true():
                await asyncio.sleep(_POLL_S)
            happened.set()

        polling = asyncio.ensure_future(poll())
        try:
            await self._until(happened, "for the quorum")
        finally:
            polling.cancel()

    # -- life

    async def start(self, stack: AsyncExitStack) -> None:
        stack.push_async_callback(self._close_channels)
        if self.controller is not None:
            stack.push_async_callback(self.controller.stop)
            await self.controller.start()
        else:
            stack.push_async_callback(self.metadata.stop)
            await self.metadata.start()

    async def _close_channels(self) -> None:
        for channels in self._channels:
            await channels.close()

    async def caught_up(self, stack: AsyncExitStack, endpoints: tuple[Endpoint, ...]) -> None:
        config, cluster = self._config, self._config.cluster
        identity = Identity(
            config.node_id,
            self.incarnation_id,
            self._home.cluster_id,
            endpoints,
            tuple(Feature(*one) for one in cluster_features()),
            config.broker_rack,
            self._home.log_directory_ids,
            self._home.previous_epoch,
        )
        membership = Membership(
            identity, self._heartbeats, self._on_effect, _life_timing(cluster), self._home.registered
        )
        self._membership = membership
        stack.push_async_callback(membership.close)
        self.metadata.subscribe(lambda before, after, delta: self._news.set())
        self._news.set()
        self._following = asyncio.get_running_loop().create_task(self._follow(), name="metadata-follower")
        self._following.add_done_callback(self._follow_done)
        stack.callback(self._following.cancel)
        membership.start()
        await self._until(self._recovers, "to be registered and to have the metadata")
        self.metadata.note_loaded()

    async def join(self, stack: AsyncExitStack) -> None:
        assert self._membership is not None
        self._membership.logs_ready()
        await self._until(self._serves, "to be unfenced")

    async def leave(self) -> None:
        """Run a controlled shutdown: return when the controller has moved this broker's leaderships.

        Return at once if the metadata log has failed, as this node would not learn of it, and as soon as most
        controllers are certainly down."""
        if self._membership is None or self._gone.is_set() or self.metadata.has_failed:
            return
        self._membership.terminate()
        gone = asyncio.ensure_future(self._gone.wait())
        rounds = 0
        while rounds < _HOPELESS_ROUNDS and not gone.done() and not self.metadata.has_failed:
            await asyncio.wait([gone], timeout=_HOPELESS_S)
            rounds = rounds + 1 if not gone.done() and await self._is_hopeless() else 0
        gone.cancel()
        if rounds == _HOPELESS_ROUNDS:
            _log.info(
                "node %d stops without moving its leaderships: most controllers are down",
                self._config.node_id,
            )

    async def _is_hopeless(self) -> bool:
        """Return whether a majority of voters is down, this node counted as up. A refused connection proves
        that a voter is down; a timeout does not.

        The log of a controller that was alone names no voters. Then all addresses that this node has of
        controllers have to refuse."""
        try:
            machine = self.metadata.quorum.machine
        except RequestError:
            return True
        voters = machine.core.log.voters.latest
        if not len(voters):
            servers = self._config.cluster.quorum.bootstrap_servers
            return bool(servers) and await _refused(servers) == len(servers)
        others = [one.endpoints[0] for one in voters if one.node_id != self._config.node_id and one.endpoints]
        return len(voters) - await _refused(others) < voters.majority

    async def _until(self, event: asyncio.Event, what: str) -> None:
        """Wait for `event`, `what` in words. Raises `NodeEnds` where the node is to stop first."""
        first = asyncio.FIRST_COMPLETED
        waits = [asyncio.ensure_future(one) for one in (event.wait(), self._gone.wait(), self._stopped())]
        words = f"node {self._config.node_id} waits {what}; its controllers: {_controllers(self._config)}"
        try:
            with wait_logged(_log, lambda: words):
                await asyncio.wait(waits, return_when=first)
        finally:
            for one in waits:
                one.cancel()
        if not event.is_set():
            raise NodeEnds("the node was stopped before it served")

    def _on_effect(self, effect: Recover | Serve | MoveAway | Exit) -> None:
        match effect:
            case Recover():
                self._recovers.set()
            case Serve():
                self._serves.set()
            case MoveAway():
                pass
            case Exit(reason, is_failure):
                self._gone.set()
                if is_failure:
                    self._on_fatal("this broker", StorageError(reason))

    async def _follow(self) -> None:
        """Report how far this node has applied the metadata, at each new image."""
        assert self._membership is not None
        while True:
            await self._news.wait()
            self._news.clear()
            offset = self.metadata.image.offset
            if offset >= 0:
                await self.metadata.committed(offset)
                self._membership.published(offset)

    def _follow_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            if isinstance(error, StorageError):
                _log.info("node %d stops following the metadata: %s", self._config.node_id, error)
            else:
                self._on_fatal("following the metadata", error)

    def directory_failed(self, directory_id: UUID) -> None:
        if self._membership is not None:
            self._membership.directory_failed(directory_id)

    def room_changed(self, directories: FullDirectories) -> None:
        if self._membership is not None:
            self._membership.room_changed(directories)

    @property
    def moves_leaders(self) -> bool:
        return self._membership is not None and self._membership.moves_leaders

    # -- requests to the controller

    def _registration(self) -> Registration:
        return Registration(self._config.node_id, self.epoch)

    async def _catch_up(self) -> None:
        """Wait until this node's image has all committed changes; return without them if that fails."""
        with suppress(StorageError, RequestError):
            await self.catalog.barrier()


def _life_timing(cluster: ClusterConfig) -> LifeTiming:
    return LifeTiming(
        heartbeat_interval_ms=cluster.broker_heartbeat_interval_ms,
        answer_timeout_ms=cluster.broker_session_timeout_ms // 2,
        registration_timeout_ms=cluster.initial_broker_registration_timeout_ms,
        controlled_shutdown=cluster.controlled_shutdown_enable,
    )


async def _refused(places: Sequence[Reachable]) -> int:
    """Return how many of these addresses refuse connections."""
    answers = await asyncio.gather(*map(probe_connect, places))
    return sum(one is ProbeOutcome.REFUSED for one in answers)


def _controllers(config: BrokerConfig) -> str:
    quorum = config.cluster.quorum
    return ", ".join(map(str, quorum.voters or quorum.bootstrap_servers)) or "itself"


async def ask_cluster_id(cluster: ClusterConfig, world: World, stopped: Callable[[], Awaitable[None]]) -> str:
    """Return the cluster id from the first controller that responds.

    Raises `ConfigError` where none does within ``initial.broker.registration.timeout.ms``, and `NodeEnds`.
    """
    places = [one.address for one in cluster.quorum.voters] or list(cluster.quorum.bootstrap_servers)
    message = request_module(ApiKey.DESCRIBE_CLUSTER).DescribeClusterRequest(
        include_cluster_authorized_operations=False,
        endpoint_type=CONTROLLERS,
        include_fenced_brokers=False,
    )
    outgoing = cluster.security.controller
    tls = None
    if outgoing is not None and outgoing.tls is not None:
        from service.network.tls.node_tls import client_tls

        tls = client_tls(outgoing.tls, world.disk)
    security = outgoing_security(outgoing, partial(new_nonce, world), tls, world.disk)
    channels = Channels(ChannelOptions(security=security), chance=world.random.random)
    ends = asyncio.ensure_future(stopped())
    why = ""
    stack = ExitStack()
    stack.enter_context(wait_logged(_log, lambda: f"waiting for the cluster id from a controller: {why}"))
    try:
        async with asyncio.timeout(cluster.initial_broker_registration_timeout_ms / 1000):
            while not ends.done():
                for place in places:
                    try:
                        answer = await channels.call(
                            place, ApiKey.DESCRIBE_CLUSTER, None, message, timeout_ms=_ASK_MS
                        )
                    except (OSError, UnsupportedVersion) as e:
                        why = f"{place.host}:{place.port}: {e}"
                        continue
                    if answer.error_code == ErrorCode.none and answer.cluster_id:
                        return str(answer.cluster_id)
                    why = f"{place.host}:{place.port} answers {answer.error_message}"
                await asyncio.wait([ends], timeout=_AGAIN_S)
    except TimeoutError:
        raise ConfigError(f"no controller has sent the cluster id: {why}") from None
    finally:
        stack.close()
        ends.cancel()
        await channels.close()
    raise NodeEnds("the node was stopped before it knew its cluster")
