"""ListGroups and DescribeGroups; unknown records; simple groups."""

from __future__ import annotations

import pytest

from service.base.steps import at_once
from service.coordinator.shard import Later
from service.groups.admin import GroupFilter
from service.groups.requests import OffsetFetchGroup
from tests.support.groups import classic_shard
from tests.unit.groups.committers import EVERY_GROUP, Committers, E, subscribed


def test_a_filter_of_very_many_names_is_read_in_steps_and_kept_small() -> None:
    names = [f"state {n} {'x' * 300}" for n in range(10_000)]
    steps = GroupFilter.of([*names, " stable "], [*names, "Consumer", "CLASSIC"])
    assert len(list(steps)) == 20_003
    assert at_once(GroupFilter.of([*names, " stable "], [*names, "Consumer"])) == GroupFilter(
        frozenset({"stable"}), frozenset({"consumer"})
    )
    assert at_once(GroupFilter.of(names, ())) == GroupFilter(frozenset(), None)


def test_groups_are_listed_by_state_and_kind() -> None:
    c = Committers()
    c.stable("a")
    c.commit({("orders", 0): 5}, group_id="h")

    def listed(states: list[str], kinds: list[str]) -> list[str]:
        return [
            group.group_id for group in at_once(c.shard.list_groups(at_once(GroupFilter.of(states, kinds))))
        ]

    assert listed([], []) == ["g", "h"]
    assert listed(["STABLE "], []) == ["g"]
    assert listed(["empty", "preparingrebalance"], ["Classic"]) == ["h"]
    assert listed(["nonsense"], []) == []
    assert listed([], ["consumer"]) == []
    assert listed([], ["nonsense"]) == []


def test_all_of_very_many_is_told_in_steps() -> None:
    c = Committers()
    c.topics.make("large", 1000, 3)
    c.commit({("large", n): n for n in range(1000)})
    for n in range(250):
        c.commit({("orders", 0): n}, group_id=f"simple{n}")
    assert len(list(c.shard.list_groups(EVERY_GROUP))) == 251
    request = OffsetFetchGroup("g", None)
    steps = c.shard.fetch_all_offsets(request)
    stable = c.shard.fetch_all_stable_offsets(request).response
    assert not isinstance(stable, Later)
    next(steps)
    c.commit({("large", n): 0 for n in range(1000)})
    for told in (at_once(steps), at_once(stable)):
        [topic] = told.topics
        assert sum(one.committed_offset for one in topic.partitions) == 499_500, "as it was when asked for"
    assert len(list(c.shard.fetch_all_offsets(request))) == 10


def test_groups_are_counted_in_steps() -> None:
    c = Committers()
    c.stable("a")
    for n in range(250):
        c.commit({("orders", 0): n}, group_id=f"simple{n}")
    steps = c.shard.census()
    assert len([*c.shard.census()]) == 3
    assert at_once(steps) == {("classic", "Stable"): 1, ("classic", "Empty"): 250}


def test_groups_are_described_with_their_members() -> None:
    c = Committers()
    ids, _ = c.stable("a", "b")
    described, missing = c.shard.describe_groups(["g", "none"], 6)
    assert described[:4] == ("g", "Stable", "consumer", "range")
    assert [m[:4] for m in described.members] == [
        (ids[0], None, "a", "/127.0.0.1"),
        (ids[1], None, "b", "/127.0.0.1"),
    ]
    assert [m.member_metadata for m in described.members] == [b"range", b"range"]
    assert described.members[0].member_assignment == b"to " + ids[0].encode()
    assert (missing.group_state, missing.error_code) == ("Dead", E.group_id_not_found)
    assert c.shard.describe_groups(["none"], 5)[0].error_code == E.none
    c.join(ids[0])
    (described,) = c.shard.describe_groups(["g"], 6)
    assert (described.group_state, described.protocol_data) == ("PreparingRebalance", "")
    assert [m.member_metadata for m in described.members] == [b"", b""]
    assert described.members[1].member_assignment == b"to " + ids[1].encode()
    c.join(ids[1])
    c.join(ids[1], protocols=subscribed("orders"))
    (described,) = c.shard.describe_groups(["g"], 6)
    assert [m.member_assignment for m in described.members] == [b"", b""], "none was assigned in between"


@pytest.mark.parametrize("kind", [10, 17, 23, 999])
def test_records_of_unknown_types_are_skipped_and_told_once(kind: int) -> None:
    warnings: list[str] = []
    shard = classic_shard(warnings=warnings)
    for offset in range(3):
        shard.replay(offset, kind.to_bytes(2, "big") + b"anything", b"else")
    assert len(warnings) == 1
    assert f"type {kind}, from offset 0 on" in warnings[0]
    assert not shard.groups


def test_a_simple_group_may_be_joined() -> None:
    c = Committers()
    c.commit({("orders", 0): 5})
    c.stable("a")
    assert c.state == "Stable"
    assert c.offset("orders", 0) == 5
