"""Any change of any partition: leaders are eligible, have all committed records, and epochs rise."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from service.metadata.controller.partition_change import (
    RECOVERED,
    RECOVERING,
    Election,
    ElectionRules,
    PartitionTarget,
    change_partition,
)
from service.metadata.image import PartitionImage
from service.metadata.records import NO_LEADER
from service.metadata.topics_delta import changed_partition

TOPIC_ID = UUID(int=1 << 100)
BROKERS = range(1, 6)


def subset(members: tuple[int, ...]) -> st.SearchStrategy[tuple[int, ...]]:
    if not members:
        return st.just(())
    return st.lists(st.sampled_from(members), unique=True).map(tuple)


@st.composite
def partitions(draw: st.DrawFn, *, elr: bool) -> PartitionImage:
    replicas = tuple(draw(st.lists(st.sampled_from(BROKERS), min_size=1, max_size=4, unique=True)))
    isr = draw(subset(replicas))
    if not isr and not elr:
        isr = (replicas[0],)
    leader = draw(st.sampled_from((*isr, NO_LEADER)))
    eligible = draw(subset(tuple(one for one in replicas if one not in isr))) if elr else ()
    adding = draw(subset(tuple(one for one in replicas if one not in (*isr, *eligible))))
    known = (draw(st.sampled_from(replicas)),) if elr and leader == NO_LEADER and draw(st.booleans()) else ()
    return PartitionImage(
        replicas=replicas,
        isr=isr,
        leader=leader,
        leader_epoch=draw(st.integers(0, 9)),
        partition_epoch=draw(st.integers(0, 9)),
        directories=tuple(UUID(int=1000 + one) for one in replicas),
        leader_recovery_state=draw(st.sampled_from((RECOVERED, RECOVERING))) if len(isr) == 1 else RECOVERED,
        adding_replicas=adding,
        eligible_leader_replicas=eligible,
        last_known_elr=known,
    )


@st.composite
def cases(
    draw: st.DrawFn,
) -> tuple[PartitionImage, ElectionRules, frozenset[int], Election, tuple[int, ...], frozenset[int]]:
    elr = draw(st.booleans())
    state = draw(partitions(elr=elr))
    rules = ElectionRules(draw(st.integers(1, len(state.replicas))), elr, draw(st.booleans()))
    alive = frozenset(draw(st.lists(st.sampled_from(BROKERS), unique=True)))
    election = draw(st.sampled_from(Election))
    gone = draw(st.lists(st.sampled_from(state.replicas), unique=True, max_size=2))
    unclean = frozenset(gone) if draw(st.booleans()) else frozenset()
    isr = tuple(one for one in state.isr if one not in gone)
    return state, rules, alive - frozenset(gone), election, isr, unclean


@settings(max_examples=300, deadline=None)
@given(cases())
def test_any_change_leaves_a_valid_partition(
    case: tuple[PartitionImage, ElectionRules, frozenset[int], Election, tuple[int, ...], frozenset[int]],
) -> None:
    state, rules, alive, election, isr, unclean = case
    record = change_partition(
        TOPIC_ID,
        0,
        state,
        rules,
        alive.__contains__,
        election=election,
        wanted=PartitionTarget(isr=isr, unclean=unclean),
    )
    if record is None:
        return
    after = changed_partition(state, record)
    assert after.partition_epoch == state.partition_epoch + 1
    assert after.leader_epoch == state.leader_epoch + (record.leader >= NO_LEADER)
    assert after.leader == state.leader or after.leader_epoch > state.leader_epoch
    assert set(after.isr) | set(after.eligible_leader_replicas) <= set(after.replicas)
    assert not set(after.isr) & set(after.eligible_leader_replicas)
    assert len(set(after.isr)) == len(after.isr)
    if not rules.is_elr_enabled:
        assert after.isr, "the last one stays"
        assert not after.eligible_leader_replicas
    elif len(isr) >= rules.min_isr:
        assert not after.eligible_leader_replicas
    if not unclean.isdisjoint(state.replicas):
        assert unclean.isdisjoint(after.eligible_leader_replicas)
    check_leader(case, after)


def check_leader(
    case: tuple[PartitionImage, ElectionRules, frozenset[int], Election, tuple[int, ...], frozenset[int]],
    after: PartitionImage,
) -> None:
    """By looking at every replica, as a person would."""
    state, rules, alive, election, isr, unclean = case
    committed = set(isr)
    if not committed and rules.is_elr_enabled:
        committed = ({*state.eligible_leader_replicas, *state.isr} - unclean) - set(isr)
    clean = committed & alive
    if clean:
        assert after.leader in clean
        assert after.leader_recovery_state == state.leader_recovery_state
        if election is Election.PREFERRED and state.replicas[0] in clean:
            assert after.leader == state.replicas[0]
        elif state.leader in clean:
            assert after.leader == state.leader
        else:
            assert after.leader == next(one for one in state.replicas if one in clean)
    elif after.has_leader:
        assert after.leader in alive
        assert after.isr == (after.leader,)
        assert after.leader_recovery_state == RECOVERING
        is_last_known = (after.leader,) == state.last_known_elr and not committed
        assert (
            is_last_known or (election is Election.UNCLEAN and rules.is_elr_enabled) or not committed & alive
        )
        assert is_last_known or election is Election.UNCLEAN
        if not is_last_known and alive & set(state.replicas) - set(state.adding_replicas):
            assert after.leader not in state.adding_replicas, "who is copied to may have nothing at all yet"
    elif election is Election.UNCLEAN:
        assert not alive & set(state.replicas)
    if after.has_leader:
        assert after.leader in after.isr
        assert not after.last_known_elr or not rules.is_elr_enabled
    elif rules.is_elr_enabled and state.has_leader:
        assert after.last_known_elr == (state.last_known_elr or (state.leader,))


@settings(max_examples=300, deadline=None)
@given(cases())
def test_a_change_that_was_made_is_not_made_again(
    case: tuple[PartitionImage, ElectionRules, frozenset[int], Election, tuple[int, ...], frozenset[int]],
) -> None:
    state, rules, alive, election, isr, unclean = case
    wanted = PartitionTarget(isr=isr, unclean=unclean)
    record = change_partition(TOPIC_ID, 0, state, rules, alive.__contains__, election=election, wanted=wanted)
    if record is None:
        return
    after = changed_partition(state, record)
    again = change_partition(TOPIC_ID, 0, after, rules, alive.__contains__, election=election)
    if again is not None:  # only an ELR that the smaller ISR could not have yet
        assert again.leader < NO_LEADER
        assert again.isr is None


@settings(max_examples=300, deadline=None)
@given(cases(), st.frozensets(st.sampled_from(BROKERS)))
def test_replicas_with_disk_space_are_preferred_as_leaders(
    case: tuple[PartitionImage, ElectionRules, frozenset[int], Election, tuple[int, ...], frozenset[int]],
    full: frozenset[int],
) -> None:
    state, rules, alive, election, isr, unclean = case
    wanted = PartitionTarget(isr=isr, unclean=unclean)

    def change(has_room: Callable[[int], bool]) -> PartitionImage:
        record = change_partition(
            TOPIC_ID, 0, state, rules, alive.__contains__,
            has_room=has_room, election=election, wanted=wanted,
        )  # fmt: skip
        return state if record is None else changed_partition(state, record)

    after = change(lambda broker: broker not in full)
    committed = set(isr)
    if not committed and rules.is_elr_enabled:
        committed = ({*state.eligible_leader_replicas, *state.isr} - unclean) - set(isr)
    able = committed & alive
    if able - full:
        assert after.leader in able - full
        if state.leader in able - full and state.replicas[0] not in able - full:
            assert after.leader == state.leader, "nobody moves without need"
    elif able:
        assert after.leader == (state.leader if state.leader in able else after.leader)
        assert after.leader in able, "room is no condition"
    else:
        assert after == change(lambda broker: True)
