"""The page of cold reads: downloads, caches, read-ahead, and call times of the store. [P]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from service.console.figures import Between, Figures
from service.console.web import words
from service.console.web.frame import (
    Heading,
    PageContext,
    Tile,
    badge,
    empty,
    failed,
    live,
    notice,
    page,
    section,
    table,
    tiles,
)
from service.console.web.history import NodeSample
from service.console.web.markup import Child, Markup, el
from service.console.web.store_requests import ANSWERS

QUANTILES: Final = (0.5, 0.9, 0.99)


class ColdPage(NamedTuple):
    """Data of the page; `problem`: why the cluster does not answer."""

    nodes: Sequence[NodeSample]
    problem: str | None


def render(context: PageContext, found: ColdPage) -> str:
    looks = [one for one in found.nodes if one.between is not None]
    with_tier = [one for one in looks if "firn_cache_hits_total" in one.between.now.samples]  # type: ignore[union-attr]
    if with_tier:
        content: Child = live("cold", [_node(one) for one in with_tier])
    elif looks:
        content = empty("No cold tier", "The nodes have no firn.remote.url: all data is on their disks.")
    else:
        why = found.problem or next((one.problem for one in found.nodes if one.problem), None)
        content = live(
            "cold",
            failed(
                "No node's metrics can be read",
                why or "no sample yet",
                ["Nodes serve metrics where ", el("code", "firn.http.listener"), " is set."],
            ),
        )
    return page(
        context,
        "Cold reads",
        "/cold",
        content,
        lead="Cost and wait times of reads of old records.",
    )


def _node(one: NodeSample) -> list[Child]:
    between = one.between
    assert between is not None
    title = f"Node {one.node_id}" if one.node_id is not None else one.url or "A node"
    now = between.now
    if not now.one("firn_cache_hits_total") + now.one("firn_cache_misses_total"):
        idle = notice("", "No record has been read from the bucket since the node started.")
        more = el("details", el("summary", "Caches and calls of the store"), _cache(between), _calls(between))
        return [section(title, _tiles(between), idle, more)]
    return [section(title, _tiles(between), _cache(between), _calls(between))]


def _tiles(between: Between) -> Markup:
    now = between.now
    hits, misses = now.one("firn_cache_hits_total"), now.one("firn_cache_misses_total")
    lookups = hits + misses
    wait = Between(None, now).quantile("firn_fetch_wait_seconds", 0.99, reason="bucket")
    reachable = [
        now.one("firn_store_reachable", client=one) for one in now.values("firn_store_reachable", "client")
    ]
    is_up = all(reachable)
    return tiles(
        Tile("Store", "reachable" if is_up else "away", f"{len(reachable)} clients", "" if is_up else "bad"),
        Tile("Read from the bucket", words.rate(between.rate("firn_fetched_bytes_total", tier="bucket")),
             f"{words.size(now.one('firn_fetched_bytes_total', tier='bucket'))} since the start"),
        Tile("Found in memory", words.share(hits / lookups) if lookups else words.NOTHING,
             f"{words.count(hits)} of {words.count(lookups)}"),
        Tile("Streams", words.count(now.one("firn_cache_streams")),
             f"{words.count(now.one('firn_fetches_waiting'))} fetches are waiting"),
        Tile("Downloads now", words.count(now.one("firn_cache_downloads")),
             f"{words.count(now.one('firn_cache_read_ahead_total'))} read ahead so far"),
        Tile("Cached", words.size(now.one("firn_memory_bytes", owner="cold_cache")), "in memory"),
        Tile("Fetches wait", words.span(wait) if wait else words.NOTHING, "99th percentile, for the bucket"),
        Tile("Given up", words.count(now.one("firn_cache_failures_total")),
             f"{words.count(now.one('firn_cache_retries_total'))} retried"),
    )  # fmt: skip


_COUNTS: Final = (
    ("firn_cache_hits_total", "Found in memory"),
    ("firn_cache_misses_total", "Not in memory"),
    ("firn_cache_disk_hits_total", "Found in the cache on disk"),
    ("firn_cache_read_ahead_total", "Downloads begun by read-ahead"),
    ("firn_cache_second_tries_total", "Hedged requests for late downloads"),
    ("firn_cache_second_tries_won_total", "Hedged requests that were answered first"),
    ("firn_cache_retries_total", "Downloads retried"),
    ("firn_cache_refused_total", "Not begun because the store is paused or refuses the object"),
    ("firn_cache_asleep", "Requested objects in an archive class"),
    ("firn_cache_failures_total", "Downloads given up"),
)


def _cache(between: Between) -> Markup:
    rows: list[list[Child]] = [
        [label, words.count(between.now.one(name)), words.decimal(between.rate(name))]
        for name, label in _COUNTS
    ]
    rows.append(
        [
            "Bytes downloaded",
            words.size(between.now.one("firn_cache_downloaded_bytes_total")),
            words.rate(between.rate("firn_cache_downloaded_bytes_total")),
        ]
    )
    memory = [
        [owner, words.size(between.now.one("firn_memory_bytes", owner=owner))]
        for owner in between.now.values("firn_memory_bytes", "owner")
    ]
    columns = [
        Heading("Caches and downloads"),
        Heading("Since the start", True),
        Heading("Per second", True),
    ]
    return el(
        "div",
        table(columns, rows, caption="Caches and downloads"),
        table([Heading("Memory held by"), Heading("Now", True)], memory, caption="Memory by owner"),
        class_="pair",
    )


def _errors(now: Figures, client: str, call: str) -> float:
    """Return the number of failed calls, without `ANSWERS`."""
    total = now.total("firn_store_errors_total", client=client, call=call)
    answers = (now.total("firn_store_errors_total", client=client, call=call, error=one) for one in ANSWERS)
    return total - sum(answers)


def _calls(between: Between) -> Markup:
    now = between.now
    since = Between(None, now)
    rows: list[list[Child]] = []
    for labels in now.samples.get("firn_store_call_seconds_count", {}):
        client, call = dict(labels).get("client", ""), dict(labels).get("call", "")
        errors = _errors(now, client, call)
        rows.append(
            [
                f"{client}: {call}",
                words.count(now.total("firn_store_call_seconds_count", client=client, call=call)),
                words.decimal(between.rate("firn_store_call_seconds_count", client=client, call=call)),
                *[
                    words.span(since.quantile("firn_store_call_seconds", share, client=client, call=call))
                    for share in QUANTILES
                ],
                badge(words.count(errors), "warn") if errors else "0",
                words.size(now.total("firn_store_received_bytes_total", client=client, call=call)),
                words.size(now.total("firn_store_sent_bytes_total", client=client, call=call)),
            ]
        )
    columns = [
        Heading("Calls of the store"), Heading("Since the start", True), Heading("Per second", True),
        Heading("Half within", True), Heading("90 % within", True), Heading("99 % within", True),
        Heading("Errors", True, "without answers that belong to the work, as ObjectNotFound"),
        Heading("Received", True), Heading("Sent", True),
    ]  # fmt: skip
    if not rows:
        return el("p", "No call of the store yet.", class_="note")
    return table(columns, rows, caption="Calls of the store")
