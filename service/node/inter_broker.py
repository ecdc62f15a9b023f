"""Connections of this node's coordinators to other brokers, made when they are needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from service.network.metrics import NetworkMetrics
from service.serving.topic_coordinator import CoordinatorParts

if TYPE_CHECKING:
    from service.client.security import Security
    from service.serving.broker_channels import BrokerChannels


class InterBroker:
    """Maker of channels on the listener between brokers."""

    def __init__(
        self,
        parts: CoordinatorParts,
        listener: str,
        security: Callable[[], Security],
        network: NetworkMetrics,
    ) -> None:
        """`listener`: name of the listener between brokers; `security` of connections to it."""
        self._parts = parts
        self._listener = listener
        self._security = security
        self._network = network

    def channels(self, purpose: str) -> BrokerChannels:
        """Return channels whose metrics and client id name `purpose`."""
        from service.client.node_channel import ChannelOptions, Channels
        from service.serving.broker_channels import BrokerChannels

        options = ChannelOptions(
            client_id=f"firn-{self._parts.config().node_id}-{purpose}", security=self._security()
        )
        return BrokerChannels(
            self._parts.image,
            self._listener,
            lambda: Channels(
                options,
                metrics=self._network.channel(purpose),
                chance=self._parts.world.random.random,
            ),
        )
