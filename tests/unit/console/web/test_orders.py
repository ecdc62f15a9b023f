"""Orders to erase keys on the bucket page: how far each is, what is left, and why."""

from __future__ import annotations

from typing import Any

from service.client.erasures import FoundOrders
from service.console.web.order_rows import MOST_LEFT, orders_of
from service.console.web.pages.bucket_orders import orders_section

NOW = 1_790_000_000_000
OPEN: dict[str, Any] = {
    "id": "0b7f3c9e-52a4-4b8e-9d3a-6f1c2a865a0b",
    "state": "open",
    "started_ms": NOW - 60_000,
    "done_ms": None,
    "keys": 3,
    "topics": [{"id": "7", "name": "people"}, {"id": "8", "name": "<b>trips</b>"}],
    "is_restored": False,
    "waits": "2 replicas are not clean yet",
    "replicas": 18,
    "replicas_left": 2,
    "archives": 6,
    "archives_left": 3,
    "cuts_left": 4,
    "left": [
        {"topic": "people", "partition": 0, "broker": 2},
        {"topic": "people", "partition": 1, "broker": None},
    ],
    "grace_until_ms": None,
    "remains": [],
}
PROBLEM = {"order": OPEN["id"], "topic": "people", "partition": 1, "why": "the store does not answer"}


def found_of(
    *orders: dict[str, Any], problems: Any = (), silent: Any = (), progress: Any = (), has_keeper: bool = True
) -> FoundOrders:
    rows = {str(one.get("id")): one for one in orders}
    return FoundOrders(rows, list(problems), list(progress), tuple(silent), (), 1 if has_keeper else None)


def shown(*orders: dict[str, Any], **more: Any) -> str:
    found = orders_of(found_of(*orders, **more))
    section = orders_section(found, 0, NOW)
    return "" if section is None else " ".join(str(section).split())


def test_an_open_order_says_what_is_left_and_why() -> None:
    progress = [
        {"order": OPEN["id"], "objects": {"left": 30, "looked_at": 10, "rewritten": 3}},
        {"order": OPEN["id"], "objects": {"left": 7, "looked_at": 5, "rewritten": 0}},
        {"order": "another", "objects": {"left": 1000, "looked_at": 0, "rewritten": 0}},
    ]
    page = shown(OPEN, problems=[PROBLEM], progress=progress)
    for words in (
        "2 of 18",
        "3 of 6",
        "37 of 52",
        "0b7f3c9e-52a4-4b8e-9d3a-6f1c2a865a0b",
        "2 replicas are not clean yet",
        "people-0: the log of broker 2",
        "people-1: its archive",
        "the store does not answer",
        "&lt;b&gt;trips&lt;/b&gt;",
    ):
        assert words in page, words
    assert "<b>" not in page


def test_problems_of_leaders_are_told_without_a_keeper() -> None:
    """Then nobody knows how much is left, and the page says so."""
    order = {name: value for name, value in OPEN.items() if name not in ("left", "replicas_left", "waits")}
    page = shown(order, problems=[PROBLEM], silent=["broker 2 is away"], has_keeper=False)
    assert "no broker keeps the prefix now, so what is left is not known; broker 2 is away" in page
    assert "people-1: its archive" in page
    assert "the store does not answer" in page


def test_a_done_order_says_until_when_its_remains_stay() -> None:
    done = {
        **OPEN, "state": "done", "done_ms": NOW - 5_000, "grace_until_ms": NOW + 60_000, "left": [],
        "waits": "", "remains": ["data/7/1/x.seg"],
    }  # fmt: skip
    page = shown(done)
    assert "done" in page
    assert "the grace, until" in page
    assert "data/7/1/x.seg" in page


def test_there_is_no_section_without_orders() -> None:
    assert shown() == ""
    assert "The newest cut lists 2 orders" in str(orders_section(orders_of(found_of()), 2, NOW))


def test_documents_of_other_versions_are_shown_as_far_as_they_go() -> None:
    odd: dict[str, Any] = {"id": "x", "left": "all", "topics": [None, {}], "keys": "many", "remains": 5}
    assert "x" in shown(odd, problems=[{}], progress=[{}, {"order": "x", "objects": 7}])
    many = {**OPEN, "left": [{"topic": "t", "partition": n, "broker": 1} for n in range(500)]}
    assert shown(many).count("the log of broker 1") == MOST_LEFT
