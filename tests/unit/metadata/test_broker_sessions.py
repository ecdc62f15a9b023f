"""Brokers that are heard of and those that are not: events in, what must be done out."""

from __future__ import annotations

from itertools import pairwise

import pytest

from service.metadata.controller.broker_sessions import (
    NEVER,
    BrokerAtClaim,
    BrokerControl,
    BrokerRegistered,
    BrokerSessions,
    ConnectionLost,
    Effect,
    FencingDecided,
    HeartbeatReceived,
    Probe,
    ProbeFinished,
    ProbeOutcome,
    RefusalDisproved,
    SessionClosed,
    SessionExpired,
    SessionsOver,
    SessionTick,
    SessionTimes,
)
from service.metadata.controller.requests import BrokerHeartbeat

FENCED, UNFENCED = BrokerControl.FENCED, BrokerControl.UNFENCED
MOVING, STOPPED = BrokerControl.CONTROLLED_SHUTDOWN, BrokerControl.SHUTDOWN_NOW


@pytest.mark.parametrize(
    ("is_fenced", "leads", "offset", "wants_fence", "wants_shut_down", "expected"),
    [
        (True, False, 10, False, False, UNFENCED),
        (True, False, 9, False, False, FENCED),
        (True, False, 10, True, False, FENCED),
        (True, False, 10, False, True, STOPPED),
        (False, True, 10, False, False, UNFENCED),
        (False, True, 0, False, False, UNFENCED),
        (False, True, 10, True, False, FENCED),
        (False, True, 10, True, True, STOPPED),
        (False, True, 10, False, True, MOVING),
        (False, False, 10, False, True, STOPPED),
    ],
)
def test_a_heartbeat_moves_a_broker_to_its_next_state(
    is_fenced: bool,
    leads: bool,
    offset: int,
    wants_fence: bool,
    wants_shut_down: bool,
    expected: BrokerControl,
) -> None:
    sessions = BrokerSessions(SessionTimes())
    heartbeat = BrokerHeartbeat(1, 5, offset, wants_fence, wants_shut_down)
    current, following = sessions.next_state(heartbeat, is_fenced=is_fenced, leads=leads, registered_at=10)
    assert current is (FENCED if is_fenced else UNFENCED)
    assert following is expected


def test_controlled_shutdown_ends_when_all_unfenced_brokers_know_the_new_leaders() -> None:
    sessions = BrokerSessions(SessionTimes())
    for broker_id in (1, 2, 3):
        sessions.handle(BrokerRegistered(broker_id, broker_id), 0)
        sessions.handle(HeartbeatReceived(broker_id, broker_id, 50), 0)
    for broker_id in (1, 2):
        sessions.handle(FencingDecided(broker_id, broker_id, True), 0)
    sessions.note_controlled_shutdown(1, 1, 100)
    sessions.note_controlled_shutdown(1, 1, 200)  # asked again: the first counts
    stopping = BrokerHeartbeat(1, 1, 50, wants_shut_down=True)

    def state(*, leads: bool) -> BrokerControl:
        return sessions.next_state(stopping, is_fenced=False, leads=leads, registered_at=1)[1]

    assert state(leads=False) is MOVING
    sessions.handle(HeartbeatReceived(2, 2, 100), 1)
    assert state(leads=True) is MOVING
    assert state(leads=False) is STOPPED, "broker 3 does not serve, and need not know"
    sessions.handle(HeartbeatReceived(2, 2, 60), 2)
    assert sessions.lowest_active_offset() == 100, "what a broker has it does not lose"


def ticks(sessions: BrokerSessions, until_ms: int) -> list[tuple[int, Effect]]:
    """Ticks when they are asked for; what comes of them, and when."""
    done: list[tuple[int, Effect]] = []
    now_ms = -1
    while (deadline_ms := sessions.next_deadline_ms) <= until_ms:
        assert deadline_ms > now_ms, "a tick that has nothing to do is not asked for again at once"
        now_ms = deadline_ms
        done += [(now_ms, effect) for effect in sessions.handle(SessionTick(), now_ms)]
    return done


