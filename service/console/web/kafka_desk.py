"""Queries of the cluster: blocking calls for threads, with a few connections kept between them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from kio.schema.errors import ErrorCode

from service.base.clock import Clock
from service.base.errors import StorageError
from service.base.threads import Threads
from service.client.admin import (
    BROKER_RESOURCE,
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    TOPIC_RESOURCE,
    Cluster,
    connected,
)
from service.client.admin_models import ClusterInfo, ConfigEntry, NodeInfo, PartitionPage, TopicInfo
from service.client.broker_health_queries import WAIT_S, BrokerAnswer, ask_apart
from service.client.security import PLAINTEXT, Security
from service.console.web.broker_addresses import BrokerAddresses
from service.console.web.topic_rows import TierOffsets, TopicList, TopicSummary
from service.wire.errors import MalformedMessage

T = TypeVar("T")
C = TypeVar("C", bound=Cluster)

CLIENT_ID: Final = "firn-console"
TIMEOUT_S: Final = 10.0
MOST_KEPT: Final = 4
PROBLEM_AGE_MS: Final = 1_000
TOPICS_AGE_MS: Final = 4_000
_COST_FACTOR: Final = 20
"""The list of topics is queried at most this share of the time: one part in this many."""


class KafkaDesk:
    """Client of the cluster at `bootstrap`, a comma list of addresses. Thread-safe.

    Brokers that the cluster has named are asked, too, so no broker has to be there for ever. Raises
    `FirnError` and `OSError`; a connection that failed is not used again.
    """

    def __init__(
        self, bootstrap: str, clock: Clock, threads: Threads, security: Security | None = None
    ) -> None:
        self._addresses = BrokerAddresses(bootstrap)
        self._cluster_id: str | None = None
        self._security = security or PLAINTEXT
        self._clock = clock
        self._lock = threads.lock()
        self._kept: list[Cluster] = []
        self._problem: str | None = None
        self._problem_until_ms = 0

    def close(self) -> None:
        with self._lock:
            kept, self._kept = self._kept, []
        for cluster in kept:
            cluster.close()

    def ask(self, question: Callable[[Cluster], T], *, is_for_controllers: bool = False) -> T:
        """Return the result of `question`; repeat it on a new connection if a kept one is dead.

        A broker that is late with what `is_for_controllers` waits for them, and does not hang itself.
        """
        with self._lock:
            cluster = self._kept.pop() if self._kept else None
        if cluster is not None:
            # It may be dead: the broker may have restarted since.
            with contextlib.suppress(ConnectionError, StorageError):
                return self._answer(cluster, question, is_for_controllers)
        self._refuse_in_vain()
        began = self._clock.monotonic_ms()
        return self._answer(self._connected(Cluster, TIMEOUT_S, began), question, is_for_controllers)

    def ask_broker(self, broker: NodeInfo, *, is_alone: bool) -> BrokerAnswer:
        """Ask one broker for its health and for the cluster, on a connection of its own.

        One that `is_alone` is asked where a broker has answered: its own address may be for others, as at the
        end of a tunnel.
        """
        host, port = broker.host, broker.port
        if is_alone:
            with self._lock:
                name, _, number = self._addresses.order[0].rpartition(":")
            host, port = name.strip("[]"), int(number)
        return ask_apart(
            lambda: connected(host, port, CLIENT_ID, WAIT_S, self._security), broker, with_cluster=True
        )

    @contextlib.contextmanager
    def opened(self, kind: type[C], timeout_s: float) -> Iterator[C]:
        """Lend a connection of its own, on which nothing is asked twice; `timeout_s` bounds each silence."""
        self._refuse_in_vain()
        with self._connected(kind, timeout_s, self._clock.monotonic_ms()) as cluster:
            yield cluster

    def _connected(self, kind: type[C], timeout_s: float, began_ms: int) -> C:
        try:
            cluster = self._connect(kind, timeout_s)
        except OSError as e:
            raise StorageError(self._failed(e, began_ms)) from e
        with self._lock:
            self._problem = None
        return cluster

    def _connect(self, kind: type[C], timeout_s: float) -> C:
        """Connect to the first broker that answers, and that is one of this cluster."""
        while True:
            with self._lock:
                order, cluster_id = self._addresses.order, self._cluster_id
            cluster = kind(",".join(order), CLIENT_ID, timeout_s, self._security)
            address = cluster.first_address
            with self._lock:
                self._addresses.answered(address)
                is_configured = self._addresses.is_configured(address)
            if is_configured or cluster_id is None:
                return cluster
            # Behind a tunnel the name that a broker gives itself may be that of another one here.
            try:
                if cluster.describe().cluster_id == cluster_id:
                    return cluster
            except BaseException:
                cluster.close()
                raise
            cluster.close()
            with self._lock:
                self._addresses.forget(address)

    def _ask_first(self, question: Callable[[Cluster], T]) -> T:
        """Call `ask` for a query that any broker answers; if the first one hangs, all pages would."""
        self._refuse_in_vain()
        began = self._clock.monotonic_ms()
        with self._lock:
            others = len(self._addresses.order) > 1
        try:
            return self.ask(question)
        except TimeoutError as e:
            if not others:
                raise StorageError(self._failed(e, began)) from e
        try:
            return self.ask(question)
        except TimeoutError as e:
            raise StorageError(self._failed(e, began)) from e

    def _refuse_in_vain(self) -> None:
        """Raise the last error at once if the cluster was unreachable a moment ago."""
        with self._lock:
            if self._problem is not None and self._clock.monotonic_ms() < self._problem_until_ms:
                raise StorageError(self._problem)

    def _failed(self, error: OSError, began_ms: int) -> str:
        """Remember the failure for as long as its detection took; return its text."""
        now = self._clock.monotonic_ms()
        with self._lock:
            order = self._addresses.order
            words = f"{order[0]} did not answer in time" if isinstance(error, TimeoutError) else str(error)
            if len(order) > 1:
                words = f"none of {len(order)} brokers answers; the last error: {words}"
            self._problem = words
            self._problem_until_ms = now + max(PROBLEM_AGE_MS, now - began_ms)
        return words

    def _answer(self, cluster: Cluster, question: Callable[[Cluster], T], is_for_controllers: bool) -> T:
        try:
            answer = question(cluster)
        except TimeoutError:
            if is_for_controllers:
                cluster.close()
            else:
                self._give_up(cluster)
            raise
        except (OSError, StorageError, MalformedMessage):
            cluster.close()
            raise
        except BaseException:
            self._keep(cluster)
            raise
        self._keep(cluster)
        return answer

    def _give_up(self, cluster: Cluster) -> None:
        """Close the connections to a broker that hangs; others are tried before it from now on."""
        if not cluster.hangs:  # another one does, which was asked through this one
            cluster.close()
            return
        address = cluster.first_address
        with self._lock:
            self._addresses.failed(address)
            hanging = [one for one in self._kept if one.first_address == address]
            self._kept = [one for one in self._kept if one.first_address != address]
        for one in (cluster, *hanging):
            one.close()

    def _keep(self, cluster: Cluster) -> None:
        with self._lock:
            if len(self._kept) < MOST_KEPT:
                self._kept.append(cluster)
                return
        cluster.close()

    def describe(self) -> ClusterInfo:
        """Return the cluster, and remember its brokers."""
        found = self._ask_first(Cluster.describe)
        with self._lock:
            self._cluster_id = found.cluster_id
            nodes = sorted(found.nodes, key=lambda one: one.is_fenced)
            self._addresses.learn((one.host, one.port) for one in nodes)
        return found

    def is_old(self, found: TopicList, age_ms: int = TOPICS_AGE_MS) -> bool:
        """Return whether the list of topics is due for a refresh: seldom if the query takes long."""
        return self._clock.monotonic_ms() - found.at_ms >= max(age_ms, _COST_FACTOR * found.took_ms)

    def topics(self) -> TopicList:
        """Return all topics, sorted by name. Memory holds one page of partitions at a time."""
        began = self._clock.monotonic_ms()
        rows = self._ask_first(lambda cluster: list(_rows(cluster.every_topic())))
        now = self._clock.monotonic_ms()
        return TopicList(tuple(rows), now, now - began)

    def partitions(self, topic: str, first: int, most: int) -> PartitionPage:
        return self._ask_first(lambda cluster: cluster.partitions(topic, first, most))

    def borders(self, topic: str, leaders: Mapping[int, int]) -> dict[int, TierOffsets]:
        """Return the offsets where tiers begin and end; `leaders` by partition, -1 for none."""
        reachable = {p: leader for p, leader in leaders.items() if leader >= 0}

        def question(cluster: Cluster) -> dict[int, TierOffsets]:
            found = [
                cluster.look_up(topic, reachable, which)
                for which in (EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, LATEST, MAX_TIMESTAMP)
            ]
            return {p: _offsets([answers[p] for answers in found]) for p in reachable}

        answers = self.ask(question) if reachable else {}
        none = TierOffsets(None, None, None, None, None, "it has no leader")
        return {p: answers.get(p, none) for p in leaders}

    def topic_settings(self, names: Sequence[str], keys: Sequence[str]) -> dict[str, dict[str, str | None]]:
        return self.ask(lambda cluster: cluster.topic_configs(names, keys)) if names else {}

    def broker_settings(self, broker: int, keys: Sequence[str]) -> dict[str, str | None]:
        return self.ask(lambda cluster: cluster.broker_configs(broker, keys))

    def topic_entries(self, topic: str) -> list[ConfigEntry]:
        return self.ask(lambda cluster: cluster.entries(TOPIC_RESOURCE, topic))

    def broker_entries(self, broker: int) -> list[ConfigEntry]:
        return self.ask(lambda cluster: cluster.entries(BROKER_RESOURCE, str(broker)))


def _rows(parts: Iterable[TopicInfo]) -> Iterator[TopicSummary]:
    """Yield topics with their sums; the parts of a topic follow each other."""
    row: TopicSummary | None = None
    for one in parts:
        if row is not None and row.name != one.name:
            yield row
            row = None
        before = row or TopicSummary(one.name, str(one.topic_id), 0, 0, 0, 0)
        row = before._replace(
            partitions=before.partitions + len(one.partitions),
            leaderless=before.leaderless + sum(p.leader < 0 for p in one.partitions),
            short_isr=before.short_isr + sum(len(p.isr) < len(p.replicas) for p in one.partitions),
            replication=max([before.replication, *(len(p.replicas) for p in one.partitions)]),
        )
    if row is not None:
        yield row


def _offsets(answers: Sequence[Any]) -> TierOffsets:
    values: list[int | None] = []
    problem = None
    *borders, newest = answers
    for answer in borders:
        if answer.error_code != ErrorCode.none:
            problem = ErrorCode(answer.error_code).name.upper()
        values.append(answer.offset if answer.error_code == ErrorCode.none else None)
    start, local_start, last_tiered, end = values
    bucket_end = None if last_tiered is None else last_tiered + 1
    has_newest = newest.error_code == ErrorCode.none and newest.timestamp >= 0
    return TierOffsets(start, local_start, bucket_end, end, newest.timestamp if has_newest else None, problem)
