"""Data of the pages of transactions: a list by filters, one id, hanging ones, a partition's stable offset."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from kio.schema.errors import ErrorCode

from service.base.clock import Clock
from service.base.errors import FirnError, RequestError
from service.client.admin import Cluster
from service.client.transaction_details import describe_listed, stable_offset, transaction_places
from service.client.transaction_models import StableOffset, TransactionInfo, TransactionRow
from service.client.transaction_queries import hanging_transactions, led_partitions, list_transactions
from service.console.web.kafka_desk import KafkaDesk
from service.console.web.pages import transaction, transactions
from service.console.web.transaction_filter import OPEN_STATES, TransactionListFilter
from service.console.web.ttl_cache import Call, TtlCache

LIST_AGE_MS: Final = 1_500
LIST_WAIT_S: Final = 12.0
MOST_LISTS: Final = 8
"""Most filters whose lists are kept."""
MOST_DESCRIBED: Final = 500
"""Most open transactions of a list whose begin is looked up."""
MOST_PLACES: Final = 5_000
"""Most partitions in which hanging transactions are looked for."""
TROUBLE: Final = (FirnError, OSError)
_NOT_FOUND: Final = frozenset(
    {
        ErrorCode.transactional_id_not_found,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_topic_exception,
        ErrorCode.invalid_request,
    }
)


def at_once() -> bool:
    """Say that there is no time for another try: a page is asked for again anyway."""
    return False


class TransactionDesk:
    """Reader of one cluster's transactions. Owned by the event loop; `call` runs queries on threads."""

    def __init__(
        self, kafka: KafkaDesk, clock: Clock, call: Call, error_text: Callable[[BaseException], str]
    ) -> None:
        self._kafka = kafka
        self._clock = clock
        self._call = call
        self._error_text = error_text
        self._lists: OrderedDict[TransactionListFilter, TtlCache[transactions.Listed]] = OrderedDict()

    async def find_list(
        self, wanted: TransactionListFilter, problem: str | None, number: int
    ) -> transactions.TransactionsPage:
        """Return a page of the ids that match, open ones first; one query at a time for all pages."""
        if problem is not None:
            return transactions.TransactionsPage(wanted, problem=problem, status=400)
        known = self._lists.pop(wanted, None) or TtlCache(self._call, self._clock, LIST_AGE_MS)
        self._lists[wanted] = known
        if len(self._lists) > MOST_LISTS:
            self._lists.popitem(last=False)
        found = await known.get(lambda: self._kafka.ask(lambda one: _list(one, wanted)), LIST_WAIT_S)
        if found.problem is not None:
            is_wrong = (
                isinstance(found.problem, RequestError)
                and found.problem.code == ErrorCode.invalid_regular_expression
            )
            text = (
                f"{wanted.pattern!r} is not a regular expression of RE2's syntax."
                if is_wrong
                else self._error_text(found.problem)
            )
            return transactions.TransactionsPage(wanted, problem=text, status=400 if is_wrong else 503)
        if found.value is None:
            return transactions.TransactionsPage(
                wanted, problem="The coordinators have not answered yet.", status=503
            )
        pages = max(-(-len(found.value.rows) // transactions.PER_PAGE), 1)
        return transactions.TransactionsPage(
            wanted, found.value, min(max(number, 1), pages), age_ms=found.age_ms
        )

    async def find_one(self, transactional_id: str) -> transaction.TransactionPage:
        try:
            found = await self._call(
                lambda: self._kafka.ask(lambda one: transaction_places(one, at_once, transactional_id))
            )
        except TROUBLE as e:
            return transaction.TransactionPage(
                transactional_id, None, self._error_text(e), 404 if _is_missing(e) else 503
            )
        return transaction.TransactionPage(transactional_id, found)

    async def find_hanging(self, topic: str, older_than_ms: int) -> transactions.HangingPage:
        """Return the hanging transactions of a topic, as `firn transaction hanging --topic` does."""
        if not topic:
            return transactions.HangingPage(topic, older_than_ms)
        now_ms = self._clock.now_ms()

        def question(cluster: Cluster) -> transactions.HangingPage:
            places = list(led_partitions(cluster, topic))
            looked_at = places[:MOST_PLACES]
            found = hanging_transactions(
                cluster, at_once, looked_at, older_than_ms=older_than_ms, now_ms=now_ms
            )
            return transactions.HangingPage(
                topic, older_than_ms, found.rows, found.problems, len(places) - len(looked_at), True
            )

        try:
            return await self._call(lambda: self._kafka.ask(question))
        except TROUBLE as e:
            return transactions.HangingPage(
                topic, older_than_ms, problem=self._error_text(e), status=404 if _is_missing(e) else 503
            )

    async def find_stable(self, topic: str, partition: int, leader: int) -> StableOffset | str:
        """Return a partition's stable offset, or why it is not known."""
        if leader < 0:
            return "it has no leader"
        try:
            return await self._call(
                lambda: self._kafka.ask(lambda one: stable_offset(one, at_once, topic, partition, leader))
            )
        except TROUBLE as e:
            return self._error_text(e)


def _is_missing(error: BaseException) -> bool:
    return isinstance(error, RequestError) and error.code in _NOT_FOUND


def _list(cluster: Cluster, wanted: TransactionListFilter) -> transactions.Listed:
    """Return the ids that match: those with an open transaction first, the oldest of these first."""
    listing = list_transactions(
        cluster,
        at_once,
        # Kafka lets ids without a transaction pass a filter by duration.
        states=(wanted.state,) if wanted.state else OPEN_STATES if wanted.longer_than_s is not None else (),
        producer_ids=() if wanted.producer_id is None else (wanted.producer_id,),
        longer_than_ms=wanted.longer_than_ms,
        pattern=wanted.pattern or None,
    )
    opened = [row for row in listing.rows if row.state in OPEN_STATES]
    infos = describe_listed(cluster, opened[:MOST_DESCRIBED])

    def rank(row: TransactionRow) -> tuple[bool, float]:
        info: TransactionInfo | None = infos.get(row.transactional_id)
        start_ms = None if info is None else info.start_ms
        return row.state not in OPEN_STATES, float("inf") if start_ms is None else start_ms

    return transactions.Listed(tuple(sorted(listing.rows, key=rank)), infos, len(opened), listing.problems)
