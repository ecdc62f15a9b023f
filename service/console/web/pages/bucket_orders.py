"""Section of the bucket page on orders to erase keys: how far each is, what is left, and why. [P]"""

from __future__ import annotations

from service.console.web import words
from service.console.web.frame import Heading, badge, code, notice, section, table, utc_time
from service.console.web.markup import Child, Markup
from service.console.web.order_rows import MOST_TOPICS, LeftCount, OrderRow, OrdersShown


def orders_section(found: OrdersShown, listed: int, now_ms: int) -> Markup | None:
    """Return the section; None without an order. `listed`: number of orders that `CUT` has."""
    if not found.rows and not listed:
        return None
    parts: list[Child] = []
    if found.problem is not None:
        parts.append(notice("warn", found.problem))
    if not found.rows:
        counted = words.counted(listed, "order")
        parts.append(notice("warn", f"The newest cut lists {counted}, of which no broker has told yet."))
    else:
        rows = [_row(one, now_ms) for one in found.rows]
        columns = [
            Heading("Order"), Heading("State"), Heading("Given"), Heading("Keys", True), Heading("Topics"),
            Heading("Replicas left", True), Heading("Archives left", True), Heading("Objects left", True),
            Heading("Cuts left", True), Heading("Waits for"),
        ]  # fmt: skip
        parts.append(table(columns, rows, caption="Orders that are not gone"))
        parts += [_left(one) for one in found.rows if one.left or one.remains]
    return section(
        "Orders to erase keys",
        parts,
        note="As firn erase status tells it. What a done order dropped is deleted after the grace; then the "
        "order is gone.",
    )


def _row(one: OrderRow, now_ms: int) -> list[Child]:
    state: Child = badge("open", "warn")
    if not one.is_open:
        state = [badge("done", "good"), " ", words.ago(one.done_ms, now_ms)]
    topics = ", ".join(one.topics[:MOST_TOPICS])
    if len(one.topics) > MOST_TOPICS:
        topics += f" and {words.count(len(one.topics) - MOST_TOPICS)} more"
    waits: Child = one.waits or words.NOTHING
    if not one.waits and one.grace_until_ms >= 0:
        waits = ["the grace, until ", utc_time(one.grace_until_ms)]
    return [
        code(one.id),
        state,
        words.ago(one.started_ms, now_ms),
        words.count(one.keys),
        topics,
        _share(one.replicas),
        _share(one.archives),
        _share(one.objects),
        _share(one.cuts),
        waits,
    ]


def _share(found: LeftCount) -> str:
    if found.all is None:
        return words.count(found.left)
    return f"{words.count(found.left)} of {words.count(found.all)}"


def _left(one: OrderRow) -> Child:
    rows: list[list[Child]] = [[where, why or words.NOTHING] for where, why in one.left]
    rows += [[code(key), "still in the bucket"] for key in one.remains]
    return table([Heading("Left"), Heading("Why")], rows, caption=f"What is left of order {one.id}")
