"""Wiring of transactions on one node: the coordinator, the sending of markers, the questions to others.

Only the coordinator's shell is made at the start. What sends and asks is loaded with the first transaction
that needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from service.base.errors import InvariantError
from service.network.metrics import OF_TRANSACTIONS
from service.node.inter_broker import InterBroker
from service.serving.topic_coordinator import CoordinatorParts
from service.serving.transaction_coordinators import TransactionCoordinators

if TYPE_CHECKING:
    from service.serving.request_host import Broker
    from service.serving.transaction_marker_sender import TransactionMarkerSender
    from service.serving.transaction_verifier import TransactionVerifier


class TransactionWiring:
    """Makes the parts of transactions when they are needed. `broker` is set before the first request."""

    def __init__(self, parts: CoordinatorParts, others: InterBroker) -> None:
        self.broker: Broker | None = None
        self._parts = parts
        self._others = others
        self.coordinators = TransactionCoordinators(
            parts, lambda: self._needed().producer_ids.next(), self._make_sender, self._make_verifier
        )

    def _needed(self) -> Broker:
        if self.broker is None:
            raise InvariantError("a transaction before the node serves")
        return self.broker

    def _make_sender(self, coordinators: TransactionCoordinators) -> TransactionMarkerSender:
        from service.serving.transaction_shards import new_sender, write_markers

        return new_sender(
            self._parts.config().node_id,
            self._parts.image,
            self._others.channels(OF_TRANSACTIONS),
            lambda request: write_markers(self._needed(), request),
            coordinators.complete,
            self._parts.world.clock,
        )

    def _make_verifier(self, coordinators: TransactionCoordinators) -> TransactionVerifier:
        from service.serving.transaction_shards import ask_own, new_verifier, retries_of

        return new_verifier(
            self._parts.config().node_id,
            self._parts.image,
            coordinators.topic,
            self._others.channels(OF_TRANSACTIONS),
            lambda question: ask_own(coordinators, question),
            self._parts.world.clock,
            lambda: retries_of(self._parts.config().transactions),
        )
