"""Table of the bucket page: requests of the nodes, by what they are for, with their cost. [P]"""

from __future__ import annotations

from collections.abc import Sequence

from service.console.web import words
from service.console.web.costs import MONTH_DAYS, Prices
from service.console.web.frame import Heading, badge, section, table
from service.console.web.history import NodeSample
from service.console.web.markup import Child, Markup, el
from service.console.web.store_requests import NodeCalls, Purpose, by_purpose, calls_of


def requests_section(nodes: Sequence[NodeSample], prices: Prices, now_ms: int) -> Markup | None:
    """Return the section; None if no node has called the store."""
    calls = calls_of(nodes, now_ms / 1000)
    if not calls:
        return None
    purposes = by_purpose(calls, prices)
    columns = [
        Heading("For"),
        Heading("Requests", True, "since the nodes started"),
        Heading("Found nothing, or too late", True, "answers that belong to the work: ObjectNotFound and"
                " PreconditionFailed. They are billed."),
        Heading("Errors", True),
        Heading("A thousand cost", True), Heading("Cost so far", True),
        Heading("Requests a day", True, "at the average since the nodes started"),
        Heading("Cost a day", True), Heading("A month", True),
    ]  # fmt: skip
    return section(
        "Requests",
        table(
            columns,
            [_row(one, prices) for one in purposes],
            caption="Requests by what they are for",
            foot=_total(purposes, prices),
        ),
        el("details", el("summary", "By node and call"), _by_node(calls, prices)),
        note="As the nodes have counted since their start. An upload beyond 8 MiB is several requests:"
        " their number is estimated from the average size.",
    )


def _row(one: Purpose, prices: Prices) -> list[Child]:
    price: Child = "free"
    if any(one.prices_1000):
        price = " or ".join(words.money(each, prices.currency) for each in one.prices_1000)
    return [
        one.name,
        words.count(one.requests),
        words.count(one.answers),
        badge(words.count(one.errors), "warn") if one.errors else "0",
        price,
        words.money(one.cost, prices.currency),
        words.count(one.per_day),
        words.money(one.day_cost, prices.currency),
        words.money(None if one.day_cost is None else MONTH_DAYS * one.day_cost, prices.currency),
    ]


def _total(purposes: Sequence[Purpose], prices: Prices) -> list[Child]:
    days = [one.day_cost for one in purposes]
    day = None if None in days else sum(each or 0.0 for each in days)
    return [
        "All",
        words.count(sum(one.requests for one in purposes)),
        words.count(sum(one.answers for one in purposes)),
        words.count(sum(one.errors for one in purposes)),
        "",
        words.money(sum(one.cost for one in purposes), prices.currency),
        words.count(None if day is None else sum(one.per_day or 0.0 for one in purposes)),
        words.money(day, prices.currency),
        words.money(None if day is None else MONTH_DAYS * day, prices.currency),
    ]


def _by_node(calls: Sequence[NodeCalls], prices: Prices) -> Markup:
    rows: list[list[Child]] = [
        [
            f"node {one.node_id}" if one.node_id is not None else words.NOTHING,
            f"{one.client}: {one.call}",
            words.count(one.calls),
            words.count(one.answers),
            words.count(one.errors),
            words.money(one.cost(one.requests, prices), prices.currency),
        ]
        for one in calls
    ]
    columns = [
        Heading("Node"), Heading("Call"), Heading("Calls", True), Heading("Found nothing, or too late", True),
        Heading("Errors", True), Heading("Cost so far", True),
    ]  # fmt: skip
    return table(columns, rows, caption="Calls by node")
