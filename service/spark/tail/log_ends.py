"""Start and end offsets of the brokers' logs, which planning fetches once per plan.

Before that it checks that brokers and topics are those of the archive.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.config.client import Address
from service.spark.errors import BrokerError, DataLossError
from service.spark.plan.snapshots import ChosenPartition
from service.spark.tail.broker_connections import BrokerConnections
from service.spark.tail.options import TailOptions
from service.spark.tail.retry_timer import RetryTimer
from service.spark.tail.topic_lookup import (
    EARLIEST,
    LATEST,
    PartitionLeader,
    TopicMatch,
    TopicPartition,
    check_cluster,
    find_topic,
    is_transient,
    named,
    offsets_found,
    offsets_request,
)
from service.wire.api import ApiKey
from service.wire.errors import WireError

log = logging.getLogger(__name__)

_ABSENT_LOOKUPS: Final = 2
"""A topic that is unknown in so many consecutive look-ups does not exist."""


class LogEnds:
    """Offsets of whole logs, from the brokers of one cluster. Any thread may call it; calls take turns."""

    def __init__(self, tail: TailOptions, *, read_committed: bool, fail_on_data_loss: bool) -> None:
        self._tail = tail
        self._read_committed = read_committed
        self._fails = fail_on_data_loss
        self._brokers = BrokerConnections(tail)
        self._lock = threading.Lock()
        self._warned: set[str] = set()

    def bounds(
        self, partitions: Sequence[ChosenPartition], cluster_id: str
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return the start and the end (exclusive) of each log: for `read_committed` its last stable offset.

        Topics are left out that the brokers do not have, or (with ``failOnDataLoss=false``) have with another
        id. Both are logged. Raises `ConfigError` for brokers of another cluster than `cluster_id`,
        `DataLossError` for another topic, `BrokerError` when the brokers do not answer in time.
        """
        ids = {one.topic: one.topic_id for one in partitions}
        wanted = [(one.topic, one.partition) for one in partitions]
        with self._lock:
            # Starts come first: a log's later end is never below an earlier start.
            starts = self._resolve(dict.fromkeys(wanted, EARLIEST), ids, cluster_id)
            ends = self._resolve(dict.fromkeys(starts, LATEST), ids, cluster_id)
        return {partition: (starts[partition], end) for partition, end in ends.items()}

    def offsets_for_timestamps(
        self, timestamps_ms: Mapping[ChosenPartition, int], cluster_id: str
    ) -> dict[TopicPartition, int]:
        """Return the offset of the first record not older than its time, for partitions that have one."""
        ids = {one.topic: one.topic_id for one in timestamps_ms}
        wanted = {(one.topic, one.partition): time_ms for one, time_ms in timestamps_ms.items()}
        with self._lock:
            found = self._resolve(wanted, ids, cluster_id)
        return {key: offset for key, offset in found.items() if offset >= 0}

    def _resolve(
        self, wanted: Mapping[TopicPartition, int], ids: Mapping[str, UUID], cluster_id: str
    ) -> dict[TopicPartition, int]:
        """Return the offset of each timestamp (or `LATEST`, `EARLIEST`); retries while leaders move."""
        answers: dict[TopicPartition, int] = {}
        left = dict(wanted)
        absent: dict[str, int] = defaultdict(int)
        retry = RetryTimer(self._tail, "no offsets of the log", time.monotonic, random.random)
        while left:
            causes: list[str] = []
            try:
                leaders = self._leaders(left, ids, cluster_id, absent, causes, retry)
            except OSError as e:
                time.sleep(retry.failed(e))
                continue
            for address, partitions in _by_leader(left, leaders).items():
                try:
                    found = self._list_offsets(address, partitions, left, retry)
                except (OSError, WireError) as e:
                    causes.append(f"{address[0]}:{address[1]}: {e}")
                    continue
                self._collect(found, left, answers, causes)
            if left:
                time.sleep(retry.failed("; ".join(causes[:3]) or "no leader"))
        return answers

    def _leaders(
        self,
        left: dict[TopicPartition, int],
        ids: Mapping[str, UUID],
        cluster_id: str,
        absent: dict[str, int],
        causes: list[str],
        retry: RetryTimer,
    ) -> dict[TopicPartition, PartitionLeader]:
        """Return the leaders; drops topics from `left` that are not read from the brokers."""
        topics = sorted({topic for topic, _ in left})
        response = self._brokers.metadata(topics, self._timeout_s(retry))
        check_cluster(response.cluster_id, cluster_id)
        leaders: dict[TopicPartition, PartitionLeader] = {}
        for topic in topics:
            found = find_topic(response, topic, ids[topic])
            if found.reason:
                causes.append(found.reason)
            absent[topic] = absent[topic] + 1 if found.match is TopicMatch.ABSENT else 0
            if found.match is TopicMatch.OTHER and self._fails:
                raise DataLossError(f"{found.reason} (failOnDataLoss=false reads the archive alone)")
            if found.match is TopicMatch.OTHER or absent[topic] >= _ABSENT_LOOKUPS:
                self._warn(f"{found.reason}; only its archive is read")
                for key in [key for key in left if key[0] == topic]:
                    del left[key]
            leaders |= {(topic, partition): leader for partition, leader in found.leaders.items()}
        return leaders

    def _list_offsets(
        self,
        address: Address,
        partitions: list[TopicPartition],
        times_ms: Mapping[TopicPartition, int],
        retry: RetryTimer,
    ) -> dict[TopicPartition, Any]:
        request = offsets_request(
            {key: times_ms[key] for key in partitions},
            read_committed=self._read_committed,
            timeout_ms=self._tail.client.request_timeout_ms,
        )
        return offsets_found(
            self._brokers.ask(address, ApiKey.LIST_OFFSETS, request, timeout_s=self._timeout_s(retry))
        )

    def _collect(
        self,
        found: Mapping[TopicPartition, Any],
        left: dict[TopicPartition, int],
        answers: dict[TopicPartition, int],
        causes: list[str],
    ) -> None:
        for key, row in found.items():
            if key not in left:
                continue
            if row.error_code == ErrorCode.none:
                answers[key] = row.offset
                del left[key]
            elif is_transient(row.error_code):
                causes.append(f"{key[0]}-{key[1]}: {named(row.error_code)}")
            else:
                raise BrokerError(f"{key[0]}-{key[1]}: brokers refuse its offsets: {named(row.error_code)}")

    def _timeout_s(self, retry: RetryTimer) -> float:
        return min(retry.left_s, self._tail.client.request_timeout_ms / 1000)

    def _warn(self, message: str) -> None:
        """Log a warning once: streams plan again and again."""
        if message not in self._warned:
            self._warned.add(message)
            log.warning("%s", message)


def _by_leader(
    left: Mapping[TopicPartition, int], leaders: Mapping[TopicPartition, PartitionLeader]
) -> dict[Address, list[TopicPartition]]:
    found: dict[Address, list[TopicPartition]] = defaultdict(list)
    for key in left:
        if key in leaders:
            found[leaders[key].address].append(key)
    return found


@lru_cache(maxsize=4)
def log_ends_of(tail: TailOptions, read_committed: bool, fail_on_data_loss: bool, _pid: int) -> LogEnds:
    """Return the `LogEnds` that all plans of this process share, so that connections stay open."""
    return LogEnds(tail, read_committed=read_committed, fail_on_data_loss=fail_on_data_loss)