def test_stale_sessions_end_one_at_a_time_the_longest_silent_first() -> None:
    sessions = BrokerSessions(SessionTimes(refused_fence_ms=-1))
    assert sessions.next_deadline_ms == NEVER
    for broker_id, heard_ms in ((1, 300), (2, 100), (3, 200)):
        sessions.handle(HeartbeatReceived(broker_id, broker_id), heard_ms)
    assert [effect for _, effect in ticks(sessions, 8_999)] == []
    ended = ticks(sessions, 20_000)
    fenced = [(time_ms, effect) for time_ms, effect in ended if isinstance(effect, SessionExpired)]
    assert [effect[:2] for _, effect in fenced] == [(2, 2), (3, 3), (1, 1)]
    assert fenced[0][1] == SessionExpired(2, 2, silent_ms=9_001)
    times = [time_ms for time_ms, _ in fenced]
    assert times[0] == 9_101
    assert all(later - earlier >= 1_125 for earlier, later in pairwise(times))
    assert sessions.next_deadline_ms == NEVER
    assert not sessions.is_alive(1, 1, 20_000)


def test_a_new_controller_restarts_sessions_except_that_of_its_own_broker() -> None:
    sessions = BrokerSessions(SessionTimes())
    sessions.handle(BrokerAtClaim(1, 7, is_fenced=False, is_local=True), 0)
    sessions.handle(BrokerAtClaim(2, 8, is_fenced=False), 0)
    sessions.handle(BrokerAtClaim(3, 9, is_fenced=True), 0)
    assert [sessions.is_alive(b, e, 100) for b, e in ((1, 7), (2, 8), (2, 7), (3, 9))] == [
        False,
        True,
        False,
        False,
    ]
    assert ticks(sessions, 4_000) == [(1_000, Probe(2, 8))], "it may have died with the controller before"


def test_a_new_controller_probes_silent_brokers_after_a_second() -> None:
    sessions = BrokerSessions(SessionTimes())
    sessions.handle(BrokerAtClaim(1, 7, is_fenced=False), 0)
    sessions.handle(BrokerAtClaim(2, 8, is_fenced=False), 0)
    assert ticks(sessions, 999) == []
    for probed_ms in (1_000, 3_000):
        assert ticks(sessions, probed_ms) == [(probed_ms, Probe(1, 7)), (probed_ms, Probe(2, 8))]
        assert sessions.handle(ProbeFinished(1, 7, ProbeOutcome.OPEN), probed_ms + 1) == []
        assert sessions.handle(ProbeFinished(2, 8, ProbeOutcome.OPEN), probed_ms + 1) == []
    sessions.handle(HeartbeatReceived(2, 8, 6), 4_900)
    assert ticks(sessions, 5_070) == [(5_000, Probe(1, 7))], "it may have died meanwhile, unheard"
    refused_often(sessions, 5_001, silent_ms=5_065)
    assert ticks(sessions, 8_000) == []


def test_brokers_are_not_probed_if_refused_connections_do_not_fence() -> None:
    sessions = BrokerSessions(SessionTimes(refused_fence_ms=-1))
    sessions.handle(BrokerAtClaim(1, 7, is_fenced=False), 0)
    assert ticks(sessions, 20_000) == [(9_001, SessionExpired(1, 7, 9_001))]


def suspected(now_ms: int = 10_000) -> BrokerSessions:
    sessions = BrokerSessions(SessionTimes())
    sessions.handle(HeartbeatReceived(1, 7, 5), 0)
    sessions.handle(FencingDecided(1, 7, True), 0)
    sessions.handle(HeartbeatReceived(1, 7, 6), now_ms)
    assert sessions.handle(ConnectionLost(1, 7), now_ms) == [Probe(1, 7)]
    assert sessions.handle(ConnectionLost(1, 7), now_ms) == [], "it is being looked at"
    return sessions


def refused_often(sessions: BrokerSessions, now_ms: int, *, silent_ms: int) -> None:
    """Broker 1 is probed 15 ms after each refusal, from `now_ms` on; the fifth fences it."""
    for _ in range(4):
        assert sessions.handle(ProbeFinished(1, 7, ProbeOutcome.REFUSED, "h:1"), now_ms) == []
        assert ticks(sessions, now_ms + 15) == [(now_ms + 15, Probe(1, 7))]
        now_ms += 16
    expired = SessionExpired(1, 7, silent_ms, refusing="h:1")
    assert sessions.handle(ProbeFinished(1, 7, ProbeOutcome.REFUSED, "h:1"), now_ms) == [expired]


