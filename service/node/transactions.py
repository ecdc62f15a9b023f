"""Wiring of transactions on one node: the coordinator, the sending of markers, the questions to others.

Only the coordinator's shell is made at the start. What sends and asks is loaded with the first transaction
that needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from service.base.errors import InvariantError
from service.network.metrics import OF_TRANSACTIONS, NetworkMetrics
from service.serving.topic_coordinator import CoordinatorParts
from service.serving.transaction_coordinators import TransactionCoordinators

if TYPE_CHECKING:
    from service.client.security import Security
    from service.serving.broker_channels import BrokerChannels
    from service.serving.request_host import Broker
    from service.serving.transaction_marker_sender import TransactionMarkerSender
    from service.serving.transaction_verifier import TransactionVerifier


class TransactionWiring:
    """Makes the parts of transactions when they are needed. `broker` is set before the first request."""

    def __init__(
        self,
        parts: CoordinatorParts,
        listener: str,
        security: Callable[[], Security],
        network: NetworkMetrics,
    ) -> None:
        """`listener`: name of the listener between brokers; `security` of connections to it."""
        self.broker: Broker | None = None
        self._parts = parts
        self._listener = listener
        self._security = security
        self._network = network
        self.coordinators = TransactionCoordinators(
            parts, lambda: self._needed().producer_ids.next(), self._make_sender, self._make_verifier
        )

    def _needed(self) -> Broker:
        if self.broker is None:
            raise InvariantError("a transaction before the node serves")
        return self.broker

    def _channels(self) -> BrokerChannels:
        from service.client.node_channel import ChannelOptions, Channels
        from service.serving.broker_channels import BrokerChannels

        options = ChannelOptions(
            client_id=f"firn-{self._parts.config().node_id}-transactions", security=self._security()
        )
        return BrokerChannels(
            self._parts.image,
            self._listener,
            lambda: Channels(
                options,
                metrics=self._network.channel(OF_TRANSACTIONS),
                chance=self._parts.world.random.random,
            ),
        )

    def _make_sender(self, coordinators: TransactionCoordinators) -> TransactionMarkerSender:
        from service.serving.received_markers import write_markers
        from service.serving.transaction_marker_sender import TransactionMarkerSender

        return TransactionMarkerSender(
            self._parts.config().node_id,
            self._parts.image,
            self._channels(),
            lambda request: write_markers(self._needed(), request),
            coordinators.complete,
            self._parts.world.clock,
        )

    def _make_verifier(self, coordinators: TransactionCoordinators) -> TransactionVerifier:
        from service.serving.transaction_shards import ask_own, retries_of
        from service.serving.transaction_verifier import TransactionVerifier

        return TransactionVerifier(
            self._parts.config().node_id,
            self._parts.image,
            coordinators.topic,
            self._channels(),
            lambda question: ask_own(coordinators, question),
            self._parts.world.clock,
            lambda: retries_of(self._parts.config().transactions),
        )
