"""A controller: its metadata log, its replica of the quorum, its decisions and its listeners.

Owned by the event loop. A node has one alone, or beside a broker that follows the same `publisher`. The
controller decides from the time its image holds the epoch's first batch until the quorum has another leader.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from service.base.backoff import backoff
from service.base.errors import RequestError, StorageError
from service.base.turns import TurnTimes
from service.base.world import World
from service.client.node_channel import ChannelOptions, Channels
from service.client.node_security import outgoing_security
from service.client.security import Security
from service.config.listeners import Listener
from service.config.security import NodeSecurity
from service.config.settings import BrokerConfig
from service.controller_client import lifecycle_messages
from service.controller_client.controller_channel import Active, Calls, Controllers
from service.controller_client.lifecycle_messages import Feature
from service.controller_server.api_table import CONTROLLER_APIS, handle_locally
from service.controller_server.broker_prober import BrokerProber
from service.controller_server.change_log import ClusterChangeLog
from service.controller_server.request_host import ControllerSide, features_of
from service.metadata.controller.controller import Controller, ControllerOptions
from service.metadata.controller.periodic import NEVER
from service.metadata.delta import MetadataDelta
from service.metadata.image import MetadataImage
from service.metadata.publisher import MetadataOptions, Publisher
from service.metadata.raft.peers import Peers
from service.metadata.raft.roles import RaftTiming
from service.network.connection_quotas import ConnectionQuotas
from service.network.metrics import OF_CONTROLLER, OF_QUORUM, ChannelMetrics, NetworkMetrics
from service.network.request import PeerLimits, RequestContext
from service.network.server import Server
from service.security.session import NODE_ITSELF
from service.serving.config_validation import NodeConfigRules
from service.serving.dispatch import Dispatcher
from service.serving.handlers.api_versions import answer_for
from service.serving.listener_logins import NodeLogins, new_nonce
from service.wire.api import APIS, ApiKey
from service.wire.apis import ListenerType
from service.wire.errors import UnsupportedVersion

if TYPE_CHECKING:
    from service.network.jwks.key_sets import KeySets
    from service.network.tls.node_tls import NodeTls
    from service.security.authorizer import Authorizer


_log = logging.getLogger(__name__)

_REGISTRATION_MS: Final = 10_000
"""Timeout of one try. A standby that is not registered decides all the same once it leads."""
_RETRY_MS: Final = 100
_RETRY_MAX_MS: Final = 60_000
_AGAIN_S: Final = 0.01
_OWED: Final = 3
"""Request timeouts after which the connection of an unanswered request of the quorum is closed."""
_QUORUM_CHANNELS: Final = ChannelOptions(backoff_ms=40, backoff_max_ms=100)
"""Three refused connections within 300 ms mean that the leader is down: slower retries never see that."""


def quorum_channels(metadata: MetadataOptions) -> ChannelOptions:
    """Return the options of the quorum's channels.

    A connection without a response for three request timeouts may be dead, and is replaced. Kafka's
    ``NetworkClient`` replaces it after one timeout, but a new connection takes three round trips: over slow
    links no election would end.
    """
    timing = RaftTiming() if metadata.quorum is None else metadata.quorum.timing
    return _QUORUM_CHANNELS._replace(request_timeout_ms=_OWED * timing.request_timeout_ms)


@dataclass(frozen=True, slots=True)
class ControllerNodeOptions:
    """Options of a controller. `metadata` holds the quorum in which this node votes; `controller` the
    advertised listeners."""

    metadata: MetadataOptions
    controller: ControllerOptions
    listeners: tuple[Listener, ...]
    """listeners to bind; the first one is the quorum's"""
    inter_broker_listener: str = "PLAINTEXT"
    """name of the brokers' listener that is probed"""
    heartbeat_interval_ms: int = 2_000
    limits: PeerLimits = field(default_factory=PeerLimits)


