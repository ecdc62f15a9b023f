"""Assignors against brute force on small worlds, and against what must hold on any."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Mapping
from time import thread_time
from uuid import UUID

import pytest

from service.base.steps import Steps, at_once
from service.groups.assignors import range as range_assignor
from service.groups.assignors import uniform
from service.groups.assignors.spec import Assignor, Target, Targets, TopicSpec, spec_of

Subscriptions = dict[str, tuple[str | None, frozenset[str]]]
SEEDS = range(150)


def assign(
    assignor: Assignor,
    subscriptions: Subscriptions,
    topics: dict[str, TopicSpec],
    targets: Mapping[str, Target],
) -> Targets:
    def steps() -> Steps[Targets]:
        spec = yield from spec_of(subscriptions, topics, targets)
        return (yield from assignor(spec))

    return at_once(steps())


def topics_of(*partitions: int) -> dict[str, TopicSpec]:
    return {f"t{n}": TopicSpec(UUID(int=n + 1), count) for n, count in enumerate(partitions)}


def subscribed(topics: dict[str, TopicSpec], *members: str) -> Subscriptions:
    return {member: (None, frozenset(topics)) for member in members}


def pairs(target: Target) -> set[tuple[UUID, int]]:
    return {(topic_id, n) for topic_id, numbers in target.items() for n in numbers}


def loads(targets: Targets) -> list[int]:
    return sorted(len(pairs(target)) for target in targets.values())


def check_valid(subscriptions: Subscriptions, topics: dict[str, TopicSpec], targets: Targets) -> None:
    """Everything that somebody is subscribed to is given to one who is, and nothing else."""
    assert targets.keys() == subscriptions.keys()
    given: Counter[tuple[UUID, int]] = Counter()
    for member, target in targets.items():
        ids = {topics[name].topic_id for name in subscriptions[member][1] if name in topics}
        assert all(topic_id in ids for topic_id in target)
        assert all(numbers == tuple(sorted(numbers)) and numbers for numbers in target.values())
        given.update(pairs(target))
    wanted = {
        (topics[name].topic_id, n)
        for _, names in subscriptions.values()
        for name in names
        if name in topics
        for n in range(topics[name].partitions)
    }
    assert given == Counter(wanted)


def moved(before: Mapping[str, Target], after: Targets) -> int:
    """Partitions that somebody who is still there has lost."""
    return sum(
        len(pairs(before[member]) - pairs(target)) for member, target in after.items() if member in before
    )


def all_ways(subscriptions: Subscriptions, topics: dict[str, TopicSpec]) -> list[Targets]:
    """Every valid assignment."""
    partitions = [
        (topic.topic_id, n, [m for m, (_, names) in subscriptions.items() if name in names])
        for name, topic in topics.items()
        for n in range(topic.partitions)
    ]
    partitions = [p for p in partitions if p[2]]
    ways: list[Targets] = []
    for owners in itertools.product(*(members for _, _, members in partitions)):
        way: dict[str, dict[UUID, tuple[int, ...]]] = {member: {} for member in subscriptions}
        for (topic_id, n, _), owner in zip(partitions, owners, strict=True):
            way[owner][topic_id] = (*way[owner].get(topic_id, ()), n)
        ways.append(way)
    return ways


@pytest.mark.parametrize("seed", SEEDS)
def test_uniform_moves_no_more_than_balance_asks_for(seed: int) -> None:
    dice = random.Random(seed)
    topics = topics_of(*(dice.randint(0, 3) for _ in range(2)))
    names = ["a", "b", "c", "d"]
    before = assign(uniform.assign, subscribed(topics, *dice.sample(names, dice.randint(1, 4))), topics, {})
    if dice.random() < 0.5:  # not even: targets that another assignor has made
        members = list(before)
        before = dict(dice.choice(all_ways(subscribed(topics, *members), topics)))
    now = subscribed(topics, *dice.sample(names, dice.randint(1, 4)))
    after = assign(uniform.assign, now, topics, before)
    check_valid(now, topics, after)
    assert max(loads(after)) - min(loads(after)) <= 1
    even = [way for way in all_ways(now, topics) if max(loads(way)) - min(loads(way)) <= 1]
    assert moved(before, after) == min(moved(before, way) for way in even)


@pytest.mark.parametrize("seed", SEEDS)
def test_uniform_of_mixed_subscriptions_leaves_no_move_that_helps(seed: int) -> None:
    dice = random.Random(seed)
    topics = topics_of(*(dice.randint(0, 3) for _ in range(3)))

    def some(members: int) -> Subscriptions:
        return {
            f"m{n}": (None, frozenset(dice.sample(sorted(topics), dice.randint(0, 3))))
            for n in range(members)
        }

    before: Targets = {}
    for members in (dice.randint(1, 4), dice.randint(1, 4), dice.randint(1, 4)):
        now = some(members)
        after = assign(uniform.assign, now, topics, before)
        check_valid(now, topics, after)
        for giver, taker, partition in moves(now, topics, after):
            more, less = len(pairs(after[giver])), len(pairs(after[taker]))
            assert more - less <= 1, "a move would make the loads more equal"
            was_its = partition in pairs(before.get(taker, {}))
            assert not (was_its and more - less == 1), "a partition has moved in vain"
        before = after


def moves(
    subscriptions: Subscriptions, topics: dict[str, TopicSpec], targets: Targets
) -> list[tuple[str, str, tuple[UUID, int]]]:
    names = {topic.topic_id: name for name, topic in topics.items()}
    return [
        (giver, taker, partition)
        for giver, target in targets.items()
        for partition in pairs(target)
        for taker, (_, subscription) in subscriptions.items()
        if taker != giver and names[partition[0]] in subscription
    ]


@pytest.mark.parametrize("seed", range(60))
def test_range_gives_each_topic_evenly_and_in_ranges(seed: int) -> None:
    dice = random.Random(seed)
    topics = topics_of(*(dice.randint(0, 7) for _ in range(3)))
    members: Subscriptions = {
        f"m{n}": (
            f"i{dice.randint(0, 99):02}-{n}" if dice.random() < 0.5 else None,
            frozenset(dice.sample(sorted(topics), dice.randint(0, 3))),
        )
        for n in range(dice.randint(1, 6))
    }
    after = assign(range_assignor.assign, members, topics, {})
    check_valid(members, topics, after)
    for name, topic in topics.items():
        shares = [after[m].get(topic.topic_id, ()) for m, (_, names) in members.items() if name in names]
        assert all(share == tuple(range(share[0], share[-1] + 1)) for share in shares if share)
        if shares:
            assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_range_co_partitions_and_static_members_keep_their_place() -> None:
    topics = topics_of(5, 5)
    members: Subscriptions = {
        "z": ("first", frozenset(topics)),
        "y": ("second", frozenset(topics)),
        "a": (None, frozenset(topics)),
    }
    one, two = (topic.topic_id for topic in topics.values())
    after = assign(range_assignor.assign, members, topics, {})
    assert [after[m] for m in ("z", "y", "a")] == [
        {one: (0, 1), two: (0, 1)},
        {one: (2, 3), two: (2, 3)},
        {one: (4,), two: (4,)},
    ]
    members["b"] = members.pop("z")  # the static member is back under another id
    assert assign(range_assignor.assign, members, topics, after)["b"] == after["z"]


@pytest.mark.parametrize("assignor", [uniform.assign, range_assignor.assign])
def test_equal_input_gives_equal_output_in_whatever_order_it_comes(assignor: Assignor) -> None:
    dice = random.Random(7)
    topics = topics_of(7, 3, 9, 1)
    members: Subscriptions = {
        f"m{n}": (None, frozenset(dice.sample(sorted(topics), dice.randint(1, 4)))) for n in range(9)
    }
    before = assign(assignor, members, topics, {})
    del members["m3"]
    expected = assign(assignor, members, topics, before)
    for _ in range(20):
        shuffled = dict(dice.sample(list(members.items()), len(members)))
        targets = dict(dice.sample(list(before.items()), len(before)))
        assert assign(assignor, shuffled, dict(dice.sample(list(topics.items()), 4)), targets) == expected


@pytest.mark.parametrize("assignor", [uniform.assign, range_assignor.assign])
@pytest.mark.parametrize("mixed", [False, True])
def test_an_assignment_is_made_in_short_steps(assignor: Assignor, mixed: bool) -> None:
    dice = random.Random(3)
    topics = topics_of(*[20] * 100)
    some = (
        [frozenset(dice.sample(sorted(topics), 20)) for _ in range(300)]
        if mixed
        else [frozenset(topics)] * 300
    )
    members: Subscriptions = {f"m{n:03}": (None, names) for n, names in enumerate(some)}

    def steps() -> Steps[Targets]:
        spec = yield from spec_of(members, topics, {})
        return (yield from assignor(spec))

    took, work = list[float](), steps()
    before = thread_time()
    try:
        while True:
            next(work)
            now = thread_time()
            took.append(now - before)
            before = now
    except StopIteration as e:
        check_valid(members, topics, e.value)
    assert len(took) > 100
    assert max(took) < 0.01, "a step is a small part of a turn"


def test_assignors_accept_no_members_and_no_topics() -> None:
    for assignor in (uniform.assign, range_assignor.assign):
        assert assign(assignor, {}, topics_of(3), {}) == {}
        assert assign(assignor, {"m": (None, frozenset({"gone"}))}, {}, {}) == {"m": {}}


def test_removed_topics_and_members_are_dropped_from_targets() -> None:
    topics = topics_of(2)
    topic_id = topics["t0"].topic_id
    before: dict[str, Target] = {"m": {topic_id: (0, 1, 2), UUID(int=99): (0,)}, "n": {topic_id: (1,)}}
    for names in (frozenset(topics), frozenset({"t0", "unknown"})):
        members: Subscriptions = {"m": (None, names), "n": (None, frozenset(topics))}
        check_valid(members, topics, assign(uniform.assign, members, topics, before))
