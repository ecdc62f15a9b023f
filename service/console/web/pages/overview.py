"""The overview page: nodes, rates, and problems that need attention. [P]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from service.client.admin_models import ClusterInfo, NodeInfo
from service.console.web import words
from service.console.web.finding_list import finding_list, tone_of
from service.console.web.frame import (
    Heading,
    PageContext,
    Tile,
    badge,
    empty,
    failed,
    live,
    page,
    section,
    table,
    tiles,
)
from service.console.web.history import NodeSample
from service.console.web.markup import Child, Markup, el, link
from service.health.findings import Finding


class Overview(NamedTuple):
    """Data of the page. `problem`: why the cluster does not answer; `cluster` is None then."""

    cluster: ClusterInfo | None
    problem: str | None
    topics: int | None
    partitions: int | None
    nodes: Sequence[NodeSample]
    findings: Sequence[Finding]
    series: Mapping[str, Sequence[float]]


CHARTS: Final = (
    ("In and out", "bytes/s", (("produced", "Produced"), ("fetched_disk", "Read from disk"),
                               ("fetched_bucket", "Read from the bucket"))),
    ("To the bucket", "bytes/s", (("uploaded", "Uploaded"),)),
    ("Waiting for upload", "bytes", (("lag_bytes", "Sealed, not in the bucket"),)),
    ("Event loop", "ms", (("turn_p99_ms", "Turn, 99th percentile"),)),
    ("Memory", "bytes", (("memory", "Resident"),)),
    ("Object store", "ms", (("store_p99_ms", "Call, 99th percentile"),)),
)  # fmt: skip
"""Title, unit and series of each chart."""


def render(context: PageContext, found: Overview) -> str:
    return page(
        context,
        "Overview",
        "/",
        live("state", _state(context, found)),
        _charts(found),
        live("nodes", _nodes(found)),
        lead=None if found.cluster is None else ["Cluster ", el("code", found.cluster.cluster_id)],
    )


def _state(context: PageContext, found: Overview) -> list[Child]:
    parts: list[Child] = [finding_list(found.findings, context.now_ms)]
    if found.problem is not None and not any(one.between for one in found.nodes):
        asks = ["The console asks ", el("code", context.bootstrap), " again by itself."]
        return [*parts, failed("The cluster does not answer", found.problem, asks)]
    parts.append(_tiles(found))
    if found.topics == 0:
        parts.append(
            empty(
                "No topics yet",
                [
                    "Create one: ",
                    el("code", f"firn topic create NAME --bootstrap-server {context.bootstrap}"),
                ],
            )
        )
    return parts


def _last(found: Overview, name: str) -> float | None:
    series = found.series.get(name) or ()
    return series[-1] if series else None


def _tiles(found: Overview) -> Markup:
    up = sum(one.between is not None for one in found.nodes)
    turn, lag = _last(found, "turn_p99_ms"), _last(found, "lag_bytes")
    requests = _last(found, "requests")
    offline = sum(
        one.between.now.one("firn_partitions", state="offline") for one in found.nodes if one.between
    )
    read = [value for name in ("fetched_disk", "fetched_bucket") if (value := _last(found, name)) is not None]
    lag_s = max(
        (one.between.now.total("firn_tiering_lag_seconds") for one in found.nodes if one.between), default=0.0
    )
    cold = _last(found, "fetched_bucket")
    return tiles(
        Tile(
            "Nodes", words.count(len(found.cluster.nodes) if found.cluster else len(found.nodes)),
            f"metrics of {up}", tone_of([one for one in found.findings if one.subject != "cluster"]),
        ),
        Tile(
            "Partitions", words.count(found.partitions),
            f"{words.count(found.topics)} topics" + (f", {offline:.0f} offline" if offline else ""),
            tone_of([one for one in found.findings if one.anchor.startswith("partitions-")]),
        ),
        Tile("Produced", words.rate(_last(found, "produced")), f"{words.count(requests)} requests/s"),
        Tile(
            "Read", words.rate(sum(read) if read else None),
            f"{words.rate(cold)} of it from the bucket" if cold is not None else "",
        ),
        Tile("Uploaded", words.rate(_last(found, "uploaded")), "to the bucket"),
        Tile(
            "Waiting for upload", words.size(lag), f"oldest {words.span(lag_s)}" if lag else "nothing waits",
            "warn" if lag_s > 600 else "",
        ),
        Tile("Event loop turn", words.span(None if turn is None else turn / 1000), "99th percentile"),
        Tile("Memory", words.size(_last(found, "memory")), "resident, all nodes"),
    )  # fmt: skip


def _charts(found: Overview) -> Markup:
    cells = []
    for title, unit, series in CHARTS:
        names = " ".join(name for name, _ in series)
        labels = "|".join(label for _, label in series)
        cells.append(
            el(
                "figure",
                el("figcaption", title, el("span", unit, class_="unit")),
                el(
                    "div",
                    [_spark(found.series.get(name) or (), n) for n, (name, _) in enumerate(series[:1])],
                    class_="chart",
                    data_series=names,
                    data_labels=labels,
                    data_unit=unit,
                ),
            )
        )
    return el("section", cells, class_="charts", aria_label="The last quarter of an hour")


def _spark(values: Sequence[float], number: int) -> Markup:
    """Return a line, which the script replaces with a chart."""
    if len(values) < 2:
        return el("p", "Not enough samples yet.", class_="note")
    most = max(values) or 1.0
    step = 300 / (len(values) - 1)
    points = " ".join(f"{n * step:.1f},{78 - 74 * value / most:.1f}" for n, value in enumerate(values))
    return el(
        "svg", el("polyline", points=points, class_=f"series-{number}"), viewBox="0 0 300 80",
        preserveAspectRatio="none", class_="spark", aria_hidden="true",
    )  # fmt: skip


_NODE_COLUMNS: Final = (
    Heading("Node"), Heading("Address"), Heading("State"), Heading("Version"), Heading("Connections", True),
    Heading("CPU", True), Heading("Memory", True), Heading("Loop busy", True), Heading("Longest turn", True),
)  # fmt: skip


def _nodes(found: Overview) -> Markup | None:
    known: dict[int | None, NodeInfo] = {}
    if found.cluster is not None:
        known = {one.node_id: one for one in found.cluster.nodes}
    looks = list(found.nodes)
    looks += [
        NodeSample(node_id, None, None, None, "no sample yet")
        for node_id in known
        if node_id not in {one.node_id for one in looks}
    ]
    if not looks:
        return None
    rows = [_node(one, known.get(one.node_id)) for one in looks]
    return section(
        "Nodes",
        table(_NODE_COLUMNS, rows, caption="Nodes"),
        _turns(found.nodes),
        note="From the nodes' HTTP listeners (firn.http.listener).",
    )


def _node(one: NodeSample, info: NodeInfo | None) -> list[Child]:
    address = f"{info.host}:{info.port}" if info is not None else one.url or words.NOTHING
    name = (
        words.NOTHING
        if one.node_id is None
        else el("a", one.node_id, href=link("/configuration", node=one.node_id))
    )
    if one.between is None:
        state = badge("unknown", "warn")
        return [
            name,
            address,
            [state, " ", el("span", one.problem or "", class_="note")],
            *[words.NOTHING] * 6,
        ]
    between, now = one.between, one.between.now
    ready = bool(now.health.get("ready"))
    return [
        name,
        address,
        badge("ready", "good") if ready else badge("not ready", "bad"),
        one.version or words.NOTHING,
        words.count(now.total("firn_connections")),
        words.share(between.rate("process_cpu_seconds_total")),
        words.size(now.one("process_resident_memory_bytes")),
        words.share(between.rate("firn_loop_turn_seconds_sum")),
        words.span(now.one("firn_loop_longest_turn_seconds")),
    ]


def _turns(nodes: Sequence[NodeSample]) -> Markup | None:
    rows: list[list[Child]] = []
    for one in nodes:
        for turn in one.between.now.turns[:5] if one.between is not None else ():
            took, ended = turn.get("took_ms"), turn.get("ended_s_ago")
            if isinstance(took, int | float) and isinstance(ended, int | float):
                rows.append(
                    [
                        words.NOTHING if one.node_id is None else one.node_id,
                        words.span(took / 1000),
                        f"{words.span(ended)} ago",
                        str(turn.get("who", ""))[:200],
                    ]
                )
    if not rows:
        return None
    columns = [
        Heading("Node"),
        Heading("Took", True),
        Heading("Ended", True),
        Heading("Task"),
    ]
    return el(
        "details",
        el("summary", "The longest turns of the event loop"),
        table(columns, rows, caption="Longest turns"),
    )
