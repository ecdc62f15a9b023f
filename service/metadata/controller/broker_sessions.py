"""Sessions of brokers, the detection of dead brokers, and the next state of each. [P]

Source: Apache Kafka ``BrokerHeartbeatManager``, ``BrokerHeartbeatTracker``; the rest is ours.

The metadata holds whether a broker is fenced; a session holds the time of its last heartbeat, its metadata
offset, and the offset of its controlled shutdown. Sessions do not outlive a controller: they start again when
it is claimed. `handle` takes events with the time, and returns effects. The caller reads `next_deadline_ms`
and passes a `SessionTick` then.

*Dead, not slow.* A broker whose heartbeat connection broke is suspected: its address is probed, at once and
again after `FIRST_SUSPICION_MS`, then after four times as long, up to the heartbeat interval, until a
heartbeat comes. After a claim a broker has `CLAIM_MS` for a heartbeat before it is suspected: it sends one as
soon as it knows the new controller (`broker_lifecycle.ControllerChanged`). `REFUSALS` refusals within
``firn.broker.refused.fence.ms``, without a heartbeat between them, fence a broker before its session ends. A
refusal counts only where the prober has found this address open before in this broker epoch: a listener that
the controller cannot reach refuses, too. A timeout proves nothing. An open address ends the suspicion, as a
heartbeat does. A heartbeat after a refusal disproves it: the process lives and its address refuses, so
refusals there do not count until the address is found open again (invariant B5). A broker whose connection
breaks again within `BREAKS_MS` is suspected only after `BREAKS_MS`: it may back off before it reconnects, and
its next heartbeat may not be due yet (`broker_lifecycle`). A broker that was unfenced recently is suspected
only after a while: one that crashes repeatedly would be elected and fenced in a loop.

*Awaited.* A refusal fences the broker, but does not end its session: until then `is_awaited` is true, and no
unclean election replaces the broker (docs/adr/0027). The same holds for a fenced broker that sends
heartbeats, and, for one session timeout after a claim, for a broker that was fenced before: only the
controller that fenced it knew when its session ends.

>>> sessions = BrokerSessions(SessionTimes())
>>> sessions.handle(HeartbeatReceived(1, 7, metadata_offset=9), 0)
[]
>>> sessions.handle(FencingDecided(1, 7, is_unfenced=True), 0)
[]
>>> sessions.handle(SessionTick(), 9_001)
[SessionExpired(broker_id=1, broker_epoch=7, silent_ms=9001, refusing='')]
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from service.metadata.controller.requests import BrokerHeartbeat

NEVER: Final = 1 << 62
REFUSALS: Final = 5
PROBE_MS: Final = 15
"""Longest pause between probes of a broker that refuses.

All probes take 60 ms and five round trips: a living broker that has lost its connection sends a heartbeat
within three round trips. librdkafka asks for the new leader 100 ms after it has lost the old one, and then
once a second.
"""
CLAIM_MS: Final = 1_000
"""Time for brokers to send a heartbeat to a new controller before they are suspected."""
BREAKS_MS: Final = 2_000
"""Least time between breaks of a broker's connection that are handled separately.

Longer than the pauses of a living broker before its heartbeat arrives over another connection: half a second
in `broker_lifecycle`, a second and a fifth in `client.node_channel`.
"""
FIRST_SUSPICION_MS: Final = 50
SUSPICION_BACKOFF_FACTOR: Final = 4
CHECKS_PER_TIMEOUT: Final = 8
"""Checks for expired sessions within one session timeout."""


class BrokerControl(Enum):
    """States of a broker; `BrokerSessions.next_state` decides the transitions."""

    FENCED = "fenced"
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "controlled shutdown"
    SHUTDOWN_NOW = "shutdown now"


class ProbeOutcome(Enum):
    """Result of a connection attempt to a broker's address."""

    OPEN = "open"
    REFUSED = "refused"
    """Refused, after it was open before in this broker epoch."""
    UNKNOWN = "unknown"
    """Timed out, failed otherwise, or refused without ever being open: proves nothing."""


