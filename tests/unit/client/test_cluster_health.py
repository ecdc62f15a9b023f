"""Health of a cluster: counted over partitions, judged as Kafka's tools do, bounded in size."""

from __future__ import annotations

import json
import random

from service.cli.cluster_words import format_cluster
from service.client.admin_models import NodeInfo
from service.client.cluster_health import (
    BrokerLoad,
    ClusterHealth,
    MetadataReplica,
    PartitionCounter,
    PartitionProblem,
    PartitionState,
    PartitionSummary,
    QuorumInfo,
    ReassignmentInfo,
    as_json,
    nodes_of,
    partitions_of,
    voters_of,
    with_states,
)
from service.health.facts import BrokerFacts, ClusterFacts, DirectoryFacts, UnansweredFacts
from service.health.judge import judge

NOW = 1_790_000_000_000


def one(partition: int, leader: int, replicas: tuple[int, ...], isr: tuple[int, ...]) -> PartitionState:
    return PartitionState(partition, leader, 3, replicas, isr)


def tallied(
    *partitions: PartitionState, min_isr: int = 2, most: int = 10, topic: str = "t"
) -> PartitionSummary:
    tally = PartitionCounter((), most)
    for partition in partitions:
        tally.add(topic, partition, min_isr)
    return tally.found()


def voter(node: int, end: int | None, ago_ms: int | None = 0) -> MetadataReplica:
    at = None if ago_ms is None else NOW - ago_ms
    return MetadataReplica(node, f"d{node}", end, at, at)


def quorum(*others: MetadataReplica, observers: tuple[MetadataReplica, ...] = ()) -> QuorumInfo:
    return QuorumInfo(1, 7, 90, (voter(1, 100), *others), observers, {2: (("CONTROLLER", "b", 9093),)})


def test_broker_loads_count_leaders_and_preferred_leaders() -> None:
    found = tallied(
        one(0, 1, (1, 2, 3), (1, 2, 3)), one(1, 1, (2, 1, 3), (1, 3)),
        PartitionState(2, -1, 4, (2, 3), (), elr=(3,), last_known_elr=(2,), offline=(2,)),
    )  # fmt: skip
    assert found.shares == {
        1: BrokerLoad(2, 1, 2, 0, 0),
        2: BrokerLoad(0, 2, 3, 2, 1),
        3: BrokerLoad(0, 0, 3, 1, 0),
    }
    assert [share.follows for share in found.shares.values()] == [0, 3, 3]
    assert (found.offline, found.under_min_isr, found.under_replicated) == (1, 1, 2)
    assert (found.topics, found.partitions, found.with_elr, found.not_preferred) == (1, 3, 1, 2)
    assert [(ill.what, ill.state.partition) for ill in found.ill] == [
        (PartitionProblem.OFFLINE, 2), (PartitionProblem.UNDER_REPLICATED, 1),
    ]  # fmt: skip


def test_min_isr_is_no_more_than_there_are_replicas() -> None:
    assert tallied(one(0, 1, (1,), (1,)), min_isr=2).under_min_isr == 0
    found = tallied(one(0, 1, (1, 2), (1,)), min_isr=2)
    assert (found.under_min_isr, found.ill[0].what) == (1, PartitionProblem.UNDER_MIN_ISR)


def test_a_replica_that_comes_is_not_missed() -> None:
    tally = PartitionCounter([ReassignmentInfo("t", 0, (1, 2, 3), (3,), ())], 10)
    tally.add("t", one(0, 1, (1, 2, 3), (1, 2)), 2)
    tally.add("u", one(0, 1, (1, 2, 3), (1, 2)), 2)
    found = tally.found()
    assert [ill.topic for ill in found.ill] == ["u"]
    assert found.topics == 2