class QuorumLeaders:
    """`controller_channel.Leaders` of this node's own replica of the quorum."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    def active(self) -> Active | None:
        try:
            machine = self._publisher.quorum.machine
        except RequestError:
            return None  # not open yet
        node_id = machine.leader_id
        endpoint = machine.core.endpoint_of(node_id) if node_id >= 0 else None
        return None if endpoint is None else Active(node_id, machine.epoch, endpoint)


def _outgoing(security: NodeSecurity, world: World, tls: NodeTls | None) -> Security:
    """Return the security of connections to controllers."""
    own = None if tls is None else tls.controller
    return outgoing_security(security.controller, partial(new_nonce, world), own, world.disk)


class ControllerNode:
    """A controller and the publisher's `Guest`. `on_fatal(what, error)` ends the node."""

    def __init__(
        self,
        options: ControllerNodeOptions,
        config: Callable[[], BrokerConfig],
        world: World,
        *,
        on_fatal: Callable[[str, BaseException], None],
        peers: Peers | None = None,
        calls: Calls | None = None,
        metrics: NetworkMetrics | None = None,
        turns: TurnTimes | None = None,
        tls: NodeTls | None = None,
        authorizer: Authorizer | None = None,
        key_sets: KeySets | None = None,
    ) -> None:
        """`peers`: the quorum's transport; `calls`: that to the active controller; None: the network.
        `metrics` counts for its listeners and its connections to others, `turns` for its listeners."""
        metrics = metrics or NetworkMetrics()
        security = config().cluster.security
        self._tls = tls
        self._security = _outgoing(security, world, tls)
        self._options = options
        self._clock = world.clock
        self._random = world.random
        self._on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        self._own: list[Channels] = []
        self.publisher = Publisher(
            options.metadata,
            world,
            on_fatal=on_fatal,
            peers=self._channels(metrics.channel(OF_QUORUM), quorum_channels(options.metadata))
            if peers is None
            else peers,
        )
        self.incarnation_id = options.controller.incarnation_id or world.new_uuid()
        node_id = options.controller.node_id
        self._prober = BrokerProber(options.inter_broker_listener, node_id, world.random.random)
        self.controller = Controller(
            replace(options.controller, incarnation_id=self.incarnation_id),
            self.publisher,
            world,
            NodeConfigRules(config),
            probe=self._prober.probe,
            on_disproved=self._prober.distrust,
            on_news=self._arm_timer,
            counts=self.publisher.published,  # a broker that forwards a request waits for its own image
        )
        self.side = ControllerSide(
            config,
            world.clock,
            node_id,
            options.controller.cluster_id,
            self.publisher,
            self.controller,
            supported=options.controller.supported,
            heartbeat_interval_ms=options.heartbeat_interval_ms,
            authorizer=authorizer,
        )
        self.leaders = QuorumLeaders(self.publisher)
        own = self._channels(metrics.channel(OF_CONTROLLER)) if calls is None else calls
        self.controllers = Controllers(node_id, self.leaders, own, self.here)
        self.servers = self._make_servers(metrics, turns, world, security, key_sets)
        self._claiming: asyncio.Task[None] | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = NEVER
        self._registering: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[None] | None = None
        self._registrations = asyncio.Event()
        self._change_log = ClusterChangeLog()
        self._stopping = False

    def _make_servers(
        self,
        metrics: NetworkMetrics,
        turns: TurnTimes | None,
        world: World,
        security: NodeSecurity,
        key_sets: KeySets | None,
    ) -> list[Server]:
        cluster_id = self._options.controller.cluster_id
        secret = self._options.controller.tokens.secret
        logins = NodeLogins(
            security, world, lambda: self.publisher.image, cluster_id, metrics, secret, key_sets
        )
        dispatcher = Dispatcher(self.side, CONTROLLER_APIS)
        names = tuple(one.name for one in self._options.listeners)
        arrivals = self.arrivals = ConnectionQuotas(lambda: self.side.config.quotas, names, metrics=metrics)
        admission = arrivals.admission()
        answer_versions = answer_for(ListenerType.CONTROLLER, lambda: features_of(self.side))
        return [
            Server(
                one.host,
                one.port,
                dispatcher,
                limits=self._options.limits,
                listener=one.name,
                admission=admission,
                metrics=metrics,
                turns=turns,
                describe=dispatcher.describe,
                on_gone=lambda context: self.side.connection_ended(context.connection_id),
                threads=world.threads,
                arrivals=arrivals,
                logins=logins.of(one, answer_versions),
                tls=None if self._tls is None else self._tls.listener(one.name),
            )
            for one in self._options.listeners
        ]

    def _channels(self, metrics: ChannelMetrics, options: ChannelOptions | None = None) -> Channels:
        options = (options or ChannelOptions())._replace(security=self._security)
        channels = Channels(options, metrics=metrics, chance=self._random.random)
        self._own.append(channels)
        return channels

    # -- life

    async def start(self) -> None:
        """Bind, join the quorum and serve; the quorum's leader may be known only later.

        Raises `ConfigError` where an address cannot be bound, and the errors of `Publisher.start`.
        """
        self.side.servers = lambda: self.servers
        for server in self.servers:
            await server.bind()
        self.publisher.subscribe(self._published)
        self.publisher.set_controller(self)
        await self.publisher.start()
        self._limit(self.publisher.image)
        for server in self.servers:
            await server.start()
        self._registering = self._supervised(self._keep_registered(), "controller-registration")
        if self._options.controller.sessions.refused_fence_ms >= 0:
            self._prober.published(self.publisher.image.brokers)
            self._probing = self._supervised(self._prober.run(), "broker-prober")

    async def stop(self) -> None:
        """Decide nothing more, resign, and close."""
        self._stopping = True
        self.controller.stop()
        self._cancel_timer()
        running = (self._registering, self._probing, self._claiming, self._ticking)
        tasks = [one for one in running if one is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.publisher.stop()
        await self._change_log.close()
        for server in self.servers:
            await server.close(1.0)
        self.arrivals.close()
        self.side.quotas.close()
        for channels in self._own:
            await channels.close()

    def _supervised(self, work: Any, name: str) -> asyncio.Task[None]:
        """Run `work` as a task that ends the node if it fails by a bug.

        A failure of the metadata log is only logged here: the publisher reports it."""

        def done(task: asyncio.Task[None]) -> None:
            if task.cancelled() or (error := task.exception()) is None:
                return
            if isinstance(error, RequestError | StorageError):
                _log.info("node %d: %s: %s", self._options.controller.node_id, name, error)
                return
            self._on_fatal(name, error)

        task: asyncio.Task[None] = self._loop.create_task(work, name=name)
        task.add_done_callback(done)
        return task

    # -- leading

    def on_lead(self, epoch: int) -> None:
        """Become active once the epoch's first batch, now the last in the log, is committed."""
        self._claiming = self._supervised(
            self._claim(epoch, self.publisher.next_offset - 1), "controller-claim"
        )

    async def _claim(self, epoch: int, offset: int) -> None:
        await self.publisher.published(offset)  # the image has it; a broker in this process may still lag
        quorum, node_id = self.publisher.quorum, self._options.controller.node_id
        while not self._stopping and quorum.epoch == epoch and quorum.is_leader:
            _log.info("node %d is the active controller of epoch %d", node_id, epoch)
            try:
                await self.controller.claim(epoch)
                return
            except RequestError as e:  # the quorum appended meanwhile, or another node leads
                _log.info("node %d is not the active controller in epoch %d yet: %s", node_id, epoch, e)
                await asyncio.sleep(_AGAIN_S)

    def on_step_down(self) -> None:
        """Stop deciding, and drop the changes that were not committed."""
        claiming, self._claiming = self._claiming, None
        if claiming is not None:
            claiming.cancel()
        self.controller.renounce()
        self._cancel_timer()
        self.controllers.leader_changed()

    # -- time

    def _arm_timer(self) -> None:
        """Call `_tick` when the controller's next deadline is due, unless the timer fires before."""
        deadline_ms = self.controller.next_deadline_ms
        if self._stopping or deadline_ms >= min(self._timer_ms, NEVER):
            return  # the earlier tick arms the timer again
        self._cancel_timer()
        self._timer_ms = deadline_ms
        wait_s = max(deadline_ms - self._clock.monotonic_ms(), 1) / 1000
        self._timer = self._loop.call_later(wait_s, self._tick)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_ms = None, NEVER

    def _tick(self) -> None:
        self._timer, self._timer_ms = None, NEVER
        if self._ticking is None:
            self._ticking = self._supervised(self._do_tick(), "controller-tick")

    async def _do_tick(self) -> None:
        try:
            await self.controller.tick()
        finally:
            self._ticking = None
            self._arm_timer()

    # -- registration of this controller

    def _limit(self, image: MetadataImage) -> None:
        """Apply the quotas of `image` to clients and connections of this controller."""
        self.side.quotas.apply(image.client_quotas)
        self.arrivals.apply(image.client_quotas)

    def _published(self, before: MetadataImage, after: MetadataImage, delta: MetadataDelta) -> None:
        if before.client_quotas is not after.client_quotas:
            self._limit(after)
        if before.controllers is not after.controllers:
            self._registrations.set()
        if before.brokers is not after.brokers:
            self._prober.published(after.brokers)
        if self.controller.is_active:
            self._change_log.published(before, after, delta)

    def _is_registered(self) -> bool:
        known = self.publisher.image.controllers.get(self._options.controller.node_id)
        return known is not None and known.incarnation_id == self.incarnation_id

    async def _keep_registered(self) -> None:
        """Register this process with the active controller whenever the image does not hold it."""
        options = self._options.controller
        features = tuple(Feature(*one) for one in self.side.supported)
        message = lifecycle_messages.controller_registration(
            options.node_id, self.incarnation_id, options.listeners, features
        )
        failures = 0
        while True:
            self._registrations.clear()
            if self._is_registered():
                failures = 0
                await self._registrations.wait()
                continue
            try:
                answer = await self.controllers.ask(
                    ApiKey.CONTROLLER_REGISTRATION, message, timeout_ms=_REGISTRATION_MS
                )
                lifecycle_messages.controller_registered(answer)
            except (RequestError, UnsupportedVersion) as e:
                failures += 1
                _log.info("node %d is not registered as a controller yet: %s", options.node_id, e)
            else:
                failures = max(failures, 1)  # until the image shows it
            pause_ms = backoff(
                failures, first=_RETRY_MS, longest=_RETRY_MAX_MS, jitter=0.2, uniform=self._random.random()
            )
            try:
                async with asyncio.timeout(pause_ms / 1000):
                    await self._registrations.wait()
            except TimeoutError:
                continue

    # -- requests of this process itself

    async def here(self, api_key: int, message: Any) -> Any:
        """Return the response of this controller to its own process; a `controller_channel.Here`."""
        context = RequestContext(-1, "127.0.0.1", 0, self._options.listeners[0].name, NODE_ITSELF)
        context.api_key, context.api_version = api_key, APIS[api_key].max_version
        return await handle_locally(self.side, context, message)