class SessionTimes(NamedTuple):
    """Kafka's keys, and two of Firn: ``firn.broker.refused.fence.ms`` (-1: never), and how long a broker must
    be unfenced before a refusal counts."""

    session_timeout_ms: int = 9_000
    heartbeat_interval_ms: int = 2_000
    refused_fence_ms: int = 1_000
    least_unfenced_ms: int = 1_000


class BrokerAtClaim(NamedTuple):
    """Broker in the metadata when the controller is claimed.

    `is_local`: this process's broker, which gets no session before its first heartbeat: the process that had
    its id before is dead.
    """

    broker_id: int
    broker_epoch: int
    is_fenced: bool
    is_local: bool = False


class BrokerRegistered(NamedTuple):
    """Registration of a broker process, which ends that of the one before. Its session starts with a
    heartbeat."""

    broker_id: int
    broker_epoch: int


class HeartbeatReceived(NamedTuple):
    """Heartbeat of a broker process that has applied the metadata up to `metadata_offset`."""

    broker_id: int
    broker_epoch: int
    metadata_offset: int = -1


class FencingDecided(NamedTuple):
    """Committed decision that fences or unfences the broker."""

    broker_id: int
    broker_epoch: int
    is_unfenced: bool


class SessionClosed(NamedTuple):
    """End of a session: the process has stopped, or was unregistered."""

    broker_id: int
    broker_epoch: int


class ConnectionLost(NamedTuple):
    """Break of the connection that carried the broker's heartbeats."""

    broker_id: int
    broker_epoch: int


class ProbeFinished(NamedTuple):
    """Result of a probe of `address`, which is used in log lines only."""

    broker_id: int
    broker_epoch: int
    outcome: ProbeOutcome
    address: str = ""


class SessionTick(NamedTuple):
    """Time of `next_deadline_ms`."""


Event = (
    BrokerAtClaim
    | BrokerRegistered
    | HeartbeatReceived
    | FencingDecided
    | SessionClosed
    | ConnectionLost
    | ProbeFinished
    | SessionTick
)


class SessionExpired(NamedTuple):
    """Fence the broker unless it is: no heartbeat came for `silent_ms`, and its session is over, or the
    address `refusing` refuses connections."""

    broker_id: int
    broker_epoch: int
    silent_ms: int
    refusing: str = ""


class SessionsOver(NamedTuple):
    """Run the unclean elections that waited for sessions of fenced brokers."""


class Probe(NamedTuple):
    """Connect to the broker's address, and report the result as `ProbeFinished`."""

    broker_id: int
    broker_epoch: int


class RefusalDisproved(NamedTuple):
    """Report that the broker's address refused while the process lives."""

    broker_id: int
    broker_epoch: int


Effect = SessionExpired | SessionsOver | Probe | RefusalDisproved


@dataclass(slots=True)
class _Session:
    broker_epoch: int
    heard_ms: int | None = None
    """Time of the last heartbeat; None: no session, though perhaps registered."""
    awaited_until_ms: int | None = None
    """Fenced by a refusal or before the claim: end of its session, unless a heartbeat comes."""
    has_sent_heartbeat: bool = False
    """True once a heartbeat came."""
    metadata_offset: int = -1
    shutdown_offset: int = -1
    is_unfenced: bool = False
    suspect_ms: int | None = None
    """No heartbeat since the claim, or since its connection broke: when it is suspected (again)."""
    suspect_gap_ms: int = FIRST_SUSPICION_MS
    suspected_ms: int | None = None
    lost_ms: int = -NEVER
    """When its connection last broke."""
    has_refused: bool = False
    """True where its address refused since the last heartbeat."""
    refusals: int = 0
    probe_ms: int = NEVER
    """When to probe its address next."""


