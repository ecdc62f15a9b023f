"""Pages of transactions as HTML: hostile ids, ten thousand of them, and filters from addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.base.clock import ManualClock
from service.base.errors import RequestError
from service.client.transaction_models import (
    HangingTransaction,
    OldestTransaction,
    OpenPartition,
    PartitionTransaction,
    StableOffset,
    TransactionInfo,
    TransactionPlaces,
    TransactionRow,
)
from service.console.web.pages import topic, transaction, transactions
from service.console.web.transaction_desk import TransactionDesk
from service.console.web.transaction_filter import TransactionListFilter, filter_of
from tests.unit.console.web.test_pages import EVIL, NOW, Checked, context, line


def info(words: str) -> TransactionInfo:
    return TransactionInfo(words, 1, 7, 3, "Ongoing", 60_000, NOW - 90_000, ((words, 0), (words, 1)))


def open_one(words: str) -> PartitionTransaction:
    return PartitionTransaction(words, 0, 7, 3, 1, 41, NOW - 5_000, 1)


def a_list(words: str, count: int = 3) -> str:
    rows = tuple(TransactionRow(f"{words}{n}", 1, n, "Ongoing") for n in range(count))
    listed = transactions.Listed(rows, {f"{words}0": info(words)}, count, (words,))
    wanted = TransactionListFilter("", None, words, 3)
    return transactions.render(context(words), transactions.TransactionsPage(wanted, listed))


def hanging(words: str) -> str:
    rows = [HangingTransaction(open_one(words), words), HangingTransaction(open_one(words), None)]
    found = transactions.HangingPage(words, 0, rows, (words,), 3, True)
    return transactions.render_hanging(context(words), found)


def one_id(words: str) -> str:
    places = (OpenPartition(words, 0, 41, NOW, True), OpenPartition(words, 1, None, None, False))
    found = TransactionPlaces(info(words), places, False, (words,))
    return transaction.render(context(words), transaction.TransactionPage(words, found))


def a_partition(words: str) -> str:
    oldest = OldestTransaction(open_one(words), words, None, NOW)
    found = topic.TopicPage(words, words, lines=[line(words)], single=True)
    return topic.render(context(words), found._replace(stable=StableOffset(3, 9, 2, oldest)))


PAGES: dict[str, Callable[[str], str]] = {
    "list": a_list,
    "hanging": hanging,
    "one id": one_id,
    "partition": a_partition,
    "nothing, partition": lambda words: topic.render(
        context(words), topic.TopicPage(words, words, lines=[line(words)], single=True, stable=words)
    ),
    "nothing, list": lambda words: transactions.render(
        context(words), transactions.TransactionsPage(TransactionListFilter(pattern=words), problem=words)
    ),
    "nothing, hanging": lambda words: transactions.render_hanging(
        context(words), transactions.HangingPage(words, 0, problem=words)
    ),
    "no such id": lambda words: transaction.render(
        context(words), transaction.TransactionPage(words, None, words, 404)
    ),
}


@pytest.mark.parametrize("page", PAGES)
def test_names_of_others_are_text(page: str) -> None:
    evil, tame = Checked(PAGES[page](EVIL)), Checked(PAGES[page]("tame"))
    assert evil.scripts == tame.scripts
    assert "\u202e" not in evil.words


def test_ten_thousand_ids_are_a_page_of_fifty() -> None:
    text = a_list("id-", 10_000)
    assert text.count('href="/transaction?id=') == 50
    assert "Page 1 of 200" in text
    assert "10,000 transactional ids found" in text
    assert len(text) < 60_000


def test_an_id_that_no_address_can_hold_is_shown_cut_and_without_a_link() -> None:
    shown = transactions.id_link("x" * 32_000)
    assert "href" not in shown
    assert len(shown) < 300
    assert "href" in transactions.id_link("x" * 2_000)


def test_a_partition_says_who_holds_its_stable_offset_back() -> None:
    words = " ".join(Checked(a_partition("orders")).words.split())
    assert "Behind the high watermark6 offsets" in words
    assert "orders (producer 7, epoch 3), since 2026-09-21 14:13:20 UTC" in words
    assert "from offset 41 on no coordinator knows it" in words


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, TransactionListFilter()),
        (
            {"state": "Empty", "producer": " 7 ", "pattern": "a.*", "longer": "60"},
            TransactionListFilter("Empty", 7, "a.*", 60),
        ),
        ({"pattern": "x" * 1000}, TransactionListFilter(pattern="x" * 249)),
    ],
)
def test_filters_are_taken_from_an_address(query: dict[str, str], found: TransactionListFilter) -> None:
    assert filter_of(query) == (found, None)


@pytest.mark.parametrize(
    "query",
    [{"state": "Dead"}, {"producer": "-1"}, {"producer": "٣"}, {"longer": "9" * 18}, {"longer": "1.5"}],
)
def test_a_wrong_filter_is_named(query: dict[str, str]) -> None:
    assert filter_of(query)[1] is not None


class Kafka:
    """A cluster whose list takes one query."""

    def __init__(self) -> None:
        self.queries = 0
        self.error: Exception | None = None

    def ask(self, question: Callable[[Any], Any]) -> Any:
        self.queries += 1
        if self.error is not None:
            raise self.error
        return transactions.Listed((TransactionRow("a", 1, 1, "Empty"),), {}, 0, ())


def call(question: Callable[[], Any], /) -> asyncio.Future[Any]:
    async def answer() -> Any:
        return question()

    return asyncio.ensure_future(answer())


def test_many_views_of_one_list_are_one_query() -> None:
    kafka, clock = Kafka(), ManualClock()

    async def scenario() -> None:
        desk = TransactionDesk(kafka, clock, call, str)  # type: ignore[arg-type]
        wanted = TransactionListFilter()
        pages = await asyncio.gather(*(desk.find_list(wanted, None, n) for n in range(20)))
        assert {(one.status, one.number) for one in pages} == {(200, 1)}
        assert kafka.queries == 1
        # As many filters as anybody may try: a few lists are kept.
        for n in range(100):
            await desk.find_list(TransactionListFilter(producer_id=n), None, 1)
        assert len(desk._lists) == 8
        clock.advance(60_000)
        kafka.error = RequestError(ErrorCode.invalid_regular_expression, "no")
        found = await desk.find_list(TransactionListFilter(pattern="("), None, 1)
        assert (found.status, found.problem) == (400, "'(' is not a regular expression of RE2's syntax.")

    asyncio.run(scenario())
