"""KIP-848 groups: joining, moving partitions, targets, commits, reloads and settings."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.coordinator.shard import CoordinatorRecord
from service.groups import records_modern as modern
from service.groups.consumer.context import ConsumerWork, WorkKind
from service.groups.consumer.group import GroupState, MemberState
from service.groups.consumer.target import LARGE, TargetAssignment
from service.groups.consumer_config import ConsumerConfig
from service.groups.requests import RequestOrigin
from tests.support.consumer_groups import Consumer, beat_request, partitions_of
from tests.support.shards import Written
from tests.unit.groups.consumers import E, consumers, numbers, settle

# Joining, and moving partitions.


def test_the_first_member_gets_everything_at_once() -> None:
    c = consumers()
    answer = c.enter("a", "apples")
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (E.none, "a", 2)
    assert answer.heartbeat_interval == 5_000
    assert numbers(answer.assignment) == {0, 1, 2, 3}
    kinds = [type(modern.decode_key(written.record.key)) for written in c.leader.log]
    assert kinds == [
        modern.MemberKey, modern.EpochKey, modern.TargetKey, modern.TargetEpochKey, modern.CurrentKey
    ]  # fmt: skip
    assert c.look().state == "Stable"


def test_a_heartbeat_without_news_writes_nothing_and_says_nothing() -> None:
    c = consumers()
    epoch = c.enter("a", "apples").member_epoch
    written = len(c.leader.log)
    answer = c.says("a", epoch)
    assert (answer.error_code, answer.member_epoch, answer.assignment) == (E.none, epoch, None)
    assert len(c.leader.log) == written


def test_a_full_request_is_told_everything() -> None:
    c = consumers()
    first = c.enter("a", "apples")
    has = partitions_of(first.assignment)
    answer = c.says("a", first.member_epoch, names=("apples",), has=has, timeout_ms=60_000)
    assert partitions_of(answer.assignment) == has


def test_a_partition_is_given_only_once_its_owner_has_given_it_up() -> None:
    c = consumers()
    first = c.enter("a", "apples")
    second = c.enter("b", "apples")
    assert (second.member_epoch, numbers(second.assignment)) == (3, set())
    assert c.member("b").state is MemberState.UNRELEASED_PARTITIONS
    assert c.look().state == "Reconciling"
    asked = c.says("a", first.member_epoch)
    assert (asked.member_epoch, numbers(asked.assignment)) == (2, {0, 1}), "it stays in its epoch till then"
    assert c.member("a").state is MemberState.UNREVOKED_PARTITIONS
    assert c.says("b", 3).assignment is None
    assert c.says("a", 2).assignment is None, "nothing is new while it says nothing"
    given_up = c.says("a", 2, has=partitions_of(asked.assignment))
    assert (given_up.member_epoch, given_up.assignment) == (3, None)
    assert numbers(c.says("b", 3).assignment) == {2, 3}
    assert c.look().state == "Stable"


def test_members_settle_evenly_when_one_joins_leaves_and_dies() -> None:
    c = consumers(apples=5, pears=4)
    members = [Consumer(c, name, names=("apples", "pears")) for name in "abc"]
    settle(*members)
    assert sorted(len(m.has) for m in members) == [3, 3, 3]
    members[0].leave()
    settle(*members[1:])
    assert sorted(len(m.has) for m in members[1:]) == [4, 5]
    c.leader.advance(30_000)
    members[1].beat()
    c.leader.advance(20_000)  # the other one's session has ended
    settle(members[1])
    assert len(members[1].has) == 9


def test_a_member_that_gives_nothing_up_is_fenced_in_its_time() -> None:
    c = consumers()
    epoch = c.enter("a", "apples", timeout_ms=20_000).member_epoch
    c.enter("b", "apples")
    assert numbers(c.says("a", epoch).assignment) == {0, 1}
    c.leader.advance(19_999)
    assert c.says("a", epoch).error_code == E.none
    c.leader.advance(1)
    assert c.says("a", epoch).error_code == E.unknown_member_id
    assert numbers(c.says("b", 3).assignment) == {0, 1, 2, 3}


def test_a_member_that_gave_up_in_time_is_not_fenced_later() -> None:
    c = consumers()
    one, other = Consumer(c, "a", names=("apples",)), Consumer(c, "b", names=("apples",))
    one.beat()
    settle(one, other)
    c.leader.advance(40_000)
    assert one.beat() is None


def test_every_heartbeat_restarts_the_session_timeout() -> None:
    c = consumers()
    epoch = c.enter("a", "apples").member_epoch
    for _ in range(3):
        c.leader.advance(44_999)
        assert c.says("a", epoch).error_code == E.none
    c.leader.advance(45_000)
    assert c.says("a", epoch).error_code == E.unknown_member_id
    assert c.look().state == "Empty"


def test_a_session_that_ends_while_nothing_can_be_written_ends_later() -> None:
    c = consumers()
    epoch = c.enter("a", "apples").member_epoch
    c.leader.failing = E.coordinator_not_available
    c.leader.advance(50_000)
    assert "a" in c.world.group().members
    c.leader.failing = None
    c.leader.advance(500)
    assert c.says("a", epoch).error_code == E.unknown_member_id


def test_a_lost_answer_is_found_again_with_the_previous_epoch() -> None:
    c = consumers()
    first = c.enter("a", "apples")
    kept = partitions_of(c.says("a", first.member_epoch).assignment or first.assignment)
    c.enter("b", "apples")
    given_up = {p for p in kept if p[1] < 2}
    c.says("a", 2)
    assert c.says("a", 2, has=given_up).member_epoch == 3
    again = c.says("a", 2, has=given_up)  # the answer was lost
    assert (again.error_code, again.member_epoch) == (E.none, 3)
    assert c.says("a", 2).error_code == E.fenced_member_epoch, "who says nothing may have anything"
    assert c.says("a", 2, has=kept).error_code == E.fenced_member_epoch
    assert c.says("a", 1, has=()).error_code == E.fenced_member_epoch
    assert c.says("a", 4, has=()).error_code == E.fenced_member_epoch


def test_a_fenced_member_joins_again_and_keeps_what_it_had() -> None:
    c = consumers()
    first = c.enter("a", "apples")
    again = c.enter("a", "apples")
    assert (again.error_code, again.member_epoch) == (E.none, first.member_epoch)
    assert numbers(again.assignment) == {0, 1, 2, 3}


# Targets.


def test_targets_are_made_at_most_once_in_an_interval() -> None:
    c = consumers(ConsumerConfig())
    first = c.enter("a", "apples")
    assert numbers(first.assignment) == {0, 1, 2, 3}, "the first ones are made at once"
    second = c.enter("b", "apples")
    assert (second.member_epoch, numbers(second.assignment)) == (2, set())
    assert c.look().state == "Assigning"
    c.leader.advance(999)
    assert c.says("a", 2).assignment is None
    c.leader.advance(1)
    assert numbers(c.says("a", 2).assignment) == {0, 1}


def test_the_targets_of_a_large_group_are_long_work() -> None:
    c = consumers(apples=LARGE)
    first = c.enter("a", "apples")
    assert numbers(first.assignment) == set(), "the work comes after the answer"
    assert len(numbers(c.says("a", first.member_epoch).assignment)) == LARGE


def test_targets_are_recomputed_if_a_static_member_rejoined_under_another_id() -> None:
    c = consumers(apples=LARGE)
    c.enter("a", "apples", instance="i")
    c.leader.long_work = []
    c.enter("b", "apples")
    away = c.says("a", -2, instance="i")
    assert away.error_code == ErrorCode.none
    c.enter("a2", "apples", instance="i")
    c.leader.do_work()
    group = c.world.group()
    assert group.target_epoch == group.epoch
    assert set(group.targets) == set(group.members) == {"a2", "b"}
    targets = [set(next(iter(target.values()))) for target in group.targets.values()]
    assert [len(one) for one in targets] == [LARGE // 2] * 2
    assert not targets[0] & targets[1]


def test_targets_are_recomputed_if_a_members_join_was_not_written() -> None:
    c = consumers(apples=LARGE)
    c.enter("a", "apples")
    c.leader.long_work, c.leader.lagging = [], True
    c.beat("lost", 0, has=(), timeout_ms=60_000, names=("apples",))
    c.leader.fail_uncommitted(ErrorCode.not_coordinator)
    c.leader.lagging = False
    c.enter("b", "apples")
    c.leader.do_work()
    group = c.world.group()
    assert set(group.targets) == set(group.members) == {"a", "b"}
    assert {n for target in group.targets.values() for ns in target.values() for n in ns} == set(range(LARGE))


def test_targets_made_for_an_epoch_that_is_over_are_dropped() -> None:
    c = consumers()
    c.enter("a", "apples")
    group = c.world.group()
    name = ConsumerWork(WorkKind.TARGET, "g")
    for epoch in (group.epoch - 1, group.epoch, group.epoch + 1):  # that of now has its targets already
        outcome = c.world.modern.worked(name, TargetAssignment(epoch, {}, ()), c.leader.now_ms)
        assert outcome.records == ()
    gone = ConsumerWork(WorkKind.TARGET, "gone")
    assert c.world.modern.worked(gone, TargetAssignment(3, {}, ()), c.leader.now_ms).records == ()


def test_the_assignor_is_the_one_with_the_most_votes() -> None:
    c = consumers(apples=2, pears=2)
    a = Consumer(c, "a", names=("apples", "pears"))
    b = Consumer(c, "b", names=("apples", "pears"), assignor="range")
    settle(a, b)
    assert c.world.modern.describe("g").assignor_name == "range"
    assert {t for t, n in a.has if n == 0} == {t.topic_id for t in c.world.topics.values()}, "co-partitioned"


def test_topics_that_grow_and_go_are_seen_with_the_next_heartbeat() -> None:
    c = consumers()
    a = Consumer(c, "a", names=("apples", "pears"))
    settle(a)
    c.world.make_topic("apples", 6)
    settle(a)
    assert len(a.has) == 6
    c.world.make_topic("pears", 2)
    settle(a)
    assert len(a.has) == 8
    old = c.world.topics["apples"].topic_id
    c.world.delete_topic("apples")
    settle(a)
    assert len(a.has) == 2
    new = c.world.make_topic("apples", 1)
    settle(a)
    assert new != old
    assert (new, 0) in a.has


def test_unsubscribed_partitions_are_revoked_at_once() -> None:
    c = consumers(ConsumerConfig(), apples=2, pears=2)
    first = c.enter("a", "apples", "pears")
    assert len(partitions_of(first.assignment)) == 4
    answer = c.says("a", 2, names=("pears",))
    pears = c.world.topics["pears"].topic_id
    assert partitions_of(answer.assignment) == {(pears, 0), (pears, 1)}
    assert c.look().state == "Assigning", "the targets themselves have their time"


# What others see.


def test_a_described_group_is_the_committed_one() -> None:
    c = consumers()
    c.enter("a", "apples", client_id="till", rack="r1")
    c.leader.lagging = True
    c.beat("b", 0, names=("apples",), has=(), timeout_ms=1000)
    described = c.world.modern.describe("g")
    assert (described.group_state, described.group_epoch, described.assignment_epoch) == ("Stable", 2, 2)
    (member,) = described.members
    assert (member.client_id, member.client_host, member.rack_id) == ("till", "/127.0.0.1", "r1")
    assert (member.subscribed_topic_names, member.member_type) == (("apples",), 1)
    (topic,) = member.assignment.topic_partitions
    assert (topic.topic_name, topic.partitions) == ("apples", (0, 1, 2, 3))
    assert member.target_assignment == member.assignment
    c.leader.commit()
    assert c.world.modern.describe("g").group_state == GroupState.RECONCILING.value
    assert c.world.modern.describe("other").error_code == E.group_id_not_found


def test_partitions_being_revoked_are_described_with_their_owner() -> None:
    c = consumers()
    c.enter("a", "apples")
    c.enter("b", "apples")
    c.says("a", 2)
    described = {member.member_id: member for member in c.world.modern.describe("g").members}
    assert sorted(described["a"].assignment.topic_partitions[0].partitions) == [0, 1, 2, 3]
    assert described["a"].target_assignment.topic_partitions[0].partitions == (0, 1)


def test_commits_are_taken_from_members_of_this_epoch_and_for_older_partitions() -> None:
    c = consumers()
    a, b = Consumer(c, "a", names=("apples",)), Consumer(c, "b", names=("apples",))
    a.beat()
    settle(a, b)
    topic_id = c.world.topics["apples"].topic_id
    look = c.look()
    assert look.check_commit("a", None, 3, 9) is None
    check = look.check_commit("a", None, 2, 9)
    assert check is not None
    check("apples", topic_id, 0)  # its own since epoch 2
    with pytest.raises(RequestError) as e:
        check("apples", topic_id, 2)  # given up
    assert e.value.code == E.stale_member_epoch
    check = look.check_commit("b", None, 2, 9)
    assert check is not None
    with pytest.raises(RequestError):
        check("apples", topic_id, 2)  # its own since epoch 3 only
    for member_id, epoch, version, code in (
        ("a", 4, 9, E.stale_member_epoch),
        ("a", 3, 8, E.unsupported_version),
        ("c", 3, 9, E.unknown_member_id),
        ("", -1, 9, E.unknown_member_id),
    ):
        with pytest.raises(RequestError) as e:
            look.check_commit(member_id, None, epoch, version)
        assert e.value.code == code
    look.check_fetch(None, -1)
    look.check_fetch("a", 3)
    with pytest.raises(RequestError) as e:
        look.check_fetch("a", 2)
    assert e.value.code == E.stale_member_epoch
    with pytest.raises(RequestError) as e:
        look.check_delete()
    assert e.value.code == E.non_empty_group
    assert look.is_subscribed_to("apples")
    assert not look.is_subscribed_to("pears")


def test_an_empty_group_may_be_deleted_and_leaves_nothing() -> None:
    c = consumers()
    c.enter("a", "apples")
    c.says("a", -1)
    look = c.look()
    look.check_delete()
    assert look.check_commit("", None, -1, 9) is None
    c.leader.ask(lambda shard, _ticket, _now: shard.delete_groups(["g"]))
    assert "g" not in c.leader.shard.groups
    c.leader.reload()
    assert "g" not in c.leader.shard.groups


def test_after_a_reload_everybody_goes_on_as_before() -> None:
    c = consumers()
    a, b = Consumer(c, "a", names=("apples",)), Consumer(c, "b", names=("apples",))
    a.beat()
    b.beat()
    a.beat()
    c.leader.reload()
    settle(a, b)
    assert sorted(len(m.has) for m in (a, b)) == [2, 2]
    c.leader.reload()
    c.leader.advance(45_000)
    assert c.look().is_empty, "sessions begin with the load"


def test_a_reload_restarts_the_revocation_timeout() -> None:
    c = consumers()
    c.enter("a", "apples", timeout_ms=20_000)
    c.enter("b", "apples")
    c.says("a", 2)
    c.leader.reload()
    c.leader.advance(20_000)
    assert c.says("a", 2).error_code == E.unknown_member_id


# Settings of a group.


def test_a_groups_own_settings_are_used_within_the_brokers_bounds() -> None:
    c = consumers()
    c.world.settings["g"] = {
        "consumer.heartbeat.interval.ms": "7000",
        "consumer.session.timeout.ms": "50000",
        "consumer.assignment.interval.ms": "3000",
    }
    answer = c.enter("a", "apples")
    assert answer.heartbeat_interval == 7_000
    c.leader.advance(49_999)
    assert c.says("a", 2).error_code == E.none
    assert numbers(c.enter("b", "apples").assignment) == set()
    c.world.settings["g"] = {"consumer.session.timeout.ms": "50", "consumer.heartbeat.interval.ms": "90000"}
    answer = c.says("a", c.member("a").epoch)
    assert answer.heartbeat_interval == 15_000
    c.leader.advance(44_999)
    assert "a" in c.world.group().members
    c.leader.advance(1)
    assert "a" not in c.world.group().members


def test_a_rebalance_is_counted() -> None:
    c = consumers()
    c.enter("a", "apples")
    c.says("a", 2)
    c.enter("b", "apples")
    assert c.world.metrics.consumer_rebalances == 2


def test_a_log_with_the_metadata_of_older_brokers_is_rid_of_it() -> None:
    c = consumers()
    epoch = c.enter("a", "apples").member_epoch
    key = modern.PartitionMetadataKey("g")
    c.leader.log.append(Written(CoordinatorRecord(modern.encode_key(key), b"\0\0\1\0"), -1))
    c.leader.reload()
    assert c.world.group().has_partition_metadata
    c.says("a", epoch)
    assert c.leader.log[-1] == Written(modern.tombstone(key), -1)
    assert not c.world.group().has_partition_metadata


def test_a_heartbeat_records_client_id_and_host() -> None:
    c = consumers()
    request = beat_request("a", 0, names=("apples",), has=(), timeout_ms=1000)
    who = RequestOrigin("till", "/10.0.0.1", 1)
    c.leader.ask(lambda _shard, _ticket, now: c.world.modern.heartbeat(request, who, now))
    assert (c.member("a").client_id, c.member("a").client_host) == ("till", "/10.0.0.1")
