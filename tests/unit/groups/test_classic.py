"""Classic groups as their members see them: rounds, sessions, and what a failed write does."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.groups import records
from service.groups.config import GroupsConfig
from service.groups.requests import refused_join, refused_sync
from tests.support.groups import Members, classic_shard, client, join_request, sync_request
from tests.support.shards import ShardLeader

E = ErrorCode


def members(**settings: Any) -> Members:
    return Members(ShardLeader(lambda: classic_shard(None, None, **settings)))


def last_group(m: Members) -> records.GroupValue:
    """Return the group of the last record."""
    key, value = m.leader.log[-1].record
    assert isinstance(records.decode_key(key), records.GroupKey)
    assert value is not None
    return records.decode_group_value(value)


def test_a_new_member_is_given_its_id_first() -> None:
    m = members()
    member_id = m.member_id(client_id="till")
    assert member_id.startswith("till-")
    assert m.state == "Empty"
    assert last_group(m).generation == 0, "a group is there for everybody who lists groups"
    waits = m.join(member_id, "till")
    assert m.state == "PreparingRebalance"
    m.leader.advance(0)
    answer = m.answer(waits)
    assert (answer.error_code, answer.generation_id, answer.leader) == (E.none, 1, member_id)
    assert [(one.member_id, one.metadata) for one in answer.members] == [(member_id, b"range")]
    assert m.state == "CompletingRebalance"


def test_a_member_of_an_old_client_is_one_at_once() -> None:
    m = members()
    waits = m.join(client_id="old", version=3)
    m.leader.advance(0)
    assert m.answer(waits).member_id.startswith("old-")


def test_every_member_gets_the_assignment_of_the_leader() -> None:
    m = members()
    ids, generation = m.stable("a", "b", "c")
    assert m.state == "Stable"
    group = last_group(m)
    assert (group.generation, group.leader, group.protocol) == (generation, ids[0], "range")
    assert {one.member_id: one.assignment for one in group.members} == {i: b"to " + i.encode() for i in ids}
    assert [m.error(m.heartbeat(one, generation)) for one in ids] == [E.none] * 3


def test_a_member_without_an_assignment_gets_an_empty_one() -> None:
    m = members()
    ids = [m.member_id(client_id=name) for name in "ab"]
    tickets = [m.join(one) for one in ids]
    m.leader.advance(0)
    generation = m.answer(tickets[0]).generation_id
    waits = m.sync(ids[1], generation)
    assert m.leader.waits(waits)
    assert m.answer(m.sync(ids[0], generation, {ids[0]: b"all", "a stranger": b"x"})).assignment == b"all"
    answer = m.answer(waits)
    assert (answer.error_code, answer.assignment, answer.protocol_name) == (E.none, b"", "range")


def test_a_join_sends_all_back_to_join_again() -> None:
    m = members()
    ids, generation = m.stable("a", "b")
    new = m.member_id(client_id="c")
    joins = m.join(new)
    assert m.state == "PreparingRebalance"
    assert [m.error(m.heartbeat(one, generation)) for one in ids] == [E.rebalance_in_progress] * 2
    again = [m.join(one) for one in ids]
    answers = [m.answer(t) for t in (*again, joins)]
    assert {one.generation_id for one in answers} == {generation + 1}
    assert {one.leader for one in answers} == {ids[0]}, "who led goes on leading"
    assert [len(one.members) for one in answers] == [3, 0, 0]


def test_a_member_that_does_not_rejoin_in_time_is_removed() -> None:
    m = members()
    ids, generation = m.stable("a", "b", rebalance_ms=5_000)
    joins = m.join(m.member_id(client_id="c"), rebalance_ms=5_000)
    again = m.join(ids[1], rebalance_ms=5_000)
    m.leader.advance(4_999)
    assert m.leader.waits(joins)
    m.leader.advance(1)
    assert m.answer(again).leader == ids[1], "somebody who is there leads"
    assert m.answer(joins).generation_id == generation + 1
    assert m.error(m.heartbeat(ids[0], generation)) == E.unknown_member_id


def test_the_first_round_waits_for_more_members_but_not_for_ever() -> None:
    m = members(group_initial_rebalance_delay_ms=3_000)
    first = m.join(m.member_id(client_id="a"), rebalance_ms=7_000)
    m.leader.advance(2_000)
    second = m.join(m.member_id(client_id="b"), rebalance_ms=7_000)
    m.leader.advance(2_500)
    assert m.leader.waits(first), "extended, as somebody came"
    m.join(m.member_id(client_id="c"), rebalance_ms=7_000)
    m.leader.advance(2_000)
    m.join(m.member_id(client_id="d"), rebalance_ms=7_000)
    m.leader.advance(500)
    assert m.answer(first).generation_id == 1, "seven seconds, and no more"
    assert len(m.answer(first).members) == 4
    assert m.answer(second).generation_id == 1


def test_a_member_that_says_nothing_is_out() -> None:
    m = members()
    ids, generation = m.stable("a", "b", session_ms=10_000)
    m.leader.advance(9_000)
    assert m.error(m.heartbeat(ids[0], generation)) == E.none
    m.leader.advance(1_000)
    assert m.state == "PreparingRebalance"
    assert m.error(m.heartbeat(ids[0], generation)) == E.rebalance_in_progress
    assert m.answer(m.join(ids[0])).generation_id == generation + 1
    assert m.error(m.heartbeat(ids[1], generation)) == E.unknown_member_id


def test_a_member_waiting_in_a_rebalance_needs_no_heartbeat() -> None:
    m = members()
    ids, generation = m.stable("a", "b", session_ms=6_000, rebalance_ms=60_000)
    again = m.join(ids[0], session_ms=6_000)
    m.leader.advance(59_000)
    assert m.answer(again).generation_id == generation + 1, "the other's session ended"


def test_a_new_member_is_awaited_for_five_minutes() -> None:
    m = members(group_initial_rebalance_delay_ms=600_000)
    waits = m.join(m.member_id(), rebalance_ms=1_000_000)
    m.leader.advance(299_999)
    assert m.leader.waits(waits)
    m.leader.advance(1)
    answer = m.answer(waits)
    assert (answer.error_code, answer.member_id) == (E.unknown_member_id, "")


def test_an_unused_member_id_does_not_delay_a_rebalance() -> None:
    m = members()
    ids, generation = m.stable("a")
    m.member_id(client_id="b", session_ms=8_000)
    again = m.join(ids[0])
    assert m.leader.waits(again)
    m.leader.advance(8_000)
    assert m.answer(again).generation_id == generation + 1


def test_a_member_that_does_not_sync_is_removed() -> None:
    m = members()
    ids = [m.member_id(client_id=name, rebalance_ms=5_000) for name in "ab"]
    tickets = [m.join(one, rebalance_ms=5_000, session_ms=30_000) for one in ids]
    m.leader.advance(0)
    generation = m.answer(tickets[0]).generation_id
    assert m.error(m.sync(ids[0], generation, {ids[0]: b"x"})) == E.none
    assert m.state == "Stable"
    m.leader.advance(5_000)
    assert m.state == "PreparingRebalance"
    assert m.error(m.sync(ids[1], generation)) == E.unknown_member_id
    assert m.answer(m.join(ids[0])).generation_id == generation + 1


def test_the_last_member_leaves_an_empty_group() -> None:
    m = members()
    ids, generation = m.stable("a", "b")
    assert m.error(m.leave((ids[1], None))) == E.none
    assert m.state == "PreparingRebalance"
    answer = m.answer(m.leave((ids[0], None), ("nobody", None)))
    assert [one.error_code for one in answer.members] == [E.none, E.unknown_member_id]
    assert m.state == "Empty"
    group = last_group(m)
    assert (group.generation, group.protocol, group.leader, group.members) == (generation + 1, None, None, ())
    assert group.protocol_type == "consumer"
    assert group.state_ms == m.leader.now_ms


def test_leaving_lets_the_others_go_on() -> None:
    m = members()
    ids, generation = m.stable("a", "b")
    again = m.join(ids[0])
    assert m.leader.waits(again)
    m.leave((ids[1], None))
    assert m.answer(again).generation_id == generation + 1


def test_the_protocol_that_most_want_of_those_that_all_know() -> None:
    m = members()
    wants: list[list[tuple[str, bytes]]] = [
        [("sticky", b""), ("range", b"")],
        [("range", b""), ("sticky", b"")],
        [("only-mine", b""), ("range", b""), ("sticky", b"")],
    ]
    ids = [m.member_id(protocols=want) for want in wants]
    tickets = [m.join(one, protocols=want) for one, want in zip(ids, wants, strict=True)]
    m.leader.advance(0)
    assert {m.answer(t).protocol_name for t in tickets} == {"range"}


@pytest.mark.parametrize(
    "about",
    [{"protocols": [("other", b"")]}, {"protocol_type": "connect"}, {"protocols": []}],
    ids=["no protocol in common", "another type", "no protocol"],
)
def test_a_member_without_a_common_protocol_is_refused(about: dict[str, Any]) -> None:
    m = members()
    ids, generation = m.stable("a")
    before = list(m.leader.log)
    assert m.error(m.join(**about)) == E.inconsistent_group_protocol
    assert m.error(m.join(ids[0], **about)) == E.inconsistent_group_protocol
    assert (m.state, m.leader.log) == ("Stable", before)
    assert m.error(m.heartbeat(ids[0], generation)) == E.none


def test_a_group_that_no_member_could_join_is_dead() -> None:
    m = members()
    assert m.error(m.join(protocols=[])) == E.inconsistent_group_protocol
    assert m.error(m.join("a stranger")) == E.unknown_member_id
    assert (m.state, m.leader.log) == ("Dead", [])


def test_a_group_is_as_large_as_it_may_be() -> None:
    m = members(group_max_size=2)
    ids, generation = m.stable("a", "b")
    answer = m.answer(m.join(client_id="c"))
    assert (answer.error_code, answer.member_id) == (E.group_max_size_reached, "")
    assert m.error(m.heartbeat(ids[1], generation)) == E.none
    tickets = [m.join(one) for one in ids]
    assert [m.error(t) for t in tickets] == [E.none, E.none]


def test_a_request_of_another_generation_is_refused() -> None:
    m = members()
    ids, generation = m.stable("a")
    assert m.error(m.heartbeat(ids[0], generation - 1)) == E.illegal_generation
    assert m.error(m.sync(ids[0], generation + 1)) == E.illegal_generation
    assert m.error(m.sync(ids[0], generation, protocol_name="sticky")) == E.inconsistent_group_protocol
    assert m.error(m.sync(ids[0], generation, protocol_type="connect")) == E.inconsistent_group_protocol
    assert m.error(m.sync(ids[0], generation, protocol_type=None)) == E.none


def test_a_lost_answer_is_given_again() -> None:
    m = members()
    ids = [m.member_id(client_id=name) for name in "ab"]
    tickets = [m.join(one) for one in ids]
    m.leader.advance(0)
    assert m.answer(m.join(ids[1])) == m.answer(tickets[1])
    assert m.answer(m.join(ids[0])) == m.answer(tickets[0])
    waits = m.sync(ids[1], 1)
    again = m.sync(ids[1], 1)
    assert m.error(waits) == E.rebalance_in_progress, "a request that another replaced is answered, too"
    m.sync(ids[0], 1, {ids[1]: b"mine"})
    assert m.answer(again).assignment == b"mine"
    assert m.answer(m.sync(ids[1], 1)).assignment == b"mine"
    answer = m.answer(m.join(ids[1]))
    assert (answer.error_code, answer.generation_id) == (E.none, 1), "a follower that did not change"


def test_a_leader_that_joins_again_wants_another_round() -> None:
    m = members()
    ids, _ = m.stable("a", "b")
    m.join(ids[0])
    assert m.state == "PreparingRebalance"


def test_a_follower_that_changes_its_mind_begins_a_round() -> None:
    m = members()
    ids, _ = m.stable("a", "b")
    m.join(ids[1], protocols=[("range", b"other topics")])
    assert m.state == "PreparingRebalance"


def test_a_join_during_the_assignment_restarts_the_rebalance() -> None:
    m = members()
    ids = [m.member_id(client_id=name) for name in "ab"]
    tickets = [m.join(one) for one in ids]
    m.leader.advance(0)
    waits = m.sync(ids[1], 1)
    m.join(m.member_id(client_id="c"))
    assert m.error(waits) == E.rebalance_in_progress
    assert m.error(m.sync(ids[0], 1, {})) == E.rebalance_in_progress
    assert m.answer(tickets[0]).generation_id == 1


# Requests that go to no group.


def test_invalid_joins_are_refused_before_the_group_lookup() -> None:
    config = GroupsConfig()
    assert refused_join(join_request(), client(), config, 100) is None
    assert refused_join(join_request(group_id=""), client(), config, 100) == E.invalid_group_id
    assert refused_join(join_request(session_ms=5_999), client(), config, 100) == E.invalid_session_timeout
    assert (
        refused_join(join_request(session_ms=1_800_001), client(), config, 100) == E.invalid_session_timeout
    )
    assert refused_join(join_request(instance="i" * 32_768), client(), config, 100) == E.invalid_request
    assert refused_join(join_request(group_id="g" * 32_768), client(), config, 100) == E.invalid_group_id
    many = [(f"p{n}", b"") for n in range(1001)]
    assert refused_join(join_request(protocols=many), client(), config, 100) == E.invalid_request
    assert refused_join(join_request(protocols=many[1:]), client(), config, 100) is None
    large = [("range", bytes(60)), ("sticky", bytes(40))]
    assert refused_join(join_request(protocols=large), client(), config, 100) is None
    assert refused_join(join_request(protocols=large), client(), config, 99) == E.invalid_request
    assert refused_sync(sync_request("m", 1, group_id=""), 3) == E.invalid_group_id
    assert refused_sync(sync_request("m", 1), 5) == E.inconsistent_group_protocol
    assert refused_sync(sync_request("m", 1, protocol_name="range"), 5) is None


def test_requests_about_a_group_that_is_not_there() -> None:
    m = members()
    assert m.error(m.sync("a", 1)) == E.unknown_member_id
    assert m.error(m.heartbeat("a", 1)) == E.unknown_member_id
    answer = m.answer(m.leave(("a", None), ("", "i")))
    assert [(one.member_id, one.group_instance_id, one.error_code) for one in answer.members] == [
        ("a", None, E.unknown_member_id),
        ("", "i", E.unknown_member_id),
    ]


# Failed writes.


def test_an_assignment_that_is_not_written_begins_the_next_round() -> None:
    m = members()
    ids, generation = m.stable("a", "b")
    before = list(m.leader.log)
    tickets = [m.join(one, protocols=[("range", b"new")]) for one in ids]
    new = m.answer(tickets[0]).generation_id
    follower = m.sync(ids[1], new)
    m.leader.failing = E.coordinator_not_available
    leader = m.sync(ids[0], new, {ids[0]: b"x"})
    m.leader.failing = None
    assert [m.error(leader), m.error(follower)] == [E.coordinator_not_available] * 2
    assert (m.state, m.leader.log) == ("PreparingRebalance", before)
    group = m.leader.shard.groups["g"]
    assert (group.generation, set(group.members)) == (generation, set(ids)), "the log says what it said"
    tickets = [m.join(one) for one in ids]
    assert {m.answer(t).generation_id for t in tickets} == {new + 1}
    assert m.error(m.sync(ids[0], new + 1, {})) == E.none


def test_a_group_that_is_not_written_was_never_there() -> None:
    m = members()
    m.leader.failing = E.not_coordinator
    assert m.error(m.join()) == E.not_coordinator
    assert m.error(m.join(version=3)) == E.not_coordinator
    assert (m.state, m.leader.log) == ("Dead", [])
    m.leader.failing = None
    m.leader.lagging = True
    first = m.join(version=3, client_id="a")
    m.leader.advance(0)
    assert m.leader.waits(first)
    m.leader.fail_uncommitted(E.coordinator_not_available)
    assert m.error(first) == E.coordinator_not_available
    m.leader.commit()
    assert (m.state, list(m.leader.timers)) == ("Dead", [("offsets expiry",)])


def test_a_member_whose_leave_is_not_written_is_still_there() -> None:
    m = members()
    ids, generation = m.stable("a")
    before = list(m.leader.log)
    m.leader.failing = E.coordinator_not_available
    assert m.error(m.leave((ids[0], None))) == E.coordinator_not_available
    m.leader.failing = None
    assert (m.state, m.leader.log) == ("Stable", before)
    assert m.error(m.heartbeat(ids[0], generation)) == E.none
    m.leader.advance(10_000)
    assert m.state == "Empty", "its session ends as ever"


def test_answers_wait_for_the_mark() -> None:
    m = members()
    ids, generation = m.stable("a", "b")
    [m.join(one) for one in ids]
    m.leader.lagging = True
    tickets = [m.sync(ids[1], generation + 1), m.sync(ids[0], generation + 1, {ids[0]: b"new"})]
    assert all(m.leader.waits(t) for t in tickets)
    assert m.state == "CompletingRebalance"
    m.leader.commit()
    assert [m.answer(t).assignment for t in tickets] == [b"", b"new"]
    assert m.state == "Stable"


def test_a_write_that_comes_true_late_is_of_its_own_generation() -> None:
    m = members()
    ids, generation = m.stable("a", "b")
    for one in ids:
        m.join(one, protocols=[("range", b"second")])
    m.leader.lagging = True
    m.sync(ids[0], generation + 1, dict.fromkeys(ids, b"second"))
    for one in ids:
        m.join(one, protocols=[("range", b"third")])
    waits = m.sync(ids[1], generation + 2)
    m.leader.commit()
    assert m.leader.waits(waits)
    assert m.state == "CompletingRebalance"
    assert m.error(m.sync(ids[0], generation + 2, {ids[1]: b"third"})) == E.none
    assert m.answer(waits).assignment == b"third"


# Static members.


def static_group(m: Members) -> tuple[str, str, int]:
    """Ids of the instances one (who leads) and two, and the generation."""
    tickets = [m.join(instance=name) for name in ("one", "two")]
    m.leader.advance(0)
    answers = [m.answer(t) for t in tickets]
    one, two = (answer.member_id for answer in answers)
    m.sync(one, 1, {one: b"first", two: b"second"}, instance="one")
    m.sync(two, 1, instance="two")
    return one, two, 1


def test_a_static_member_rejoins_without_a_rebalance() -> None:
    m = members()
    one, two, generation = static_group(m)
    records_before = len(m.leader.log)
    answer = m.answer(m.join(instance="two"))
    assert (answer.error_code, answer.generation_id, answer.leader) == (E.none, generation, one)
    assert answer.member_id != two
    assert answer.members == ()
    assert not answer.skip_assignment
    assert len(m.leader.log) == records_before + 1
    assert m.state == "Stable"
    assert m.answer(m.sync(answer.member_id, generation, instance="two")).assignment == b"second"
    assert m.error(m.heartbeat(two, generation, instance="two")) == E.fenced_instance_id
    assert m.error(m.sync(two, generation, instance="two")) == E.fenced_instance_id
    assert m.error(m.join(two, instance="two")) == E.fenced_instance_id
    assert m.error(m.heartbeat(one, generation, instance="one")) == E.none


def test_a_static_leader_that_comes_back_leads() -> None:
    m = members()
    static_group(m)
    answer = m.answer(m.join(instance="one", version=9))
    assert (answer.leader, answer.skip_assignment) == (answer.member_id, True)
    assert [member.group_instance_id for member in answer.members] == ["one", "two"]
    m.join(instance="one", version=8)
    old_client = m.answer(m.join(instance="one", version=8))
    assert not old_client.skip_assignment
    assert old_client.leader != old_client.member_id, "lest it assigns"
    assert old_client.members == ()


def test_a_static_member_that_comes_back_otherwise_begins_a_round() -> None:
    m = members()
    m.join(instance="one", protocols=[("range", b""), ("sticky", b"")])
    m.leader.advance(0)
    group = m.leader.shard.classic.members("g")
    m.sync(group[0].member_id, 1, {}, instance="one")
    assert m.state == "Stable"
    waits = m.join(instance="one", protocols=[("sticky", b"")])
    answer = m.answer(waits)
    assert (answer.generation_id, answer.protocol_name) == (2, "sticky")


def test_two_of_one_instance_fence_each_other() -> None:
    m = members(group_initial_rebalance_delay_ms=1_000)
    first = m.join(instance="one")
    second = m.join(instance="one")
    answer = m.answer(first)
    assert (answer.error_code, answer.generation_id) == (E.fenced_instance_id, -1)
    m.leader.advance(2_000)
    assert len(m.answer(second).members) == 1


def test_a_static_member_that_is_away_keeps_its_place_until_its_session_ends() -> None:
    m = members()
    one, two, generation = static_group(m)
    again = m.join(one, instance="one", rebalance_ms=5_000, protocols=[("range", b"new")])
    assert m.leader.waits(again)
    m.leader.advance(10_000)
    assert len(m.answer(again).members) == 1, "its session ended before the round's time was up"
    assert m.error(m.heartbeat(two, generation, instance="two")) == E.unknown_member_id


def test_an_operator_ends_a_static_member() -> None:
    m = members()
    one, two, generation = static_group(m)
    answer = m.answer(m.leave(("", "two"), ("", "three"), (two, "one")))
    assert [x.error_code for x in answer.members] == [E.none, E.unknown_member_id, E.fenced_instance_id]
    assert m.state == "PreparingRebalance"
    assert m.error(m.heartbeat(one, generation, instance="one")) == E.rebalance_in_progress


def test_an_unwritten_static_rejoin_keeps_the_old_member() -> None:
    m = members()
    _, two, generation = static_group(m)
    m.leader.failing = E.coordinator_not_available
    assert m.error(m.join(instance="two")) == E.coordinator_not_available
    m.leader.failing = None
    assert m.error(m.heartbeat(two, generation, instance="two")) == E.none
    assert m.error(m.join(instance="two")) == E.none
    assert m.error(m.heartbeat(two, generation, instance="two")) == E.fenced_instance_id


# Another coordinator.


def test_another_coordinator_knows_what_was_written() -> None:
    m = members()
    ids, generation = m.stable("a", "b")
    waits = m.join(ids[0])
    m.leader.reload()
    assert m.error(waits) == E.not_coordinator
    assert m.state == "Stable"
    assert [m.error(m.heartbeat(one, generation)) for one in ids] == [E.none, E.none]
    answer = m.answer(m.join(ids[1]))
    assert answer.generation_id == generation, "with the protocol that the log has, it has not changed"
    m.leader.advance(10_000)
    assert m.state == "Empty", "sessions began with the load"


def test_a_group_beyond_its_bound_rebalances_when_it_is_loaded() -> None:
    m = members()
    ids, generation = m.stable("a", "b", "c")
    other = Members(ShardLeader(lambda: classic_shard(group_max_size=2)))
    other.leader.reload(m.leader.log)
    assert other.state == "PreparingRebalance"
    tickets = [other.join(one) for one in ids]
    assert other.error(tickets[2]) == E.group_max_size_reached
    assert {other.answer(t).generation_id for t in tickets[:2]} == {generation + 1}
