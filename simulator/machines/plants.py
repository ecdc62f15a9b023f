"""Bugs that are planted in a history's own machines and shells: `python -m simulator.machines --plants`.

A change replaces a method of one machine's parts, here and nowhere else; what it names must be there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from service.metadata.raft.events import Effect, Persist, TruncateTo
from service.metadata.raft.keys import EpochEnd, ReplicaKey
from service.metadata.raft.machine import RaftMachine
from service.metadata.raft.requests import VoteRequest
from service.metadata.raft.roles import (
    Candidate,
    Follower,
    Leader,
    Prospective,
    ReplicaIdentity,
    Resigned,
    SnapshotFetch,
)
from service.metadata.raft.voters import VoterSet


class Plant(NamedTuple):
    """`change` a machine as it is made; an effect that `skips` is not done; a flush outlives a truncation."""

    change: Callable[[RaftMachine], None] | None = None
    skips: Callable[[Effect], bool] | None = None
    keeps_flush: bool = False


def _swap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    setattr(owner, name, make(getattr(owner, name)))


def unflushed_end_counted(machine: RaftMachine) -> None:
    core = machine.core

    def at_once(before: Callable[[], None]) -> Callable[[], None]:
        def flush_if_idle() -> None:
            before()
            core.flushed = core.log.end_offset

        return flush_if_idle

    _swap(core, "flush_if_idle", at_once)


def commit_of_an_old_epoch(machine: RaftMachine) -> None:
    def make(before: Callable[[Leader], None]) -> Callable[[Leader], None]:
        def advance(state: Leader) -> None:
            start, state.epoch_start = state.epoch_start, -1
            before(state)
            state.epoch_start = start

        return advance

    _swap(machine.leading, "advance", make)


def votes_for_a_shorter_log(machine: RaftMachine) -> None:
    def make(before: Any) -> Any:
        return lambda asked: before(asked._replace(last_epoch=2**30))

    _swap(machine.election, "_can_grant", make)


def votes_twice(machine: RaftMachine) -> None:
    def make(before: Any) -> Any:
        def can_grant(asked: VoteRequest) -> bool:
            if not asked.pre_vote and not isinstance(machine.core.state, Leader | Candidate):
                machine.core.voted = None
            return bool(before(asked))

        return can_grant

    _swap(machine.election, "_can_grant", make)


class _AtCommit:
    """A history whose latest set is the last committed one."""

    def __init__(self, machine: RaftMachine, real: Any) -> None:
        self._machine, self._real = machine, real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real(), name)

    @property
    def latest(self) -> VoterSet:
        voters, _ = self._real().at(self._machine.core.high_watermark)
        found: VoterSet = voters if voters is not None else self._real().latest
        return found


class _LogWith:
    """A log of which one attribute is another."""

    def __init__(self, log: Any, **others: Any) -> None:
        self._log = log
        self.__dict__.update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


def voters_taken_at_commit(machine: RaftMachine) -> None:
    log: Any = machine.core.log
    machine.core.log = _LogWith(log, voters=_AtCommit(machine, lambda: log.voters))


def truncation_keeps_voters(machine: RaftMachine) -> None:
    log: Any = machine.core.log
    log.voters.truncate = lambda end: None


def claims_what_is_not_flushed(machine: RaftMachine) -> None:
    """Claim an unflushed log end in a vote request: a crash may lose it before the election."""

    def make(before: Any) -> Any:
        def question(voter: ReplicaKey, pre_vote: bool) -> VoteRequest:
            flushed, machine.core.flushed = machine.core.flushed, machine.core.log.end_offset
            asked: VoteRequest = before(voter, pre_vote)
            machine.core.flushed = flushed
            return asked

        return question

    _swap(machine.election, "_vote_request", make)


def fetches_before_it_has_flushed(machine: RaftMachine) -> None:
    def ready(state: Follower) -> bool:
        return not state.is_appending and (state.fetching is None or not state.fetching.is_whole)

    def claims(before: Any) -> Any:
        log = machine.core.log
        return lambda: before()._replace(offset=log.end_offset, last_epoch=log.epochs.latest)

    machine.following._is_ready = ready  # type: ignore[method-assign]
    _swap(machine.following, "_fetch_request", claims)


def half_is_a_majority(machine: RaftMachine) -> None:
    def make(before: Any) -> Any:
        def poll(state: Any) -> None:
            count = len(machine.core.voters)
            if count % 2 == 0 and len(state.granted) >= count // 2:
                machine.election._won(state)
            else:
                before(state)

        return poll

    _swap(machine.election, "poll_candidacy", make)


def two_voter_changes_at_once(machine: RaftMachine) -> None:
    def not_now(state: Leader) -> None:
        state.change = None

    machine.reconfiguration._not_now = not_now  # type: ignore[method-assign]


def marks_beyond_its_end(machine: RaftMachine) -> None:
    machine.following.advance_high_watermark = lambda state: machine.core.commit(state.leader_high_watermark)  # type: ignore[method-assign]


def truncates_too_little(machine: RaftMachine) -> None:
    def make(before: Any) -> Any:
        return lambda leaders: before(EpochEnd(leaders.epoch, leaders.end_offset + 1))

    _swap(machine.following, "_truncate_diverged", make)


def leads_again_after_a_start(machine: RaftMachine) -> None:
    """Let a leader that restarts lead on in its epoch."""

    def make(before: Any) -> Any:
        def resume(state: Any) -> None:
            if isinstance(state, Resigned):
                core = machine.core
                core.state = Candidate(state.deadline_ms, {core.key.node_id})
                core.leader_id = -1
            else:
                before(state)

        return resume

    _swap(machine.core, "resume", make)


def snapshot_of_two_leaders(machine: RaftMachine) -> None:
    """Continue the fetch of a snapshot from one leader at the next leader."""
    kept: list[SnapshotFetch] = []

    def make(before: Any) -> Any:
        def poll(state: Follower) -> None:
            if state.fetching is None and kept and kept[0].snapshot.end_offset > machine.core.log.end_offset:
                state.fetching = kept.pop()
            before(state)
            if state.fetching is not None and not state.fetching.is_whole:
                kept[:] = [state.fetching]

        return poll

    _swap(machine.following, "poll", make)


def epochs_of_fetches_ignored(machine: RaftMachine) -> None:
    """Ignore the last fetched epochs of fetches: the leader compares offsets alone."""

    def make(before: Any) -> Any:
        def fetch(request: int, asked: Any) -> None:
            epoch = machine.core.log.epochs.epoch_below(asked.offset)
            before(request, asked._replace(last_epoch=min(epoch, max(asked.epoch, 0))))

        return fetch

    _swap(machine.leading, "fetch", make)


def old_answers_count(machine: RaftMachine) -> None:
    """Count every vote in the current election: pre-votes, and votes of an earlier epoch."""
    core, asked_by_call = machine.core, dict[int, Any]()

    def sends(before: Any) -> Any:
        def send(peer: Any, asked: Any, now_ms: int) -> Any:
            effect = before(peer, asked, now_ms)
            if isinstance(asked, VoteRequest):
                asked_by_call[effect.call] = asked
            return effect

        return send

    def answers(before: Any) -> Any:
        return lambda peer, call: before(peer, call) or asked_by_call.get(call)

    def make(before: Any) -> Any:
        def voted(peer: Any, asked: VoteRequest, answer: Any) -> None:
            pre_vote, epoch = isinstance(core.state, Prospective), core.epoch
            answer = answer._replace(epoch=max(answer.epoch, epoch))
            before(peer, asked._replace(epoch=epoch, pre_vote=pre_vote), answer)

        return voted

    _swap(core.calls, "send", sends)
    _swap(core.calls, "answered", answers)
    _swap(machine.election, "voted", make)


class _AnyDisk(ReplicaIdentity):
    """An identity for which the node's id alone counts."""

    def is_me(self, key: ReplicaKey) -> bool:
        return key.node_id in (-1, self.key.node_id)


