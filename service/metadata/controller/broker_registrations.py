"""Registrations of brokers: their heartbeats, fencing and unfencing, their end.

Beside the decisions on the metadata, `Overseer` holds the sessions, which are not in the log.
"""

from __future__ import annotations

from service.base.steps import Steps
from service.metadata.controller import cluster_control, heartbeat_control
from service.metadata.controller.broker_sessions import (
    BrokerControl,
    BrokerRegistered,
    ConnectionLost,
    FencingDecided,
    HeartbeatReceived,
    SessionClosed,
)
from service.metadata.controller.cluster_control import check_epoch
from service.metadata.controller.decision import ControllerResult
from service.metadata.controller.decision_queue import DecisionQueue, not_controller
from service.metadata.controller.elections_control import ElectionSettings
from service.metadata.controller.full_directories import DirectoriesWithoutRoom
from service.metadata.controller.heartbeat_control import HeartbeatOutcome, process_heartbeat
from service.metadata.controller.overseer import Overseer
from service.metadata.controller.requests import BrokerHeartbeat, BrokerHeartbeatReply, RegisterBroker
from service.metadata.image import MetadataImage
from service.metadata.partition_index import leads
from service.metadata.publisher import Publisher


class BrokerRegistrations:
    """Registers brokers and decides their states. Owned by the event loop; for the errors and `deadline_ms`
    see `Controller`."""

    def __init__(
        self,
        cluster_id: str,
        publisher: Publisher,
        decisions: DecisionQueue,
        overseer: Overseer,
        full: DirectoriesWithoutRoom,
        elections: ElectionSettings,
    ) -> None:
        self._cluster_id = cluster_id
        self._publisher = publisher
        self._decisions = decisions
        self._overseer = overseer
        self._full = full
        self._elections = elections

    async def register(self, request: RegisterBroker, *, deadline_ms: int | None = None) -> int:
        """Register a broker process, fenced; returns its epoch."""

        def decide(image: MetadataImage) -> Steps[ControllerResult[int]]:
            existing = image.brokers.get(request.broker_id)
            return cluster_control.register_broker(
                image.with_kraft_version(self._publisher.kraft_version),
                request,
                cluster_id=self._cluster_id,
                next_offset=self._publisher.next_offset,
                has_session=existing is not None and self._overseer.is_alive(existing.id, existing.epoch),
                is_heard=self._overseer.is_heard,
                settings=self._elections,
            )

        def decided(epoch: int, offset: int) -> None:
            self._overseer.record(BrokerRegistered(request.broker_id, epoch))

        return (await self._decisions.run(decide, deadline_ms=deadline_ms, decided=decided))[0]

    async def heartbeat(
        self, request: BrokerHeartbeat, *, deadline_ms: int | None = None
    ) -> BrokerHeartbeatReply:
        """Handle a broker's heartbeat, and return the broker's new state.

        The session is extended at once, however long the decision waits for its turn.
        """
        broker_id, broker_epoch = request.broker_id, request.broker_epoch
        if not self._decisions.is_open:
            raise not_controller()
        known = self._decisions.latest.brokers.get(broker_id)
        if known is not None and known.epoch == broker_epoch:
            self._overseer.handle(HeartbeatReceived(broker_id, broker_epoch, request.metadata_offset))
            self._full.heard(broker_id, request.full_log_dirs, request.resting_log_dirs)

        def decide(image: MetadataImage) -> Steps[ControllerResult[HeartbeatOutcome]]:
            broker = check_epoch(image, broker_id, broker_epoch)
            current, following = self._overseer.next_state(
                request,
                is_fenced=broker.fenced,
                leads=image.index.has_any(leads(broker_id)),
                registered_at=broker.epoch,
            )
            return process_heartbeat(image, request, current, following, self._elections)

        def decided(outcome: HeartbeatOutcome, offset: int) -> None:
            if outcome.next is BrokerControl.CONTROLLED_SHUTDOWN:
                self._overseer.note_controlled_shutdown(broker_id, broker_epoch, offset)
            elif outcome.next is BrokerControl.SHUTDOWN_NOW:
                self._overseer.record(SessionClosed(broker_id, broker_epoch))
            elif outcome.next is not outcome.current:
                is_unfenced = outcome.next is BrokerControl.UNFENCED
                self._overseer.record(FencingDecided(broker_id, broker_epoch, is_unfenced))

        outcome, _ = await self._decisions.run(decide, deadline_ms=deadline_ms, decided=decided)
        return outcome.reply

    async def unfence(self, broker_id: int, broker_epoch: int) -> None:
        """Unfence the broker: it leads partitions without a leader, each in a new leader epoch."""

        def decided(_: None, offset: int) -> None:
            self._overseer.handle(HeartbeatReceived(broker_id, broker_epoch))
            self._overseer.record(FencingDecided(broker_id, broker_epoch, True))

        settings = self._elections
        await self._decisions.run(
            lambda image: heartbeat_control.unfence_broker(image, broker_id, broker_epoch, settings=settings),
            decided=decided,
        )

    async def fence(self, broker_id: int, broker_epoch: int) -> None:
        """Fence the broker: it leads nothing any more, and another process may take its id."""
        settings = self._elections
        await self._decisions.run(
            lambda image: heartbeat_control.fence_broker(image, broker_id, broker_epoch, settings=settings),
            decided=lambda _, offset: self._overseer.record(SessionClosed(broker_id, broker_epoch)),
        )

    async def unregister(self, broker_id: int, *, deadline_ms: int | None = None) -> None:
        """Remove a broker's registration; BROKER_ID_NOT_REGISTERED where there is none."""
        await self._decisions.run(
            lambda image: cluster_control.unregister_broker(image, broker_id, settings=self._elections),
            deadline_ms=deadline_ms,
            decided=lambda epoch, offset: self._overseer.record(SessionClosed(broker_id, epoch)),
        )

    def connection_lost(self, broker_id: int, broker_epoch: int) -> None:
        """Handle the break of the connection that carried this broker process's heartbeats."""
        if self._decisions.is_open:
            self._overseer.handle(ConnectionLost(broker_id, broker_epoch))