class BrokerSessions:
    """Sessions of one controller, owned by its event loop."""

    def __init__(self, times: SessionTimes) -> None:
        self._times = times
        self._sessions: dict[int, _Session] = {}
        self._unfenced_ms: dict[int, int] = {}
        self._checked_ms = -NEVER

    # -- state

    def is_alive(self, broker_id: int, broker_epoch: int, now_ms: int) -> bool:
        """Return whether this process sent a heartbeat within the session timeout."""
        session = self._sessions.get(broker_id)
        return (
            session is not None
            and session.broker_epoch == broker_epoch
            and session.heard_ms is not None
            and not self._is_stale(session.heard_ms, now_ms)
        )

    def is_awaited(self, broker_id: int, now_ms: int) -> bool:
        """Return whether a fenced broker may be alive: its session is not over."""
        session = self._sessions.get(broker_id)
        if session is None:
            return False
        if session.awaited_until_ms is not None:
            return now_ms < session.awaited_until_ms
        return (
            not session.is_unfenced
            and session.heard_ms is not None
            and not self._is_stale(session.heard_ms, now_ms)
        )

    def is_heard(self, broker_id: int, broker_epoch: int) -> bool:
        """Return whether this process has sent a heartbeat since the controller was claimed."""
        session = self._of(broker_id, broker_epoch)
        return session is not None and session.has_sent_heartbeat

    def next_state(
        self, heartbeat: BrokerHeartbeat, *, is_fenced: bool, leads: bool, registered_at: int
    ) -> tuple[BrokerControl, BrokerControl]:
        """Return the broker's current state and its next one.

        `leads`: it leads a partition. `registered_at`: offset of its registration, which it must have applied
        before it is unfenced.
        """
        session = self._sessions.get(heartbeat.broker_id)
        current = BrokerControl.FENCED if is_fenced else BrokerControl.UNFENCED
        if not is_fenced and session is not None and session.shutdown_offset >= 0:
            current = BrokerControl.CONTROLLED_SHUTDOWN
        if current is BrokerControl.FENCED:
            if heartbeat.wants_shut_down:
                return current, BrokerControl.SHUTDOWN_NOW
            may_serve = not heartbeat.wants_fence and heartbeat.metadata_offset >= registered_at
            return current, BrokerControl.UNFENCED if may_serve else BrokerControl.FENCED
        if current is BrokerControl.UNFENCED:
            if heartbeat.wants_fence:
                stops = heartbeat.wants_shut_down
                return current, BrokerControl.SHUTDOWN_NOW if stops else BrokerControl.FENCED
            if not heartbeat.wants_shut_down:
                return current, BrokerControl.UNFENCED
            return current, BrokerControl.CONTROLLED_SHUTDOWN if leads else BrokerControl.SHUTDOWN_NOW
        if leads or (session is not None and session.shutdown_offset > self.lowest_active_offset()):
            return current, BrokerControl.CONTROLLED_SHUTDOWN
        return current, BrokerControl.SHUTDOWN_NOW

    def lowest_active_offset(self) -> int:
        """Return the lowest metadata offset of the unfenced brokers; `NEVER` where there are none."""
        return min(
            (
                session.metadata_offset
                for session in self._sessions.values()
                if session.is_unfenced and session.shutdown_offset < 0
            ),
            default=NEVER,
        )

    def note_controlled_shutdown(self, broker_id: int, broker_epoch: int, offset: int) -> None:
        """Note that the broker is in controlled shutdown, and the offset of the records that move its
        leaderships."""
        session = self._of(broker_id, broker_epoch)
        if session is not None and session.shutdown_offset < 0:
            session.shutdown_offset = offset

    @property
    def next_deadline_ms(self) -> int:
        """Time of the next `SessionTick`; `NEVER` where none is needed."""
        deadline = NEVER
        for session in self._sessions.values():
            deadline = min(deadline, session.probe_ms)
            if session.suspect_ms is not None:
                deadline = min(deadline, session.suspect_ms)
            if session.awaited_until_ms is not None:
                deadline = min(deadline, session.awaited_until_ms)
            if session.heard_ms is not None:
                stale_ms = session.heard_ms + self._times.session_timeout_ms + 1
                next_check_ms = self._checked_ms + self._times.session_timeout_ms // CHECKS_PER_TIMEOUT
                deadline = min(deadline, max(stale_ms, next_check_ms))
        return deadline

    # -- events

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Handle `event` and return its effects."""
        match event:
            case SessionTick():
                return self._tick(now_ms)
            case BrokerAtClaim():
                self._know(event, now_ms)
            case BrokerRegistered(broker_id, broker_epoch):
                if self._of(broker_id, broker_epoch) is None:
                    self._sessions[broker_id] = _Session(broker_epoch)
            case HeartbeatReceived():
                return self._hear(event, now_ms)
            case FencingDecided():
                self._fencing(event, now_ms)
            case SessionClosed(broker_id, broker_epoch):
                if self._of(broker_id, broker_epoch) is not None:
                    del self._sessions[broker_id]
            case ConnectionLost(broker_id, broker_epoch):
                if (lost := self._of(broker_id, broker_epoch)) is not None and lost.is_unfenced:
                    return self._connection_lost(broker_id, lost, now_ms)
            case ProbeFinished():
                return self._probed(event, now_ms)
        return []

    def _know(self, event: BrokerAtClaim, now_ms: int) -> None:
        # Its connection to the previous controller has just ended: a break within a moment is one more.
        session = _Session(event.broker_epoch, is_unfenced=not event.is_fenced, lost_ms=now_ms)
        if not event.is_fenced and not event.is_local:
            session.heard_ms = now_ms
            self._suspect_in(CLAIM_MS, session, now_ms)
        if event.is_fenced:
            session.awaited_until_ms = now_ms + self._times.session_timeout_ms + 1
        self._sessions[event.broker_id] = session

    def _suspect_in(self, wait_ms: int, session: _Session, now_ms: int) -> None:
        """Suspect the broker after `wait_ms`, and again with growing pauses, until a heartbeat comes."""
        if self._times.refused_fence_ms >= 0:
            session.suspect_gap_ms = wait_ms
            session.suspect_ms = now_ms + wait_ms

    def _connection_lost(self, broker_id: int, session: _Session, now_ms: int) -> list[Effect]:
        was_heard_since = session.suspect_ms is None
        breaks_again = was_heard_since and now_ms - session.lost_ms < BREAKS_MS
        session.lost_ms = now_ms
        if breaks_again:
            self._suspect_in(BREAKS_MS, session, now_ms)
            return []
        # A dying process may accept connections for another moment: it is suspected again.
        self._suspect_in(FIRST_SUSPICION_MS, session, now_ms)
        return self._suspect(broker_id, session, now_ms)

    def _hear(self, event: HeartbeatReceived, now_ms: int) -> list[Effect]:
        session = self._of(event.broker_id, event.broker_epoch)
        if session is None:
            session = self._sessions[event.broker_id] = _Session(event.broker_epoch)
        session.heard_ms = now_ms
        session.has_sent_heartbeat = True
        session.suspect_ms = session.awaited_until_ms = None
        session.metadata_offset = max(session.metadata_offset, event.metadata_offset)
        _trust(session)
        has_refused, session.has_refused = session.has_refused, False
        return [RefusalDisproved(event.broker_id, event.broker_epoch)] if has_refused else []

    def _fencing(self, event: FencingDecided, now_ms: int) -> None:
        if event.is_unfenced:
            self._unfenced_ms[event.broker_id] = now_ms
        session = self._of(event.broker_id, event.broker_epoch)
        if session is not None:
            session.is_unfenced = event.is_unfenced
            if not event.is_unfenced:  # which ends its controlled shutdown
                session.shutdown_offset = -1
                session.suspect_ms = None
                _trust(session)

    def _tick(self, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        for broker_id in sorted(self._sessions):
            session = self._sessions[broker_id]
            if session.suspect_ms is not None and now_ms >= session.suspect_ms:
                max_gap_ms = self._times.heartbeat_interval_ms
                session.suspect_gap_ms = min(session.suspect_gap_ms * SUSPICION_BACKOFF_FACTOR, max_gap_ms)
                session.suspect_ms = now_ms + session.suspect_gap_ms
                effects += self._suspect(broker_id, session, now_ms)
            if now_ms >= session.probe_ms:
                session.probe_ms = NEVER
                effects.append(Probe(broker_id, session.broker_epoch))
        if now_ms >= self._checked_ms + self._times.session_timeout_ms // CHECKS_PER_TIMEOUT:
            self._checked_ms = now_ms
            effects += self._expire_one(now_ms)
        return effects + self._end_awaited(now_ms)

    def _end_awaited(self, now_ms: int) -> list[Effect]:
        over = [
            one
            for one in self._sessions.values()
            if one.awaited_until_ms is not None and now_ms >= one.awaited_until_ms
        ]
        for session in over:
            session.awaited_until_ms = None
        return [SessionsOver()] if over else []

    def _expire_one(self, now_ms: int) -> list[Effect]:
        """Expire one session, the one silent for longest: the next one sees the effects of its fencing."""
        stale = [
            (session.heard_ms, broker_id)
            for broker_id, session in self._sessions.items()
            if session.heard_ms is not None and self._is_stale(session.heard_ms, now_ms)
        ]
        if not stale:
            return []
        heard_ms, broker_id = min(stale)
        session = self._sessions[broker_id]
        session.heard_ms = session.suspect_ms = None
        _trust(session)
        expired = SessionExpired(broker_id, session.broker_epoch, now_ms - heard_ms)
        return [expired] if session.is_unfenced else [expired, SessionsOver()]

    def _suspect(self, broker_id: int, session: _Session, now_ms: int) -> list[Effect]:
        if self._times.refused_fence_ms < 0 or session.suspected_ms is not None:
            return []
        began_ms = max(now_ms, self._unfenced_ms.get(broker_id, -NEVER) + self._times.least_unfenced_ms)
        session.suspected_ms, session.refusals = began_ms, 0
        if began_ms > now_ms:
            session.probe_ms = began_ms
            return []
        return [Probe(broker_id, session.broker_epoch)]

    def _probed(self, event: ProbeFinished, now_ms: int) -> list[Effect]:
        session = self._of(event.broker_id, event.broker_epoch)
        if session is None:
            return []
        if event.outcome is not ProbeOutcome.UNKNOWN:
            session.has_refused = event.outcome is ProbeOutcome.REFUSED
        if session.suspected_ms is None:
            return []
        if event.outcome is not ProbeOutcome.REFUSED:
            _trust(session)
            return []
        if session.refusals and now_ms - session.suspected_ms > self._times.refused_fence_ms:
            # The refusals lie too far apart: this one starts the count again.
            session.suspected_ms, session.refusals = now_ms, 0
        session.refusals += 1
        if session.refusals < REFUSALS:
            session.probe_ms = now_ms + min(PROBE_MS, self._times.refused_fence_ms // REFUSALS)
            return []
        heard_ms = now_ms if session.heard_ms is None else session.heard_ms
        session.awaited_until_ms = heard_ms + self._times.session_timeout_ms + 1
        session.heard_ms = session.suspect_ms = None
        _trust(session)
        return [SessionExpired(event.broker_id, session.broker_epoch, now_ms - heard_ms, event.address)]

    # -- helpers

    def _of(self, broker_id: int, broker_epoch: int) -> _Session | None:
        session = self._sessions.get(broker_id)
        return session if session is not None and session.broker_epoch == broker_epoch else None

    def _is_stale(self, heard_ms: int, now_ms: int) -> bool:
        return heard_ms + self._times.session_timeout_ms < now_ms


def _trust(session: _Session) -> None:
    """End the suspicion of the broker."""
    session.suspected_ms, session.refusals, session.probe_ms = None, 0, NEVER
