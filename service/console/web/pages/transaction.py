"""The page of one transactional id: its state, and the partitions of its transaction. [P]"""

from __future__ import annotations

from typing import Final, NamedTuple

from service.client.transaction_models import MOST_SCANNED, OpenPartition, TransactionPlaces
from service.console.web import words
from service.console.web.frame import (
    Heading,
    PageContext,
    badge,
    code,
    facts,
    failed,
    live,
    notice,
    page,
    section,
    table,
    utc_time,
)
from service.console.web.markup import Child, Markup, el, link
from service.console.web.pages.transactions import MOST_SHOWN, state
from service.console.web.transaction_filter import OPEN_STATES

MOST_ROWS: Final = 500


class TransactionPage(NamedTuple):
    """Data of the page; `problem`: why there is no `found`."""

    transactional_id: str
    found: TransactionPlaces | None
    problem: str | None = None
    status: int = 200


_COLUMNS: Final = (
    Heading("Topic"), Heading("Partition", True), Heading("First offset", True), Heading("Last record"),
    Heading("Hangs", False, "no coordinator will end it in this partition"),
)  # fmt: skip


def render(context: PageContext, data: TransactionPage) -> str:
    title = data.transactional_id[:MOST_SHOWN] or "(the empty id)"
    back = el("p", el("a", "All transactions", href="/transactions"))
    if data.found is None:
        head = "No such transactional id" if data.status == 404 else "This transaction cannot be shown"
        return page(context, title, "/transactions", failed(head, data.problem or ""), back)
    found = data.found
    return page(
        context,
        title,
        "/transactions",
        live("transaction", _facts(context, found)),
        live("transaction-partitions", _partitions(context, found)),
        lead=el("a", "All transactions", href="/transactions"),
    )


def _facts(context: PageContext, found: TransactionPlaces) -> Markup:
    info = found.info
    since: Child = words.NOTHING
    if info.start_ms is not None:
        since = [utc_time(info.start_ms), f", {words.ago(info.start_ms, context.now_ms)}"]
    is_open = info.state in OPEN_STATES
    return facts(
        ("State", state(info.state)),
        ("Open since" if is_open else "Last transaction began", since),
        ("Timeout", words.span(info.timeout_ms / 1000)),
        ("Producer id", info.producer_id),
        ("Producer epoch", info.producer_epoch),
        ("Coordinator", el("a", f"node {info.node}", href=link("/configuration", node=info.node))),
    )


def _partitions(context: PageContext, found: TransactionPlaces) -> Markup:
    parts: list[Child] = [notice("bad", f"Not known: {one}") for one in found.problems[:50]]
    hanging = [one for one in found.partitions if one.hangs]
    if hanging:
        one = hanging[0]
        parts.append(
            notice(
                "bad",
                f"Hangs in {len(hanging)} partition{'s' if len(hanging) > 1 else ''}: the coordinator "
                "does not know that they belong to this transaction, and will not end it there. To end it: ",
                code(
                    f"firn transaction abort --topic {one.topic} --partition {one.partition}"
                    f" --start-offset {one.first_offset}"
                ),
            )
        )
    shown = found.partitions[:MOST_ROWS]
    if shown:
        parts.append(table(_COLUMNS, [_row(context, one) for one in shown], caption="Partitions"))
    else:
        parts.append(notice("", "No partition belongs to a transaction of this id now."))
    if rest := len(found.partitions) - len(shown):
        parts.append(notice("", f"{words.count(rest)} more partitions."))
    if not found.is_whole:
        parts.append(
            notice(
                "",
                f"The cluster has more than {MOST_SCANNED:,} partitions: only those that the coordinator "
                "names were searched. ",
                el("a", "Search a topic for hanging transactions", href="/transactions/hanging"),
            )
        )
    return section("Partitions", parts, note="Partitions whose markers are still to be written.")


def _row(context: PageContext, one: OpenPartition) -> list[Child]:
    first: Child = el("span", words.NOTHING, title="no record of this transaction is open there")
    if one.first_offset is not None:
        first = el(
            "a",
            f"{one.first_offset:,}",
            href=link(
                "/records", topic=one.topic, partition=one.partition, where="offset", at=one.first_offset
            ),
        )
    return [
        el("a", one.topic, href=link("/topic", name=one.topic, partition=one.partition)),
        one.partition,
        first,
        el("time", words.ago(one.last_timestamp_ms, context.now_ms)),
        badge("hangs", "bad") if one.hangs else "no",
    ]