def test_five_refusals_within_the_time_and_no_heartbeat_fence() -> None:
    sessions = suspected()
    refused_often(sessions, 10_001, silent_ms=65)
    assert not sessions.is_alive(1, 7, 10_070), "another process may register"


def test_a_broker_that_refuses_is_awaited_until_its_session_would_have_ended() -> None:
    sessions = suspected()
    refused_often(sessions, 10_001, silent_ms=65)
    sessions.handle(FencingDecided(1, 7, False), 10_070)
    assert sessions.is_awaited(1, 19_000)
    assert not sessions.is_awaited(2, 19_000)
    assert ticks(sessions, 30_000) == [(19_001, SessionsOver())], "unclean elections that waited are due"
    assert not sessions.is_awaited(1, 19_001)


@pytest.mark.parametrize("event", [BrokerRegistered(1, 9), SessionClosed(1, 7)])
def test_a_broker_whose_process_has_ended_is_not_awaited(
    event: BrokerRegistered | SessionClosed,
) -> None:
    sessions = suspected()
    refused_often(sessions, 10_001, silent_ms=65)
    sessions.handle(event, 10_100)
    assert not sessions.is_awaited(1, 10_100)
    assert ticks(sessions, 30_000) == []


def test_a_fenced_broker_is_awaited_while_it_is_heard() -> None:
    sessions = suspected()
    refused_often(sessions, 10_001, silent_ms=65)
    sessions.handle(FencingDecided(1, 7, False), 10_070)
    sessions.handle(HeartbeatReceived(1, 7, 9), 12_000)
    assert sessions.is_awaited(1, 21_000)
    assert ticks(sessions, 22_000)[-2:] == [(21_001, SessionExpired(1, 7, 9_001)), (21_001, SessionsOver())]
    assert not sessions.is_awaited(1, 21_001)
    sessions.handle(HeartbeatReceived(1, 7, 10), 22_000)
    sessions.handle(FencingDecided(1, 7, True), 22_000)
    assert not sessions.is_awaited(1, 22_001), "it leads what it may"


def test_a_new_controller_waits_one_session_for_brokers_fenced_before() -> None:
    sessions = BrokerSessions(SessionTimes())
    sessions.handle(BrokerAtClaim(1, 7, is_fenced=True), 0)
    assert sessions.is_awaited(1, 9_000)
    assert not sessions.is_alive(1, 7, 1), "another process may register"
    assert ticks(sessions, 20_000) == [(9_001, SessionsOver())]


@pytest.mark.parametrize("outcome", [ProbeOutcome.OPEN, ProbeOutcome.UNKNOWN])
def test_a_probe_that_is_not_refused_ends_the_suspicion(outcome: ProbeOutcome) -> None:
    sessions = suspected()
    sessions.handle(ProbeFinished(1, 7, ProbeOutcome.REFUSED), 10_001)
    assert sessions.handle(ProbeFinished(1, 7, outcome), 10_400) == []
    assert sessions.handle(ProbeFinished(1, 7, ProbeOutcome.REFUSED), 10_450) == []
    assert sessions.is_alive(1, 7, 10_460)
    sessions.handle(HeartbeatReceived(1, 7, 9), 10_470)
    assert ticks(sessions, 18_000) == []


def test_a_dying_broker_that_was_still_reached_is_probed_again() -> None:
    sessions = suspected()
    assert sessions.handle(ProbeFinished(1, 7, ProbeOutcome.OPEN), 10_001) == []
    assert ticks(sessions, 10_060) == [(10_050, Probe(1, 7))]
    refused_often(sessions, 10_051, silent_ms=115)


def test_a_heartbeat_ends_the_suspicion() -> None:
    sessions = suspected()
    sessions.handle(ProbeFinished(1, 7, ProbeOutcome.REFUSED), 10_001)
    sessions.handle(HeartbeatReceived(1, 7, 9), 10_100)
    assert ticks(sessions, 15_000) == []


