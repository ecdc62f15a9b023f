"""More replicas for topics that have too few: leaders stay, racks and load are spread."""

from __future__ import annotations

import random
from collections import Counter

from service.client.admin_models import NodeInfo
from service.client.cluster_health import PartitionState
from service.client.replica_widening import batches, plan

TOPIC = "__consumer_offsets"


def brokers(*racks: str | None, fenced: tuple[int, ...] = ()) -> list[NodeInfo]:
    return [NodeInfo(n, "h", 9092, rack, n in fenced) for n, rack in enumerate(racks, 1)]


def partitions(*replicas: tuple[int, ...], leader: int | None = None) -> list[tuple[str, PartitionState]]:
    return [
        (TOPIC, PartitionState(n, held[0] if leader is None else leader, 0, held, held))
        for n, held in enumerate(replicas)
    ]


def test_one_replica_becomes_three_behind_the_one_that_leads() -> None:
    found = plan(partitions(*[(1,)] * 50), brokers(None, None, None), (), 3)
    assert all(step.after in ((1, 2, 3), (1, 3, 2)) for step in found.steps)
    assert (len(found.steps), found.problems, found.factor) == (50, (), 3)


def test_no_more_replicas_than_there_are_brokers() -> None:
    found = plan(partitions((1,), (2,)), brokers(None, None), (), 3)
    assert [step.after for step in found.steps] == [(1, 2), (2, 1)]
    assert plan(partitions((1,)), brokers(None), (), 3).steps == ()


def test_partitions_with_enough_replicas_or_under_way_are_skipped() -> None:
    several = partitions((1, 2, 3), (1, 2, 3, 4), (2,))
    assert plan(several, brokers(*[None] * 4), [(TOPIC, 2)], 3).steps == ()


def test_other_racks_come_first() -> None:
    found = plan(partitions(*[(1,)] * 8), brokers("a", "a", "b", "b", "c", "c"), (), 3)
    racks = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
    assert all({racks[node] for node in step.after} == {"a", "b", "c"} for step in found.steps)
    load = Counter(node for step in found.steps for node in step.after[1:])
    assert load == {3: 4, 4: 4, 5: 4, 6: 4}


def test_a_fenced_broker_gets_none_and_that_is_said() -> None:
    found = plan(partitions((1,)), brokers(None, None, None, fenced=(3,)), (), 3)
    assert [step.after for step in found.steps] == [(1, 2)]
    assert found.problems == (f"{TOPIC}-0 gets 2 of 3 replicas: fenced is 3",)
    again = plan(partitions((1, 2)), brokers(None, None, None, fenced=(3,)), (), 3)
    assert (again.steps, len(again.problems)) == ((), 1)


def test_a_partition_without_a_leader_is_a_problem() -> None:
    found = plan(partitions((1,), leader=-1), brokers(None, None), (), 3)
    assert (found.steps, found.problems) == ((), (f"{TOPIC}-0 has no leader to copy from",))


def test_any_cluster_is_widened_once_and_evenly() -> None:
    """What is done leaves nothing to do; what was there stays in front; loads differ little."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    source = random.Random(seed)
    for _ in range(300):
        racks = [source.choice((None, "a", "b", "c")) for _ in range(source.randint(1, 7))]
        nodes = brokers(*racks)
        before = partitions(
            *[
                tuple(source.sample(range(1, len(nodes) + 1), source.randint(1, min(4, len(nodes)))))
                for _ in range(source.randint(1, 40))
            ]
        )
        factor = source.randint(1, 4)
        found = plan(before, nodes, (), factor)
        assert found.problems == ()
        after = {step.place: step.after for step in found.steps}
        for step in found.steps:
            assert step.after[: len(step.before)] == step.before
            assert len(set(step.after)) == len(step.after) == found.factor
        then = [(topic, one._replace(replicas=after.get((topic, one.partition), one.replicas)))
                for topic, one in before]  # fmt: skip
        assert plan(then, nodes, (), factor).steps == ()


def test_batches_are_bounded_and_leave_none_out() -> None:
    steps = plan(partitions(*[(1,)] * 25), brokers(None, None), (), 3).steps
    found = list(batches(steps, 10))
    assert [len(one) for one in found] == [10, 10, 5]
    assert tuple(step for one in found for step in one) == steps
