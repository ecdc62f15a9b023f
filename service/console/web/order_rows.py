"""Orders to erase keys as the bucket page shows them: how far each is, what is left of it, and why. [P]

Rows come from brokers, in documents: what a broker of another version leaves out is shown as unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

MOST_LEFT: Final = 20
"""Places of one order that are named."""
MOST_TOPICS: Final = 5


class LeftCount(NamedTuple):
    """So many of all are left; None for what nobody tells."""

    left: int | None
    all: int | None = None


class OrderRow(NamedTuple):
    """An order. `replicas`, `archives` and `cuts` are the keeper's, `objects` what leaders of archives have
    still to look at; `left` names some places, with why they wait where their leaders say so; `waits` is of
    the order as a whole. Wall clock; `done_ms` and `grace_until_ms` are -1 while it is open."""

    id: str
    is_open: bool
    started_ms: int
    done_ms: int
    grace_until_ms: int
    keys: int
    topics: tuple[str, ...]
    waits: str
    replicas: LeftCount
    archives: LeftCount
    objects: LeftCount
    cuts: LeftCount
    left: tuple[tuple[str, str], ...]
    remains: tuple[str, ...]


class OrdersShown(NamedTuple):
    """Orders as brokers tell of them; `problem`: why they tell nothing, or which of them do not."""

    rows: tuple[OrderRow, ...] = ()
    problem: str | None = None


class ToldOrders(Protocol):
    """Orders as brokers tell them (`client.erasures.FoundOrders`)."""

    @property
    def orders(self) -> Mapping[str, Mapping[str, Any]]: ...
    @property
    def problems(self) -> Sequence[Mapping[str, Any]]: ...
    @property
    def progress(self) -> Sequence[Mapping[str, Any]]: ...
    @property
    def silent(self) -> Sequence[str]: ...
    @property
    def away(self) -> Sequence[str]: ...
    @property
    def keeper(self) -> int | None: ...


def orders_of(found: ToldOrders) -> OrdersShown:
    """Return the orders, the oldest first, and who is silent where somebody has to tell of them."""
    rows = sorted(
        (_row(one, found) for one in found.orders.values()), key=lambda one: (one.started_ms, one.id)
    )
    problem = None
    if found.keeper is None and (rows or found.silent):
        silent = (*found.silent, *found.away)[:5]
        problem = "; ".join(["no broker keeps the prefix now, so what is left is not known", *silent])
    return OrdersShown(tuple(rows), problem)


def _row(order: Mapping[str, Any], found: ToldOrders) -> OrderRow:
    return OrderRow(
        id=str(order.get("id")),
        is_open=order.get("state") == "open",
        started_ms=_number(order.get("started_ms"), 0),
        done_ms=_number(order.get("done_ms"), -1),
        grace_until_ms=_number(order.get("grace_until_ms"), -1),
        keys=_number(order.get("keys"), 0),
        topics=tuple(str(one.get("name")) for one in _rows(order.get("topics"))),
        waits=str(order.get("waits") or ""),
        replicas=LeftCount(_known(order.get("replicas_left")), _known(order.get("replicas"))),
        archives=LeftCount(_known(order.get("archives_left")), _known(order.get("archives"))),
        objects=_objects([one for one in found.progress if one.get("order") == order.get("id")]),
        cuts=LeftCount(_known(order.get("cuts_left"))),
        left=_left(order, [one for one in found.problems if one.get("order") == order.get("id")]),
        remains=tuple(str(one) for one in _list(order.get("remains"))[:MOST_LEFT]),
    )


def _objects(progress: Sequence[Mapping[str, Any]]) -> LeftCount:
    """Return the objects that leaders have to look at, of all of their archives."""
    counts = [one["objects"] for one in progress if isinstance(one.get("objects"), Mapping)]
    if not counts:
        return LeftCount(None)
    left = sum(_number(one.get("left"), 0) for one in counts)
    return LeftCount(left, left + sum(_number(one.get("looked_at"), 0) for one in counts))


def _left(order: Mapping[str, Any], problems: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    """Return places that are left, and why: first those that the keeper names, then what leaders say."""
    whys = {f"{one.get('topic')}-{one.get('partition')}": str(one.get("why")) for one in problems}
    found = []
    for one in _rows(order.get("left")):
        place = f"{one.get('topic')}-{one.get('partition')}"
        if one.get("broker") is None:
            found.append((f"{place}: its archive", whys.pop(place, "")))
        else:
            found.append((f"{place}: the log of broker {one.get('broker')}", ""))
    found += [(f"{place}: its archive", why) for place, why in sorted(whys.items())]
    return tuple(found[:MOST_LEFT])


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _rows(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in _list(value) if isinstance(one, Mapping)]


def _known(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _number(value: Any, default: int) -> int:
    return value if isinstance(value, int) else default