def a_stranger_is_taken_for_a_voter(machine: RaftMachine) -> None:
    """Count the votes and fetches of a wiped disk under the id of a voter."""
    core = machine.core
    own = core.identity
    core.identity = _AnyDisk(own.key, own.cluster_id, own.endpoints, own.bootstrap, own.can_vote)
    machine.leading._known_as = lambda key: (  # type: ignore[method-assign]
        voter.key if (voter := core.voters.get(key.node_id)) is not None else key
    )


def snapshot_without_voters(machine: RaftMachine) -> None:
    log: Any = machine.core.log
    real = log.restart
    log.restart = lambda snapshot: real(replace_voters(snapshot))


def replace_voters(snapshot: Any) -> Any:
    return snapshot._replace(voters=None, version=0)


def _is_vote(effect: Effect) -> bool:
    return isinstance(effect, Persist) and effect.state.voted_id >= 0


def _is_epoch(effect: Effect) -> bool:
    return isinstance(effect, Persist) and effect.state.voted_id < 0


def _is_leader(effect: Effect) -> bool:
    return isinstance(effect, Persist) and effect.state.leader_id >= 0


PLANTS: Final[dict[str, Plant]] = {
    change.__name__: Plant(change)
    for change in (
        unflushed_end_counted,
        commit_of_an_old_epoch,
        votes_for_a_shorter_log,
        votes_twice,
        voters_taken_at_commit,
        truncation_keeps_voters,
        claims_what_is_not_flushed,
        fetches_before_it_has_flushed,
        half_is_a_majority,
        two_voter_changes_at_once,
        marks_beyond_its_end,
        truncates_too_little,
        leads_again_after_a_start,
        snapshot_of_two_leaders,
        epochs_of_fetches_ignored,
        old_answers_count,
        a_stranger_is_taken_for_a_voter,
        snapshot_without_voters,
    )
} | {
    "vote_not_persisted": Plant(skips=_is_vote),
    "epoch_not_persisted": Plant(skips=_is_epoch),
    "leadership_not_persisted": Plant(skips=_is_leader),
    "not_truncated": Plant(skips=lambda effect: isinstance(effect, TruncateTo)),
    "flush_outlives_a_truncation": Plant(keeps_flush=True),
}

SELDOM_SHOWS: Final = ("flush_outlives_a_truncation",)
"""Not found within 2,000 histories, as another rule forbids it, too: a voter does not fetch while it flushes,
so nothing is truncated then. Planted only if named."""