def test_a_heartbeat_after_a_refusal_disproves_it_once() -> None:
    sessions = suspected()
    assert sessions.handle(HeartbeatReceived(1, 7, 9), 10_001) == [], "nothing was refused yet"
    sessions.handle(ProbeFinished(1, 7, ProbeOutcome.REFUSED), 10_002)
    sessions.handle(ProbeFinished(1, 7, ProbeOutcome.UNKNOWN), 10_003)
    assert sessions.handle(HeartbeatReceived(1, 7, 9), 10_010) == [RefusalDisproved(1, 7)]
    assert sessions.handle(HeartbeatReceived(1, 7, 9), 10_020) == []
    sessions.handle(ProbeFinished(1, 7, ProbeOutcome.REFUSED), 10_030)
    sessions.handle(ProbeFinished(1, 7, ProbeOutcome.OPEN), 10_040)
    assert sessions.handle(HeartbeatReceived(1, 7, 9), 10_050) == [], "it was open when it was heard"


def test_a_broker_that_was_fenced_for_refusals_disproves_them_by_a_heartbeat() -> None:
    sessions = suspected()
    refused_often(sessions, 10_001, silent_ms=65)
    sessions.handle(FencingDecided(1, 7, False), 10_070)
    assert sessions.handle(HeartbeatReceived(1, 7, 9), 10_500) == [RefusalDisproved(1, 7)]


@pytest.mark.parametrize(("again_ms", "suspected_ms"), [(1, 2_001), (1_999, 3_999), (2_000, 2_000)])
def test_a_connection_that_breaks_again_within_two_seconds_is_suspected_two_seconds_later(
    again_ms: int, suspected_ms: int
) -> None:
    sessions = suspected(10_000)
    sessions.handle(ProbeFinished(1, 7, ProbeOutcome.OPEN), 10_000)
    sessions.handle(HeartbeatReceived(1, 7, 9), 10_000 + again_ms)
    at_once = sessions.handle(ConnectionLost(1, 7), 10_000 + again_ms)
    assert at_once == ([Probe(1, 7)] if again_ms == suspected_ms else [])
    later = ticks(sessions, 10_000 + suspected_ms)
    assert later == ([] if at_once else [(10_000 + suspected_ms, Probe(1, 7))])
    refused_often(sessions, 10_001 + suspected_ms, silent_ms=65 + suspected_ms - again_ms)


def test_a_break_within_two_seconds_of_a_claim_is_suspected_two_seconds_later() -> None:
    """The connection to the previous controller broke just before."""
    sessions = BrokerSessions(SessionTimes())
    sessions.handle(BrokerAtClaim(1, 7, is_fenced=False), 10_000)
    sessions.handle(HeartbeatReceived(1, 7, 9), 10_100)
    assert sessions.handle(ConnectionLost(1, 7), 10_150) == []
    assert ticks(sessions, 12_150) == [(12_150, Probe(1, 7))]


def test_refused_probes_far_apart_do_not_add_up() -> None:
    sessions = suspected()
    for now_ms in (10_001, 10_900, 12_500):
        assert sessions.handle(ProbeFinished(1, 7, ProbeOutcome.REFUSED), now_ms) == []


def test_a_broker_that_came_a_moment_ago_is_not_suspected_yet() -> None:
    sessions = BrokerSessions(SessionTimes())
    sessions.handle(HeartbeatReceived(1, 7, 5), 0)
    sessions.handle(FencingDecided(1, 7, True), 1_000)
    assert sessions.handle(ConnectionLost(1, 7), 1_500) == []
    assert ticks(sessions, 2_500) == [(2_000, Probe(1, 7))]


def test_a_lost_connection_of_a_fenced_or_older_process_raises_no_suspicion() -> None:
    sessions = BrokerSessions(SessionTimes())
    sessions.handle(HeartbeatReceived(1, 7, 5), 0)
    assert sessions.handle(ConnectionLost(1, 7), 10_000) == []
    sessions.handle(FencingDecided(1, 7, True), 0)
    assert sessions.handle(ConnectionLost(1, 6), 10_000) == []
    sessions.handle(SessionClosed(1, 6), 10_000)
    assert sessions.is_alive(1, 7, 1_000)
    sessions.handle(SessionClosed(1, 7), 10_000)
    assert not sessions.is_alive(1, 7, 1_000)


def test_minus_one_switches_it_off() -> None:
    sessions = BrokerSessions(SessionTimes(refused_fence_ms=-1))
    sessions.handle(BrokerAtClaim(1, 7, is_fenced=False), 0)
    sessions.handle(FencingDecided(1, 7, True), 0)
    assert sessions.handle(ConnectionLost(1, 7), 10_000) == []
    assert not any(isinstance(effect, Probe) for _, effect in ticks(sessions, 20_000))
