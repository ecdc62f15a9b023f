"""Report on the health of a cluster, as text. [P]"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from service.base.printable import escaped
from service.cli.columns import aligned
from service.client.cluster_health import (
    BrokerLoad,
    ClusterHealth,
    MetadataReplica,
    NodeState,
    PartitionSummary,
    QuorumInfo,
    ReassignmentInfo,
    UnhealthyPartition,
)
from service.health.findings import Finding, Severity

MOST_MOVING: Final = 50
NOTHING: Final = "-"


def format_cluster(found: ClusterHealth) -> list[str]:
    """Return the lines: problems first, then nodes, quorum, brokers, partitions and reassignments."""
    lines = [f"cluster: {escaped(found.cluster_id)}"]
    if found.quorum is not None:
        lines.append(_quorum(found.quorum))
    elif found.is_alone:
        lines.append("quorum: the node is alone")
    if found.partitions is not None:
        lines.append(_partitions(found.partitions))
    if found.moving is not None:
        lines.append(f"reassignments: {len(found.moving)} under way")
    lines += _findings(found.findings)
    for block in _tables(found):
        lines += ["", *block]
    return lines


def _tables(found: ClusterHealth) -> Iterator[list[str]]:
    if found.nodes:
        yield aligned([("node", "roles", "rack", "state", "listeners"), *map(_node, found.nodes)])
    if found.quorum is not None:
        yield _replicas(found.quorum)
    if found.partitions is not None:
        if found.partitions.shares:
            yield _shares(found.partitions)
        if found.partitions.ill:
            yield _ill(found.partitions)
    if found.moving:
        yield _moving(found.moving)


def _findings(findings: Sequence[Finding]) -> list[str]:
    """Return what is wrong, each with what to do, and behind that what is worth a notice."""
    lines = []
    for one in findings:
        kind = "note" if one.severity is Severity.NOTICE else "wrong"
        lines += [f"{kind}: {escaped(one.words)}", f"       {escaped(one.action)} (health.md#{one.anchor})"]
    return lines if any(one.severity > Severity.NOTICE for one in findings) else ["wrong: nothing", *lines]


def _quorum(quorum: QuorumInfo) -> str:
    return (
        f"quorum: leader {quorum.leader}, epoch {quorum.epoch}, high watermark {quorum.high_watermark}, "
        f"voters {numbers(one.node_id for one in quorum.voters)}, "
        f"observers {numbers(one.node_id for one in quorum.observers)}"
    )


def _partitions(found: PartitionSummary) -> str:
    return (
        f"partitions: {found.partitions} of {found.topics} topics; {found.offline} offline, "
        f"{found.under_min_isr} under min ISR, {found.under_replicated} under-replicated, "
        f"{found.with_elr} with ELR, {found.not_preferred} not led by the preferred replica"
    )


def _node(one: NodeState) -> Sequence[str]:
    state = one.state or NOTHING
    return (
        str(one.node_id), ",".join(one.roles) or NOTHING, one.rack or NOTHING, state,
        " ".join(one.listeners) or NOTHING,
    )  # fmt: skip


def _replicas(quorum: QuorumInfo) -> list[str]:
    rows = [("metadata on", "as", "end", "lag", "caught up")]
    rows += [
        _replica(quorum, one, "leader" if one.node_id == quorum.leader else "voter") for one in quorum.voters
    ]
    rows += [_replica(quorum, one, "observer") for one in quorum.observers]
    return aligned(rows)


def _replica(quorum: QuorumInfo, one: MetadataReplica, role: str) -> tuple[str, str, str, str, str]:
    behind = quorum.behind_ms(one)
    return (
        str(one.node_id), role, _number(one.end), _number(quorum.lag(one)),
        NOTHING if behind is None else f"{behind} ms ago",
    )  # fmt: skip


def _shares(found: PartitionSummary) -> list[str]:
    head = ("broker", "leads", "preferred", "follows", "out of sync", "offline")

    def row(node: int, one: BrokerLoad) -> Sequence[str]:
        counts = (node, one.leads, one.preferred, one.follows, one.out_of_sync, one.offline)
        return [str(value) for value in counts]

    return aligned([head, *(row(*one) for one in found.shares.items())])


def _ill(found: PartitionSummary) -> list[str]:
    head = ("partition", "is", "leader", "replicas", "isr", "min isr", "elr", "last known elr")
    lines = aligned([head, *map(_ill_row, found.ill)])
    if rest := found.ill_in_all - len(found.ill):
        lines.append(f"and {rest} more")
    return lines


def _ill_row(one: UnhealthyPartition) -> Sequence[str]:
    state = one.state
    return (
        f"{one.topic}-{state.partition}", one.what.name.lower().replace("_", "-"),
        NOTHING if state.leader < 0 else str(state.leader), numbers(state.replicas), numbers(state.isr),
        str(one.min_isr), numbers(state.elr), numbers(state.last_known_elr),
    )  # fmt: skip


def _moving(found: Sequence[ReassignmentInfo]) -> list[str]:
    rows = [("moving", "replicas", "adding", "removing")]
    rows += [
        (f"{one.topic}-{one.partition}", numbers(one.replicas), numbers(one.adding), numbers(one.removing))
        for one in found[:MOST_MOVING]
    ]
    lines = aligned(rows)
    if rest := len(found) - MOST_MOVING:
        lines += [f"and {rest} more"] if rest > 0 else []
    return lines


def numbers(nodes: Iterable[int]) -> str:
    """Return ids as `1,2,3`; `-` for none."""
    return ",".join(map(str, nodes)) or NOTHING


def _number(value: int | None) -> str:
    return NOTHING if value is None else str(value)
