"""Listeners of a broker: bound early, so that their ports are known, and opened when the node can serve."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from service.base.errors import InvariantError
from service.base.turns import TurnTimes
from service.base.world import World
from service.config.settings import BrokerConfig
from service.metadata.controller.requests import Endpoint
from service.network.connection_quotas import ConnectionQuotas
from service.network.metrics import NetworkMetrics
from service.network.request import Answer, Gone, RequestContext, RunHandler
from service.network.server import Server
from service.node.node_options import limits_of
from service.serving.dispatch import Dispatcher

if TYPE_CHECKING:
    from service.network.authenticating import AnswerVersions
    from service.network.tls.node_tls import NodeTls
    from service.serving.listener_logins import NodeLogins


class BrokerListeners:
    """Servers of a broker, and their advertised addresses."""

    def __init__(self) -> None:
        self.servers: list[Server] = []
        """those that are bound"""
        self.places: dict[str, tuple[str, int]] = {}
        """advertised host and port by listener"""
        self.arrivals: ConnectionQuotas | None = None
        """limits on new connections, once they are bound"""

    async def bind(
        self,
        stack: AsyncExitStack,
        config: BrokerConfig,
        world: World,
        metrics: NetworkMetrics,
        turns: TurnTimes,
        logins: NodeLogins | None,
        tls: NodeTls | None,
    ) -> tuple[Endpoint, ...]:
        """Bind the addresses; return the advertised ones. Raises `ConfigError`."""
        names = tuple(one.name for one in config.listeners)
        protected = config.cluster.inter_broker_listener_name
        arrivals = self.arrivals = ConnectionQuotas(lambda: config.quotas, names, protected, metrics)
        limits, admission = limits_of(config), arrivals.admission()
        stack.callback(self.arrivals.close)
        advertised = {one.name: one for one in config.advertised_listeners}
        for listener in config.listeners:
            server = Server(
                listener.host,
                listener.port,
                _not_yet,
                limits=limits,
                listener=listener.name,
                admission=admission,
                metrics=metrics,
                turns=turns,
                threads=world.threads,
                arrivals=self.arrivals,
                logins=None if logins is None else logins.of(listener),
                tls=None if tls is None else tls.listener(listener.name),
            )
            await server.bind()
            stack.push_async_callback(server.close)
            self.servers.append(server)
            shown = advertised[listener.name]
            self.places[listener.name] = (shown.host, shown.port or server.port)
        return tuple(
            Endpoint(one.name, *self.places[one.name], int(one.protocol)) for one in config.listeners
        )

    def serve_with(
        self,
        dispatcher: Dispatcher,
        answer_versions: AnswerVersions,
        config: Callable[[], BrokerConfig],
        on_gone: Gone,
        runs: RunHandler | None,
    ) -> None:
        """Set the handler of requests, what answers ApiVersions before a login, where the current settings
        are, what is called when a connection has ended, and what answers requests from
        received bytes."""
        assert self.arrivals is not None
        self.arrivals.config = lambda: config().quotas
        for server in self.servers:
            server.set_handler(dispatcher, dispatcher.describe, answer_versions, on_gone, runs)

    async def start(self, stack: AsyncExitStack) -> None:
        """Accept connections."""
        for server in self.servers:
            await server.start()
            stack.push_async_callback(server.close)


def _not_yet(context: RequestContext, frame: memoryview) -> Answer:
    raise InvariantError("a request came before the broker exists")
