"""Samples of many partitions as text: a slice of the loop at a time."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from prometheus_client import parser as plain_parser
from prometheus_client.openmetrics import parser

from service.base import turn_queues
from service.base.purgatory import Purgatory
from service.base.steps import Steps
from service.base.turns import TurnTimes
from service.base.types import TopicIdPartition
from service.console.measuring import PartitionTotals
from service.console.measuring_groups import of_lag
from service.console.metrics_text import OPENMETRICS, PLAIN, TextFormat, compressed, render
from service.console.ports import ObservedNode
from service.coordinator.metrics import RuntimeMetrics
from service.groups.lag import GroupLag, LagReport
from service.groups.metrics import GroupMetrics
from service.health.readiness import NodeHealth
from service.network.metrics import NetworkMetrics
from service.partition.fetch_sessions import FetchSessions
from service.partition.implicit_sessions import ImplicitSessions
from service.partition.traffic import TopicTraffic
from service.replication.metrics import ReplicationMetrics

parse: Any = parser.text_string_to_metric_families
parse_plain: Any = plain_parser.text_string_to_metric_families


class Shown:
    """A node of so many partitions, as far as metrics look at it."""

    def __init__(self, count: int) -> None:
        self.turns, self.network = TurnTimes(), NetworkMetrics()
        self.serving = self.logs = self.metadata = self.cold = self.tls = None
        self.fetch_sessions: FetchSessions | None = None
        self.implicit_sessions: ImplicitSessions | None = None
        self.authorizer = None
        self.groups: Any = None
        self.transactions = lambda now_ms: None
        self.quotas = ()
        segments = SimpleNamespace(segments=[1, 2])
        log = SimpleNamespace(failure=None, size=7, state=segments, oldest_open=None)
        unified = SimpleNamespace(local=log, remote=None, start_offset=1, local_start_offset=2, end_offset=3)
        self._partitions = [
            SimpleNamespace(
                tip=TopicIdPartition(UUID(int=1), 'a "b"', n),
                log=log,
                unified=unified,
                high_watermark=3,
                last_stable_offset=2,
                start_offset=1,
                leading=SimpleNamespace(
                    end_offset=3, followers=[SimpleNamespace(end_offset=2), SimpleNamespace(end_offset=-1)]
                ),
            )
            for n in range(count)
        ]
        self.transaction_max_timeout_ms = 900_000

    def partitions(self) -> Sequence[Any]:
        return self._partitions

    def traffic(self) -> Mapping[str, TopicTraffic]:
        return {}

    def closed_count(self) -> int:
        return 1

    def connections(self) -> Mapping[str, int]:
        return {}

    def replica_counts(self) -> Steps[tuple[Mapping[str, int], Mapping[int, int]]]:
        yield
        return {"led": 2}, {3: 17}

    def replicated(self) -> ReplicationMetrics:
        return ReplicationMetrics(isr_shrinks=4)

    def throttled_bytes(self) -> Mapping[str, int]:
        return {"leader": 3}

    def memory(self) -> Mapping[str, int]:
        return {}

    def health(self, now_ms: int) -> NodeHealth:
        return NodeHealth((), ())


async def rendered(count: int, *, most_partitions: int) -> tuple[str, int]:
    """The text, and how many turns others had meanwhile."""
    turns = 0
    done = asyncio.Event()

    async def beside() -> None:
        nonlocal turns
        while not done.is_set():
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.ensure_future(beside())
    text = await render(cast("ObservedNode", Shown(count)), 0, most_partitions=most_partitions)
    done.set()
    await other
    return b"".join(text).decode(), turns


def test_partitions_are_summed_up_unless_they_are_wanted_one_by_one() -> None:
    text, _ = asyncio.run(rendered(300, most_partitions=0))
    found = {one.name: one.samples for one in parse(text)}
    assert [(one.labels["state"], one.value) for one in found["firn_partitions"]] == [
        ("online", 300),
        ("offline", 1),
    ]
    assert found["firn_segments"][0].value == 600
    assert "firn_partition_end_offset" not in found
    text, _ = asyncio.run(rendered(300, most_partitions=10_000))
    found = {one.name: one.samples for one in parse(text)}
    ends = found["firn_partition_end_offset"]
    assert [one.labels["partition"] for one in ends] == [str(n) for n in range(300)]
    assert {one.labels["topic"] for one in ends} == {'a "b"'}
    assert {one.value for one in ends} == {3}
    assert {one.value for one in found["firn_partition_last_stable_offset_lag"]} == {1}
    assert {one.value for one in found["firn_partition_replica_lag"]} == {2}


def test_no_more_partitions_have_metrics_of_their_own_than_may_and_the_rest_is_counted() -> None:
    text, _ = asyncio.run(rendered(300, most_partitions=120))
    found = {one.name: one.samples for one in parse(text)}
    assert [one.labels["partition"] for one in found["firn_partition_end_offset"]] == [
        str(n) for n in range(120)
    ]
    assert found["firn_partitions_left_out"][0].value == 180
    assert found["firn_partitions"][0].value == 300, "the sums have all"


def test_open_transactions_of_partitions_are_told_by_their_age() -> None:
    totals = PartitionTotals(2_000_000_000, 900_000)
    for last_ms in (None, -1, 2_000_000_000 - 1_200_000, 2_000_000_000 - 1_200_001, 1_999_999_000):
        shown = Shown(1).partitions()[0]
        shown.log.oldest_open = None if last_ms is None else (7, 0, last_ms)
        totals.add(shown)
    found = {one.name: one.value for one in totals.samples(0) if not one.labels}
    assert found == {
        "firn_partitions_with_late_transactions": 1,
        "firn_log_oldest_transaction_seconds": 1200.001,
    }


def test_others_have_their_turn_in_proportion_to_what_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_queues, "SLICE_S", 0)  # each step is a turn
    _, few = asyncio.run(rendered(500, most_partitions=10_000))
    _, many = asyncio.run(rendered(5000, most_partitions=10_000))
    assert few >= 10
    assert many >= 8 * few
    # 100 steps for each of eight families, of which two have no value here, and 5,000 for the sums
    assert many >= 5_000 + 8 * 100


def values_of(node: Shown) -> dict[str, dict[tuple[str, ...], float]]:
    """Values of each family but histograms, by label values in their order."""
    text = asyncio.run(render(cast("ObservedNode", node), 0, most_partitions=0))
    return {
        one.name: {tuple(sorted(sample.labels.values())): sample.value for sample in one.samples}
        for one in parse(b"".join(text).decode())
    }


def test_connections_to_other_nodes_are_counted_by_purpose() -> None:
    node = Shown(0)
    replication = node.network.channel("replication")
    replication.calls, replication.sent_bytes, replication.received_bytes = 7, 100, 2000
    replication.connected, replication.refused, replication.timed_out = 2, 3, 4
    replication.lost, replication.garbage = 5, 6
    node.network.channel("controller").calls = 1
    assert node.network.channel("replication") is replication
    found = values_of(node)
    assert found["firn_peer_requests"] == {("replication",): 7, ("controller",): 1}
    assert found["firn_peer_sent_bytes"][("replication",)] == 100
    assert found["firn_peer_received_bytes"][("replication",)] == 2000
    assert found["firn_peer_connections"][("replication",)] == 2
    failures = {names: n for names, n in found["firn_peer_failures"].items() if "replication" in names}
    assert failures == {
        ("refused", "replication"): 3,
        ("replication", "timed_out"): 4,
        ("lost", "replication"): 5,
        ("malformed", "replication"): 6,
    }


def test_fetch_sessions_are_counted_with_their_partitions_and_evictions() -> None:
    node = Shown(0)
    assert "firn_fetch_sessions" not in values_of(node)
    node.fetch_sessions = sessions = FetchSessions(Purgatory(0), 1, 100, lambda low, high: low)
    session = sessions.open(0, privileged=False, uses_topic_ids=False, size=5)
    assert session is not None
    found = values_of(node)
    assert found["firn_fetch_sessions"] == {(): 1}
    assert found["firn_fetch_session_partitions"] == {(): 5}
    assert found["firn_fetch_session_evictions"] == {(): 0}
    assert sessions.open(1_000_000, privileged=False, uses_topic_ids=False, size=3) is not None
    found = values_of(node)
    assert found["firn_fetch_sessions"] == {(): 1}
    assert found["firn_fetch_session_partitions"] == {(): 3}
    assert found["firn_fetch_session_evictions"] == {(): 1}


def coordinator(report: LagReport) -> Any:
    counts, runtime = GroupMetrics(), RuntimeMetrics()
    counts.offset_commits, counts.consumer_rebalances, runtime.batches = 5, 2, 3
    runtime.flush.observe(0.001)

    def census() -> Steps[Mapping[tuple[str, str], int]]:
        yield
        return {("consumer", "Stable"): 2, ("classic", "Empty"): 1}

    async def lag() -> LagReport:
        return report

    return SimpleNamespace(
        metrics=counts,
        runtime_metrics=runtime,
        partition_states=lambda: {"active": 49, "failed": 1},
        offset_count=lambda: 7,
        census=census,
        lag=lag,
    )


def test_groups_are_counted_by_protocol_and_state() -> None:
    node = Shown(0)
    node.groups = coordinator(
        LagReport(
            [GroupLag("a", 2, {"t": {0: 5, 1: 1}, "u": {3: 0}}), GroupLag("b", 0, {})], left_out=4, unknown=9
        )
    )
    text = asyncio.run(render(cast("ObservedNode", node), 0, most_partitions=0))
    found = {one.name: one.samples for one in parse(b"".join(text).decode())}

    def values(name: str) -> list[tuple[tuple[str, ...], float]]:
        return [(tuple(one.labels.values()), one.value) for one in found[name]]

    assert values("firn_groups") == [(("classic", "Empty"), 1), (("consumer", "Stable"), 2)]
    assert values("firn_group_offsets") == [((), 7)]
    assert values("firn_group_offset_commits") == [((), 5)]
    assert values("firn_group_rebalances") == [(("classic",), 0), (("consumer",), 2)]
    assert values("firn_group_partitions") == [(("active",), 49), (("failed",), 1)]
    assert values("firn_group_members") == [(("a",), 2), (("b",), 0)]
    assert values("firn_group_topic_lag") == [(("a", "t"), 6), (("a", "u"), 0)]
    assert values("firn_group_lag") == [(("a", "0", "t"), 5), (("a", "1", "t"), 1), (("a", "3", "u"), 0)]
    assert values("firn_group_lag_left_out") == [
        (("groups",), 4), (("topics",), 0), (("partitions",), 0), (("unknown",), 9),
    ]  # fmt: skip
    assert values("firn_group_batches") == [((), 3)]
    assert found["firn_group_batch_flush_seconds"][-1].value == 0.001


def lag_lines(*groups: GroupLag) -> dict[str, list[tuple[tuple[str, ...], float]]]:
    found: dict[str, list[tuple[tuple[str, ...], float]]] = {}
    for name, value, labels in of_lag(LagReport(list(groups))):
        assert isinstance(value, int)
        found.setdefault(name, []).append((labels, value))
    return found


def test_lag_takes_a_bounded_part_of_the_text_whatever_groups_there_are() -> None:
    many = {f"topic-{n}": dict.fromkeys(range(100), 10**7) for n in range(100)}
    found = lag_lines(*[GroupLag(f"group-{n}", 1, many) for n in range(200)])
    assert len(found["firn_group_members"]) == 200
    assert len(found["firn_group_topic_lag"]) > 8_000
    text = sum(
        len(f'{name}{{group="{labels[0]}",topic="{labels[-1]}"}} {value}.0\n')
        for name, some in found.items() for labels, value in some
    )  # fmt: skip
    assert text < 800_000
    left_out = {labels[0]: value for labels, value in found["firn_group_lag_left_out"]}
    assert left_out["topics"] + len(found["firn_group_topic_lag"]) == 20_000
    assert left_out["partitions"] + len(found.get("firn_group_lag", ())) == 2_000_000


def test_all_partitions_of_a_group_are_told_or_none_whatever_its_lag() -> None:
    for lag in (0, 10**15):
        large = GroupLag("large", 1, {"topic": dict.fromkeys(range(20_000), lag)})
        small = GroupLag("small", 1, {"topic": {7: lag}})
        found = lag_lines(large, small)
        assert found["firn_group_topic_lag"][0] == (("large", "topic"), 20_000 * lag)
        assert found["firn_group_lag"] == [(("small", "topic", "7"), lag)]


def test_ten_thousand_partitions_of_a_group_fit() -> None:
    found = lag_lines(GroupLag("payments", 1, {"orders": dict.fromkeys(range(10_000), 3)}))
    assert len(found["firn_group_lag"]) == 10_000


def test_a_group_with_a_very_long_id_is_counted_only() -> None:
    found = lag_lines(GroupLag("ü" * 128, 1, {"t": {0: 1}}), GroupLag("ü" * 127, 1, {"t": {0: 1}}))
    assert [labels[0] for labels, _ in found["firn_group_members"]] == ["ü" * 127]
    assert found["firn_group_lag_left_out"][0] == (("groups",), 1)


def test_the_plain_text_has_the_same_values_as_openmetrics() -> None:
    node = cast("ObservedNode", Shown(200))
    texts = [
        b"".join(asyncio.run(render(node, 0, most_partitions=10_000, text_format=one))).decode()
        for one in (PLAIN, OPENMETRICS)
    ]
    of_plain, of_open = [
        {(s.name, tuple(s.labels.items())): s.value for family in read(text) for s in family.samples}
        for read, text in zip((parse_plain, parse), texts, strict=True)
    ]
    assert of_plain == of_open
    assert "# EOF" not in texts[0]
    assert "# TYPE firn_isr_shrinks_total counter" in texts[0]


@pytest.mark.parametrize("text_format", [PLAIN, OPENMETRICS])
def test_no_name_of_a_group_breaks_the_text(text_format: TextFormat) -> None:
    """Its lines end with line feeds alone; some of the names are in a later chunk, whose head is dropped."""
    odd = ("\r# x", "\r\n# EOF\n", "a\u2028# b", "\x85", '"} 9\n', "\\", "\x1b[2J", "\x00")
    names = [f"{one}{n}" for n in range(40) for one in odd]
    node = Shown(0)
    node.groups = coordinator(LagReport([GroupLag(name, n, {}) for n, name in enumerate(names)]))
    text = asyncio.run(render(cast("ObservedNode", node), 0, most_partitions=0, text_format=text_format))
    read = parse_plain if text_format is PLAIN else parse
    found = {one.name: one.samples for one in read(b"".join(text).decode())}
    assert [(one.labels["group"], one.value) for one in found["firn_group_members"]] == [
        (name, n) for n, name in enumerate(names)
    ]


def test_a_compressed_text_is_the_text() -> None:
    text = [bytes(str(n), "ascii") * 20_000 for n in range(5)]
    assert gzip.decompress(b"".join(asyncio.run(compressed(text)))) == b"".join(text)
