"""Requests that nodes have sent to the store, by what they are for, with their cost. [P]"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Final, NamedTuple

from service.console.figures import Figures
from service.console.web.costs import FREE, READS, Prices, write_requests
from service.console.web.history import NodeSample

ANSWERS: Final = frozenset({"ObjectNotFound", "PreconditionFailed"})
"""Errors of a store by which callers learn something: no object there yet, another writer was first."""
DAY_S: Final = 86_400.0
LEAST_UPTIME_S: Final = 60.0
"""Uptime below which nothing is said of a day."""
OTHER: Final = "Other calls"
_PURPOSES: Final = {
    ("tiering", "put_stream"): "Segments uploaded",
    ("tiering", "get_suffix"): "Uploads checked",
    ("tiering", "put"): "Manifests, heads and claims written",
    ("tiering", "put_if_absent"): "Manifests, heads and claims written",
    ("tiering", "put_if_match"): "Manifests, heads and claims written",
    ("tiering", "get"): "Manifests, heads and claims read",
    ("tiering", "get_range"): "Manifests, heads and claims read",
    ("tiering", "get_tagged"): "Manifests, heads and claims read",
    ("tiering", "head"): "Manifests, heads and claims read",
    ("tiering", "list"): "Listings, for sweeps and deletions",
    ("tiering", "delete"): "Objects deleted",
    ("read", "get_range"): "Records read",
    ("read", "get"): "Manifests and footers read for readers",
    ("read", "get_suffix"): "Manifests and footers read for readers",
    ("read", "get_tagged"): "Manifests and footers read for readers",
    ("read", "head"): "Manifests and footers read for readers",
    ("read", "list"): "Listings for readers",
}
"""Purpose by client and call, in the order of the table."""


class NodeCalls(NamedTuple):
    """Calls of one kind at one node since its start.

    `requests`: about how many were billed, as a large upload is several; `answers`: those of `ANSWERS`;
    `per_day`: at the average since the start, None for a node that has just started.
    """

    node_id: int | None
    client: str
    call: str
    calls: float
    requests: float
    answers: float
    errors: float
    per_day: float | None

    @property
    def purpose(self) -> str:
        return _PURPOSES.get((self.client, self.call), OTHER)

    def cost(self, requests: float, prices: Prices) -> float:
        """Return what so many of these requests cost."""
        if self.call in FREE:
            return 0.0
        return prices.reads(requests) if self.call in READS else prices.writes(requests)


class Purpose(NamedTuple):
    """Calls of all nodes for one purpose. `prices_1000`: prices of a thousand of its requests."""

    name: str
    calls: float
    requests: float
    answers: float
    errors: float
    cost: float
    per_day: float | None
    day_cost: float | None
    prices_1000: tuple[float, ...]


def calls_of(nodes: Iterable[NodeSample], now_s: float) -> list[NodeCalls]:
    """Return the calls of each node, client and kind."""
    found = []
    for node in nodes:
        if node.between is None:
            continue
        now = node.between.now
        uptime_s = now_s - now.total("process_start_time_seconds")
        sent = _by_call(now, "firn_store_sent_bytes_total")
        failed = _by_call(now, "firn_store_errors_total")
        answers = _by_call(now, "firn_store_errors_total", ANSWERS)
        for place, calls in _by_call(now, "firn_store_call_seconds_count").items():
            requests = calls
            if place[1] == "put_stream" and calls:
                requests = calls * write_requests(int(sent.get(place, 0.0) / calls))
            per_day = requests * DAY_S / uptime_s if uptime_s >= LEAST_UPTIME_S else None
            known = answers.get(place, 0.0)
            errors = failed.get(place, 0.0) - known
            found.append(NodeCalls(node.node_id, *place, calls, requests, known, errors, per_day))
    return found


def _by_call(now: Figures, name: str, kinds: Container[str] | None = None) -> dict[tuple[str, str], float]:
    """Return the sums of a metric by client and call, of these kinds of `error` only."""
    found: dict[tuple[str, str], float] = {}
    for labels, value in now.samples.get(name, {}).items():
        said = dict(labels)
        if kinds is None or said.get("error") in kinds:
            place = said.get("client", ""), said.get("call", "")
            found[place] = found.get(place, 0.0) + value
    return found


def by_purpose(found: Sequence[NodeCalls], prices: Prices) -> list[Purpose]:
    """Return sums by purpose, in the order of `_PURPOSES`."""
    groups: dict[str, list[NodeCalls]] = {name: [] for name in (*_PURPOSES.values(), OTHER)}
    for one in found:
        groups[one.purpose].append(one)
    return [_sum(name, calls, prices) for name, calls in groups.items() if calls]


def _sum(name: str, calls: Sequence[NodeCalls], prices: Prices) -> Purpose:
    days = [one.per_day for one in calls]
    is_known = None not in days
    return Purpose(
        name,
        sum(one.calls for one in calls),
        sum(one.requests for one in calls),
        sum(one.answers for one in calls),
        sum(one.errors for one in calls),
        sum(one.cost(one.requests, prices) for one in calls),
        sum(day or 0.0 for day in days) if is_known else None,
        sum(one.cost(one.per_day or 0.0, prices) for one in calls) if is_known else None,
        tuple(sorted({one.cost(1000, prices) for one in calls})),
    )
