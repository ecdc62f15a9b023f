"""The pages of all transactional ids, in pages and by filters, and of hanging transactions. [P]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from service.client.transaction_models import (
    HangingTransaction,
    PartitionTransaction,
    TransactionInfo,
    TransactionRow,
)
from service.console.web import words
from service.console.web.frame import (
    Heading,
    PageContext,
    badge,
    code,
    empty,
    failed,
    field,
    live,
    notice,
    page,
    pager,
    section,
    select,
    table,
)
from service.console.web.markup import Child, Markup, el, encoded, link
from service.console.web.transaction_filter import MOST_PATTERN, STATES, TransactionListFilter

PER_PAGE: Final = 50
MOST_HANGING: Final = 200
OLD_MS: Final = 5_000
"""Age from which a list says how old it is: one that takes long is renewed rarely."""
MOST_LINKED: Final = 3_000
"""Longest id, as an address has it, that is a link: requests have a longest line."""
MOST_SHOWN: Final = 200
_TONES: Final = {
    "Ongoing": "water", "PrepareCommit": "warn", "PrepareAbort": "warn", "PrepareEpochFence": "warn",
    "CompleteCommit": "good",
}  # fmt: skip
AGES: Final = (
    (900_000, "15 minutes (transaction.max.timeout.ms)"), (3_600_000, "1 hour"), (60_000, "1 minute"),
    (0, "any age"),
)  # fmt: skip


class Listed(NamedTuple):
    """All ids that match, and the state of those that are open; `problems` of nodes that did not answer."""

    rows: tuple[TransactionRow, ...]
    infos: Mapping[str, TransactionInfo]
    open: int
    problems: tuple[str, ...]


class TransactionsPage(NamedTuple):
    """Data of the list. `listed` is None where `problem` says why."""

    wanted: TransactionListFilter
    listed: Listed | None = None
    number: int = 1
    problem: str | None = None
    status: int = 200
    age_ms: int = 0


class HangingPage(NamedTuple):
    """Data of the page of hanging transactions; `cut`: number of partitions that were not looked at."""

    topic: str
    older_than_ms: int
    rows: Sequence[HangingTransaction] = ()
    problems: Sequence[str] = ()
    cut: int = 0
    is_searched: bool = False
    problem: str | None = None
    status: int = 200


_COLUMNS: Final = (
    Heading("Transactional id"), Heading("State"), Heading("Open for", True), Heading("Timeout", True),
    Heading("Partitions", True, "partitions of the open transaction"), Heading("Producer id", True),
    Heading("Coordinator", True, "The node that leads the id's partition of __transaction_state"),
)  # fmt: skip


def render(context: PageContext, found: TransactionsPage) -> str:
    parts: list[Child] = [_form(found.wanted)]
    lead: Child = None
    if found.problem is not None or found.listed is None:
        head = "These transactions cannot be listed"
        parts.append(failed(head, found.problem or "no answer"))
    else:
        listed = found.listed
        pages = max(-(-len(listed.rows) // PER_PAGE), 1)
        parts.append(live("transactions", _list(context, found, listed)))
        parts.append(
            pager("/transactions", found.number, found.number < pages, pages, **found.wanted.query())
        )
        lead = (
            f"{words.counted(len(listed.rows), 'transactional id')}"
            f"{'' if found.wanted.is_any else ' found'}, {words.count(listed.open)} with an open transaction"
            + (f"; {words.span(found.age_ms / 1000)} ago" if found.age_ms >= OLD_MS else "")
        )
    parts.append(_hanging_form("", AGES[0][0]))
    return page(context, "Transactions", "/transactions", parts, lead=lead)


def _form(wanted: TransactionListFilter) -> Markup:
    states = [("", "any state"), *((one, one) for one in STATES)]
    longer = wanted.longer_than_s
    return el(
        "form",
        field("State", select("state", wanted.state, states)),
        field(
            "Producer id",
            el(
                "input", name="producer", value=wanted.producer_id, inputmode="numeric", maxlength=19, size=10
            ),
        ),
        field(
            "Id matches",
            el(
                "input", type="search", name="pattern", value=wanted.pattern, maxlength=MOST_PATTERN,
                placeholder="billing-.*", data_search=True,
            ),
        ),
        field(
            "Open longer than (s)",
            el("input", type="number", name="longer", min=0, value="" if longer is None else longer),
        ),
        el("button", "Find", type="submit"),
        method="get",
        action="/transactions",
        class_="row-form",
        role="search",
    )  # fmt: skip


def _list(context: PageContext, found: TransactionsPage, listed: Listed) -> list[Child]:
    parts: list[Child] = [notice("bad", f"Ids of a node are missing: {one}") for one in listed.problems]
    here = listed.rows[(found.number - 1) * PER_PAGE : found.number * PER_PAGE]
    if here:
        rows = [_row(context, one, listed.infos.get(one.transactional_id)) for one in here]
        parts.append(table(_COLUMNS, rows, caption="Transactions"))
    elif found.wanted.is_any:
        parts.append(
            empty(
                "No transactional ids yet", "An id exists as soon as a producer with transactional.id starts."
            )
        )
    else:
        parts.append(notice("", "No transactional id matches."))
    return parts


def _row(context: PageContext, one: TransactionRow, info: TransactionInfo | None) -> list[Child]:
    start_ms = None if info is None else info.start_ms
    return [
        id_link(one.transactional_id),
        state(one.state),
        words.NOTHING if start_ms is None else words.span(max(context.now_ms - start_ms, 0) / 1000),
        words.NOTHING if info is None else words.span(info.timeout_ms / 1000),
        words.NOTHING if info is None else words.count(len(info.partitions)),
        one.producer_id,
        el("a", one.node, href=link("/configuration", node=one.node)),
    ]


def id_link(transactional_id: str) -> Markup:
    """Return an id that leads to its page; one that no address can hold is shown alone."""
    shown = transactional_id[:MOST_SHOWN] + ("…" if len(transactional_id) > MOST_SHOWN else "")
    if len(encoded(transactional_id)) > MOST_LINKED:
        return code(shown)
    return el("a", shown, href=link("/transaction", id=transactional_id))


def state(name: str) -> Markup:
    return badge(name, _TONES.get(name, ""))


def _hanging_form(topic: str, older_than_ms: int) -> Markup:
    ages = [(str(ms), label) for ms, label in AGES]
    form = el(
        "form",
        field("Topic", el("input", name="topic", value=topic, required=True, maxlength=249)),
        field("Last record older than", select("older", str(older_than_ms), ages)),
        el("button", "Find hanging transactions", type="submit"),
        method="get",
        action="/transactions/hanging",
        class_="row-form",
    )
    return section(
        "Hanging transactions",
        form,
        note="Open in a partition, and known to no coordinator: readers of committed records wait for ever.",
    )


_HANGING: Final = (
    Heading("Partition"), Heading("First offset", True), Heading("Producer id", True), Heading("Epoch", True),
    Heading("Transactional id"), Heading("Last record"),
)  # fmt: skip


def render_hanging(context: PageContext, found: HangingPage) -> str:
    parts: list[Child] = [_hanging_form(found.topic, found.older_than_ms)]
    if found.problem is not None:
        parts.append(failed("This topic cannot be searched", found.problem))
    elif found.is_searched:
        parts += [notice("bad", f"Not searched: {one}") for one in found.problems[:50]]
        if found.cut:
            parts.append(notice("warn", f"{words.count(found.cut)} more partitions were not searched."))
        parts += _hanging(context, found)
    return page(
        context,
        "Hanging transactions",
        "/transactions",
        parts,
        lead=el("a", "All transactions", href="/transactions"),
    )


def _hanging(context: PageContext, found: HangingPage) -> list[Child]:
    if not found.rows:
        return [notice("", f"No transaction hangs in {found.topic}.")]
    rows = [_hanging_row(context, *one) for one in found.rows[:MOST_HANGING]]
    rest = len(found.rows) - len(rows)
    one = found.rows[0].open
    return [
        table(_HANGING, rows, caption="Hanging transactions"),
        notice("", f"{words.count(rest)} more transactions hang.") if rest else None,
        notice(
            "",
            "To end one: ",
            code(
                f"firn transaction abort --topic {one.topic} --partition {one.partition}"
                f" --start-offset {one.first_offset}"
            ),
        ),
    ]


def _hanging_row(
    context: PageContext, one: PartitionTransaction, transactional_id: str | None
) -> list[Child]:
    return [
        el("a", f"{one.topic}-{one.partition}", href=link("/topic", name=one.topic, partition=one.partition)),
        el(
            "a",
            f"{one.first_offset:,}",
            href=link(
                "/records", topic=one.topic, partition=one.partition, where="offset", at=one.first_offset
            ),
        ),
        one.producer_id,
        one.producer_epoch,
        words.NOTHING if transactional_id is None else id_link(transactional_id),
        el("time", words.ago(one.last_timestamp_ms, context.now_ms)),
    ]
