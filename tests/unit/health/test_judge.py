"""Findings about nodes and clusters: which facts are a problem, in which words, since when."""

from __future__ import annotations

import pytest

from service.health.facts import (
    BrokerFacts,
    ClusterFacts,
    CutFacts,
    DirectoryFacts,
    ListenerFacts,
    NodeFacts,
    OrderFacts,
    PartitionFacts,
    StoreFacts,
    ViewFacts,
    VoterFacts,
)
from service.health.findings import Finding, Severity, as_json, from_json
from service.health.judge import judge, state_of
from service.health.readiness import HealthState, checks_of
from service.health.sightings import Sightings

NOW = 1_000_000


def words(facts: ClusterFacts | NodeFacts) -> list[str]:
    return [one.words for one in judge(facts, NOW)]


def test_nothing_is_said_of_a_whole_cluster_and_a_node_that_serves() -> None:
    view = ViewFacts(1, 9000)
    assert judge(ClusterFacts(view, (BrokerFacts(1, False),), (VoterFacts(1, None, True),)), NOW) == ()
    assert judge(NodeFacts(1, view=view), NOW) == ()


def test_metadata_that_no_controller_has_confirmed_for_longer_than_a_session_are_stale() -> None:
    (one,) = judge(NodeFacts(3, view=ViewFacts(3, 9001, 9000)), NOW)
    assert one.severity is Severity.CRITICAL
    assert one.words == "node 3: no controller has confirmed its metadata for 9 s: they are stale"
    assert (one.subject, one.since_ms, one.anchor) == ("node 3", 990_999, "metadata-stale")
    assert judge(ClusterFacts(ViewFacts(3, 9001, 9000)), NOW) == (one,), "a client says the same"


def test_a_dead_broker_and_what_it_leaves_are_said_with_the_worst_first() -> None:
    facts = ClusterFacts(
        brokers=(BrokerFacts(1, False), BrokerFacts(3, True)),
        voters=(VoterFacts(1, None, True), VoterFacts(2, 300, False), VoterFacts(3, 24_000, False)),
        partitions=PartitionFacts(1, 2, 71),
    )
    assert words(facts) == [
        "broker 3 is down: the controller has fenced it",
        "2 partitions under min ISR",
        "1 partition without a leader",
        "71 partitions under-replicated",
        "voter 3 has not fetched for 24 s",
    ]


def test_cuts_are_late_beyond_six_intervals_and_the_reason_is_said() -> None:
    assert judge(NodeFacts(1, cuts=CutFacts(60_000, 10_000)), NOW) == ()
    (one,) = judge(NodeFacts(1, cuts=CutFacts(60_001, 10_000, "events-1: it waits")), NOW)
    assert one.words == "node 1: the bucket has had no newer cut of the cluster for 60 s: events-1: it waits"
    assert (one.severity, one.since_ms, one.anchor) == (Severity.WARNING, NOW - 60_001, "cuts-late")
    (check,) = checks_of(("store",), (one,))
    assert check.state is HealthState.DEGRADED


DAY_MS, HOUR_MS = 86_400_000, 3_600_000


def test_an_order_to_erase_keys_that_is_open_for_more_than_a_day_is_told_with_its_reason() -> None:
    now_ms = 10 * DAY_MS
    fresh = OrderFacts("a", now_ms - DAY_MS, True, "2 replicas have not erased yet")
    assert judge(NodeFacts(1, orders=(fresh,)), now_ms) == ()
    (one,) = judge(NodeFacts(1, orders=(fresh._replace(since_ms=now_ms - DAY_MS - 1),)), now_ms)
    assert one.words == (
        "node 1: order a to erase keys has been open for 24 h 0 min: 2 replicas have not erased yet"
    )
    assert (one.severity, one.since_ms, one.anchor) == (
        Severity.WARNING, now_ms - 1, "order-to-erase-stays-open",
    )  # fmt: skip


def test_objects_that_a_done_order_has_left_are_told_an_hour_after_the_grace() -> None:
    now_ms = 10 * DAY_MS
    due = OrderFacts("a", now_ms - HOUR_MS, False, "3 old versions of objects are left: locked until 2027")
    assert judge(NodeFacts(1, orders=(due, due._replace(since_ms=now_ms + HOUR_MS))), now_ms) == ()
    (one,) = judge(NodeFacts(1, orders=(due._replace(since_ms=now_ms - HOUR_MS - 1),)), now_ms)
    assert one.words == (
        "node 1: order a to erase keys is done, and 60 min 0 s after the grace: "
        "3 old versions of objects are left: locked until 2027"
    )
    assert one.anchor == "erased-objects-are-left"