def test_the_worst_are_kept_of_many_however_they_come() -> None:
    """A walk keeps the same as one that keeps all."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    source = random.Random(seed)
    tally, every = PartitionCounter((), 20), PartitionCounter((), 10_000)
    for number in range(3_000):
        isr = (1, 2, 3)[: source.choice((0, 1, 2, 3, 3, 3))]
        partition = one(number % 100, 1 if isr else -1, (1, 2, 3), isr)
        for target in (tally, every):
            target.add(f"t{number // 100:03d}", partition, 2)
        assert len(tally._ill) <= 140
    found, whole = tally.found(), every.found()
    assert found.ill == whole.ill[:20]
    assert found._replace(ill=()) == whole._replace(ill=())
    assert found.ill_in_all == len(whole.ill)


def test_lag_and_silence_are_by_the_leaders_clock() -> None:
    behind, never = voter(2, 93, 400), voter(3, None, None)
    found = quorum(behind, never, observers=(voter(4, 100, 60_000),))
    assert [found.lag(one) for one in found.voters] == [0, 7, None]
    assert [found.behind_ms(one) for one in found.voters] == [0, 400, None]
    assert [found.is_away(one) for one in found.voters] == [False, False, True]
    assert found._replace(leader=9).lag(behind) is None


def test_nodes_have_the_roles_that_were_told() -> None:
    brokers = (NodeInfo(2, "b", 9092, "east", False), NodeInfo(4, "::1", 9092, None, True))
    nodes = nodes_of(brokers, quorum(voter(2, 1), observers=(voter(4, 1), voter(5, 1))))
    assert [(n.node_id, n.roles, n.rack, n.is_fenced, n.listeners) for n in nodes] == [
        (1, ("controller",), None, None, ()),
        (2, ("broker", "controller"), "east", False, ("b:9092", "CONTROLLER://b:9093")),
        (4, ("broker",), None, True, ("[::1]:9092",)),
        (5, ("controller",), None, None, ()),
    ]


def test_a_controller_alone_has_the_state_of_its_replica_of_the_metadata_log() -> None:
    told = quorum(voter(2, 93, 12_345), voter(3, 100, 500), observers=(voter(5, 100),))
    brokers = (NodeInfo(2, "b", 9092, None, False),)

    def states(facts: ClusterFacts, of: QuorumInfo | None) -> list[tuple[int, str]]:
        return [(n.node_id, n.state) for n in with_states(nodes_of(brokers, told), facts, of)]

    assert states(ClusterFacts(brokers=(BrokerFacts(2, False),)), told) == [
        (1, "ok"), (2, "ok"), (3, "ok"), (5, "ok"),
    ]  # fmt: skip
    away = quorum(voter(2, 93, 12_345), voter(3, 90, 10_001), observers=(voter(5, 100),))
    assert states(ClusterFacts(), away)[2] == (3, "does not fetch")
    for facts, of in ((ClusterFacts(quorum_silence="no answer"), told), (ClusterFacts(), None)):
        assert [state for node, state in states(facts, of) if node != 2] == ["unknown"] * 3


def a_standing(name: str = "orders") -> ClusterHealth:
    brokers = (NodeInfo(1, "a", 9092, name, False), NodeInfo(2, "b", 9092, None, True))
    told = quorum(voter(2, 93, 12_345))
    partitions = tallied(one(0, 1, (1, 2), (1,)), one(1, -1, (2,), ()), topic=name, most=1)
    moving = (ReassignmentInfo(name, 0, (1, 2, 3), (3,), ()),)
    facts = ClusterFacts(
        brokers=(BrokerFacts(1, False, "refused"), BrokerFacts(2, True)),
        voters=voters_of(told),
        partitions=partitions_of(partitions),
        unanswered=(UnansweredFacts("the moon", "away"),),
    )
    nodes = with_states(nodes_of(brokers, told), facts, told)
    return ClusterHealth("c-1", nodes, told, partitions, moving, judge(facts, NOW))


def test_problems_are_printed_before_the_tables() -> None:
    lines = format_cluster(a_standing())
    assert lines[0] == "cluster: c-1"
    assert lines[1] == ("quorum: leader 1, epoch 7, high watermark 90, voters 1,2, observers -")
    assert [line for line in lines if line.startswith("wrong: ")] == [
        "wrong: broker 1 does not answer: refused", "wrong: broker 2 is down: the controller has fenced it",
        "wrong: 2 partitions under min ISR", "wrong: 1 partition without a leader",
        "wrong: 2 partitions under-replicated", "wrong: the moon: away",
        "wrong: voter 2 has not fetched for 12 s",
    ]  # fmt: skip
    assert lines[lines.index("wrong: the moon: away") + 1] == (
        "       Ask again; if it stays, see whether the node that is named is overloaded or refuses the"
        " request. (health.md#question-unanswered)"
    )
    assert [one.state for one in a_standing().nodes] == ["does not answer", "fenced"]
    assert "2            voter   93   7    12345 ms ago" in lines
    assert "orders-1   offline  -       2         -    2        -    -" in lines
    assert "and 1 more" in lines
    assert "orders-0  1,2,3     3       -" in lines


def test_nothing_wrong_is_said_and_what_is_not_told_is_left_out() -> None:
    found = ClusterHealth("c", (), None, tallied(one(0, 1, (1,), (1,))), (), ())
    assert found.is_well
    assert "wrong: nothing" in format_cluster(found)
    assert format_cluster(ClusterHealth("c", (), None, None, None)) == ["cluster: c", "wrong: nothing"]


def test_a_notice_is_printed_and_does_not_make_a_cluster_ill() -> None:
    full = DirectoryFacts(1, "/d", fullness="81% full")
    found = ClusterHealth("c", (), None, None, None, judge(ClusterFacts(directories=(full,)), NOW))
    assert found.is_well
    assert format_cluster(found)[1:3] == ["wrong: nothing", "note: node 1: log directory /d is 81% full"]


def test_names_of_others_rearrange_no_line() -> None:
    assert not any("\x1b" in line or "\n" in line for line in format_cluster(a_standing("a\x1b[2J\nb")))


def test_programs_are_told_the_same() -> None:
    found = a_standing()
    told = json.loads(json.dumps(as_json(found)))
    assert told["wrong"] == [one.words for one in found.findings]
    assert told["findings"][0]["anchor"] == "broker-does-not-answer"
    assert told["quorum"]["voters"][1]["lag"] == 7
    assert told["nodes"][0]["roles"] == ["broker", "controller"]
    assert told["partitions"]["shares"][0]["leads"] == 1
    assert told["partitions"]["ill"][0]["what"] == "offline"
    assert told["reassignments"][0]["adding"] == [3]
    assert json.loads(json.dumps(as_json(ClusterHealth("c", (), None, None, None))))["quorum"] is None
