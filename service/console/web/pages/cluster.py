"""The cluster page: nodes, the quorum and its replicas, unhealthy partitions, reassignments. [P]"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from service.client.admin_models import ClusterInfo
from service.client.cluster_health import (
    BrokerLoad,
    MetadataReplica,
    NodeState,
    PartitionProblem,
    PartitionSummary,
    QuorumInfo,
    ReassignmentInfo,
    UnhealthyPartition,
)
from service.console.web import words
from service.console.web.finding_list import finding_list
from service.console.web.frame import (
    Heading,
    PageContext,
    Tile,
    badge,
    failed,
    live,
    notice,
    page,
    section,
    table,
    tiles,
)
from service.console.web.markup import Child, Markup, el, link
from service.health.findings import Finding
from service.health.judge import OK

MOST_ILL: Final = 100
MOST_MOVING: Final = 100
MOST_NODES: Final = 200


class ClusterPage(NamedTuple):
    """Data of the page. `problem`: why there is none; `is_stale`: nobody vouches for what it says; `info`:
    the cluster, as the broker with the newest metadata knows it.

    `partitions` were counted `age_ms` ago, None during the first count.
    """

    cluster_id: str = ""
    nodes: Sequence[NodeState] = ()
    quorum: QuorumInfo | None = None
    is_alone: bool = False
    partitions: PartitionSummary | None = None
    age_ms: int = 0
    moving: Sequence[ReassignmentInfo] | None = None
    findings: Sequence[Finding] = ()
    problem: str | None = None
    is_stale: bool = False
    info: ClusterInfo | None = None


_NODES: Final = (
    Heading("Node"), Heading("Roles"), Heading("Rack"), Heading("State"), Heading("Addresses"),
    Heading("Leads", True, "Partitions that it leads"),
    Heading("Preferred", True, "Partitions whose preferred leader it is"),
    Heading("Follows", True, "Partitions that it holds and does not lead"),
    Heading("Out of sync", True, "Replicas of it that are not in sync"),
    Heading("Offline", True, "Replicas of it that are offline"),
)  # fmt: skip
_REPLICAS: Final = (
    Heading("Node"), Heading("Is"), Heading("End", True), Heading("Lag", True, "Records behind the leader"),
    Heading("Caught up", True, "Time at which it was last caught up, by the leader's clock"),
)  # fmt: skip
_ILL: Final = (
    Heading("Partition"), Heading("Is"), Heading("Leader", True), Heading("Replicas"), Heading("In sync"),
    Heading("Min ISR", True), Heading("ELR", False, "Eligible leaders that are out of the ISR (KIP-966)"),
    Heading("Last known ELR"),
)  # fmt: skip
_MOVING: Final = (Heading("Partition"), Heading("Replicas"), Heading("Adding"), Heading("Removing"))
_WORDS: Final[Mapping[PartitionProblem, tuple[str, str]]] = {
    PartitionProblem.OFFLINE: ("offline", "bad"),
    PartitionProblem.UNDER_MIN_ISR: ("under min ISR", "bad"),
    PartitionProblem.UNDER_REPLICATED: ("under-replicated", "warn"),
}


def render(context: PageContext, found: ClusterPage) -> str:
    if found.problem is not None:
        return page(
            context,
            "Cluster",
            "/cluster",
            live("cluster", finding_list(found.findings, context.now_ms)),
            failed("The cluster does not answer", found.problem),
        )
    return page(
        context,
        "Cluster",
        "/cluster",
        live("cluster", finding_list(found.findings, context.now_ms), _tiles(found)),
        live("cluster-nodes", _nodes(found)),
        live("quorum", _quorum(found)),
        live("ill", _ill(found)),
        live("moving", _moving(found.moving)),
        lead=["Cluster ", el("code", found.cluster_id)],
    )


def _tiles(found: ClusterPage) -> Markup:
    ill = Counter(one.state for one in found.nodes if one.state not in ("", OK))
    counted = found.partitions
    shown = [
        Tile(
            "Nodes", words.count(len(found.nodes)),
            ", ".join(f"{count} {state}" for state, count in ill.items()) or "all ok", "bad" if ill else "",
        ),
        _quorum_tile(found),
    ]  # fmt: skip
    if counted is None:
        return tiles(*shown, Tile("Partitions", words.NOTHING, "being counted"))
    age = f"{words.span(found.age_ms / 1000)} ago" if found.age_ms >= 10_000 else "now"
    age = "stale" if found.is_stale else age
    elr, under = f"{words.count(counted.with_elr)} with ELR", counted.under_min_isr
    return tiles(
        *shown,
        Tile("Partitions", words.count(counted.partitions), f"{words.count(counted.topics)} topics, {age}"),
        Tile("Offline", words.count(counted.offline), "no leader", "bad" if counted.offline else ""),
        Tile("Under min ISR", words.count(under), elr, "bad" if under else ""),
        Tile(
            "Under-replicated", words.count(counted.under_replicated), "fewer in sync than replicas",
            "warn" if counted.under_replicated else "",
        ),
    )  # fmt: skip


def _quorum_tile(found: ClusterPage) -> Tile:
    quorum = found.quorum
    if quorum is None:
        return Tile(
            "Quorum", "alone" if found.is_alone else words.NOTHING, "one node" if found.is_alone else ""
        )
    away = sum(quorum.is_away(one) for one in quorum.voters)
    voters = words.count(len(quorum.voters))
    return Tile(
        "Quorum", f"led by {quorum.leader}", f"{voters} voters, {away} away" if away else f"{voters} voters",
        "bad" if away else "",
    )  # fmt: skip


def _nodes(found: ClusterPage) -> Markup:
    shares = found.partitions.shares if found.partitions is not None else {}
    rows = [_node(one, shares.get(one.node_id)) for one in found.nodes[:MOST_NODES]]
    return section(
        "Nodes",
        table(_NODES, rows, caption="Nodes"),
        _rest(len(found.nodes) - MOST_NODES, "nodes"),
        note=_imbalance(found.partitions),
    )


def _imbalance(counted: PartitionSummary | None) -> str | None:
    if counted is None or not counted.not_preferred:
        return None
    return f"{words.count(counted.not_preferred)} partitions are not led by their preferred replica."


def _node(one: NodeState, share: BrokerLoad | None) -> list[Child]:
    state: Child = words.NOTHING
    if one.state:
        state = badge(one.state, "good" if one.state == OK else "bad")
    counts: Iterable[int | None] = [None] * 5
    if share is not None:
        counts = (share.leads, share.preferred, share.follows, share.out_of_sync, share.offline)
    return [
        el("a", one.node_id, href=link("/configuration", node=one.node_id))
        if one.is_fenced is False
        else one.node_id,
        ", ".join(one.roles) or words.NOTHING,
        one.rack or words.NOTHING,
        state,
        ", ".join(one.listeners) or words.NOTHING,
        *map(words.count, counts),
    ]


def _quorum(found: ClusterPage) -> Markup | None:
    quorum = found.quorum
    if quorum is None:
        return None
    rows = [_replica(quorum, one, is_voter=True) for one in quorum.voters]
    rows += [_replica(quorum, one, is_voter=False) for one in quorum.observers[:MOST_NODES]]
    return section(
        "Quorum",
        table(_REPLICAS, rows, caption="Replicas of the metadata log"),
        _rest(len(quorum.observers) - MOST_NODES, "observers"),
        note=f"Epoch {quorum.epoch}, high watermark {words.count(quorum.high_watermark)}.",
    )


def _replica(quorum: QuorumInfo, one: MetadataReplica, *, is_voter: bool) -> list[Child]:
    behind = quorum.behind_ms(one)
    role: Child = "observer"
    if is_voter:
        role = badge("leader", "good") if one.node_id == quorum.leader else "voter"
    if is_voter and quorum.is_away(one):
        role = [role, " ", badge("away", "bad")]
    return [
        one.node_id,
        role,
        words.count(one.end),
        words.count(quorum.lag(one)),
        words.NOTHING if behind is None else f"{words.span(behind / 1000)} ago" if behind else "now",
    ]


def _ill(found: ClusterPage) -> Markup | None:
    counted = found.partitions
    if counted is None:
        return None
    if not counted.ill_in_all and found.is_stale:
        return section("Unhealthy", notice("bad", "Not known: the metadata are stale."))
    if not counted.ill_in_all:
        return section("Unhealthy", notice("", "All replicas of all partitions are in sync."))
    return section(
        "Unhealthy partitions",
        table(_ILL, [_ill_row(one) for one in counted.ill], caption="Unhealthy partitions"),
        _rest(counted.ill_in_all - len(counted.ill), "unhealthy partitions"),
        note="The worst first.",
    )


def _ill_row(one: UnhealthyPartition) -> list[Child]:
    state, (what, tone) = one.state, _WORDS[one.what]
    return [
        _place(one.topic, state.partition),
        badge(what, tone),
        words.NOTHING if state.leader < 0 else state.leader,
        _ids(state.replicas),
        _ids(state.isr),
        one.min_isr,
        _ids(state.elr),
        _ids(state.last_known_elr),
    ]


def _moving(found: Sequence[ReassignmentInfo] | None) -> Markup | None:
    if found is None:
        return None
    if not found:
        return section("Reassignments", notice("", "None is under way."))
    rows: list[list[Child]] = [
        [_place(one.topic, one.partition), _ids(one.replicas), _ids(one.adding), _ids(one.removing)]
        for one in found[:MOST_MOVING]
    ]
    return section(
        "Reassignments",
        table(_MOVING, rows, caption="Reassignments under way"),
        _rest(len(found) - MOST_MOVING, "reassignments"),
        note=f"{words.count(len(found))} under way.",
    )


def _place(topic: str, partition: int) -> Markup:
    return el("a", f"{topic}-{partition}", href=link("/topic", name=topic, partition=partition))


def _ids(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes)) or words.NOTHING


def _rest(count: int, what: str) -> Markup | None:
    return notice("", f"{words.count(count)} more {what}.") if count > 0 else None