@pytest.mark.parametrize(
    ("broker", "is_stale", "state"),
    [
        (BrokerFacts(1, False), False, "ok"),
        (BrokerFacts(1, True), False, "fenced"),
        (BrokerFacts(1, False), True, "unknown"),
        (BrokerFacts(1, True), True, "unknown"),
        (BrokerFacts(1, False, "refused"), False, "does not answer"),
        (BrokerFacts(1, False, "refused"), True, "does not answer"),
    ],
)
def test_only_a_broker_that_fresh_metadata_call_alive_and_that_answers_is_ok(
    broker: BrokerFacts, is_stale: bool, state: str
) -> None:
    assert state_of(broker, is_stale=is_stale) == state


def test_a_node_names_its_store_its_disks_and_what_it_waits_for() -> None:
    facts = NodeFacts(
        2,
        is_serving=False,
        waits=("the logs are being opened",),
        offline_partitions=1,
        directories=(
            DirectoryFacts(2, "/a", is_offline=True),
            DirectoryFacts(2, "/b", fullness="98 % full", refuses=True),
            DirectoryFacts(2, "/c", fullness="81 % full"),
        ),
        stores=(StoreFacts("copy", "refused", 5),),
    )
    assert words(facts) == [
        "node 2: log directory /b is 98 % full",
        "node 2: log directory /a is offline",
        "node 2 is starting or stopping",
        "node 2: the logs are being opened",
        "node 2: 1 partition is offline on it",
        "node 2: the store does not answer (copy): refused",
        "node 2: log directory /c is 81 % full",
    ]


def test_a_finding_of_a_node_and_of_a_client_is_said_once() -> None:
    told = judge(NodeFacts(3, cluster=ClusterFacts(brokers=(BrokerFacts(1, True),))), NOW)
    facts = ClusterFacts(
        brokers=(BrokerFacts(1, True),), listeners=(ListenerFacts(2, "h:9464", "refused"),), told=told
    )
    assert words(facts) == [
        "broker 1 is down: the controller has fenced it",
        "node 2: its HTTP listener h:9464 does not answer: refused",
    ]


def test_stale_metadata_are_said_once_of_a_node_and_of_each_other_node() -> None:
    told = [
        *judge(NodeFacts(3, view=ViewFacts(3, 15_000)), NOW),
        *judge(NodeFacts(1, view=ViewFacts(1, 15_000)), NOW),
    ]
    assert words(ClusterFacts(ViewFacts(3, 17_000), told=tuple(told))) == [
        "node 1: no controller has confirmed its metadata for 15 s: they are stale",
        "node 3: no controller has confirmed its metadata for 17 s: they are stale",
    ]


def test_a_finding_has_the_time_of_its_first_sighting_whatever_its_count_and_not_that_of_another() -> None:
    def full(path: str, share: int) -> tuple[Finding, ...]:
        return judge(ClusterFacts(directories=(DirectoryFacts(2, path, fullness=f"{share}% full"),)), NOW)

    sightings = Sightings()
    assert [one.since_ms for one in sightings.dated(full("/disk-1", 91), 1_000)] == [1_000]
    assert [one.since_ms for one in sightings.dated(full("/disk-1", 92), 2_000)] == [1_000]
    both = sightings.dated((*full("/disk-1", 93), *full("/disk-2", 93)), 3_000)
    assert [one.since_ms for one in both] == [1_000, 3_000]


def test_findings_come_back_from_their_json_and_nonsense_does_not() -> None:
    found = judge(NodeFacts(3, view=ViewFacts(3, 60_000)), NOW)
    told = [as_json(one) for one in found]
    assert told[0]["severity"] == "critical"
    assert from_json(told) == found
    for name, value in (("severity", "x"), ("since_ms", "1"), ("since_ms", -1), ("words", None)):
        with pytest.raises((ValueError, LookupError, TypeError, AttributeError)):
            from_json([{**told[0], name: value}])
    with pytest.raises((ValueError, LookupError, TypeError, AttributeError)):
        from_json({"a": 1})
