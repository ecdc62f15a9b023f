"""Where the brokers' logs begin and end: what planning asks them, once per plan.

Before anything else it is made sure that they are the archive's brokers, and its topics.
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

from service.spark.errors import BrokerError, DataLossError
from service.spark.plan.snapshots import ChosenPartition
from service.spark.tail.brokers import Brokers
from service.spark.tail.client_options import Address
from service.spark.tail.options import TailOptions
from service.spark.tail.patience import Patience
from service.spark.tail.topic_lookup import (
    EARLIEST,
    LATEST,
    Place,
    Standing,
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

_LOOKS_FOR_ABSENT: Final = 2
"""A topic that is missing so many times in a row is not there."""


class LogEnds:
    """Offsets of whole logs, from the brokers of one cluster. For any thread, one at a time."""

    def __init__(self, tail: TailOptions, *, read_committed: bool, fail_on_data_loss: bool) -> None:
        self._tail = tail
        self._read_committed = read_committed
        self._fails = fail_on_data_loss
        self._brokers = Brokers(tail)
        self._lock = threading.Lock()
        self._warned: set[str] = set()

    def bounds(
        self, partitions: Sequence[ChosenPartition], cluster_id: str
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Where each log starts and where it ends (exclusive): for `read_committed` its last stable offset.

        Left out is what the brokers do not know, or (with ``failOnDataLoss=false``) know as another topic.
        Both are logged. Raises `ConfigError` for brokers of another cluster than `cluster_id`,
        `DataLossError` for another topic, `BrokerError` when they do not tell.
        """
        ids = {one.topic: one.topic_id for one in partitions}
        wanted = [(one.topic, one.partition) for one in partitions]
        with self._lock:
            # Starts first: a log never starts behind where it ends later.
            starts = self._ask(dict.fromkeys(wanted, EARLIEST), ids, cluster_id)
            ends = self._ask(dict.fromkeys(starts, LATEST), ids, cluster_id)
        return {partition: (starts[partition], end) for partition, end in ends.items()}

    def offsets_for_timestamps(
        self, timestamps_ms: Mapping[ChosenPartition, int], cluster_id: str
    ) -> dict[TopicPartition, int]:
        """The first record not older than its time, of those partitions that have one."""
        ids = {one.topic: one.topic_id for one in timestamps_ms}
        wanted = {(one.topic, one.partition): time_ms for one, time_ms in timestamps_ms.items()}
        with self._lock:
            found = self._ask(wanted, ids, cluster_id)
        return {key: offset for key, offset in found.items() if offset >= 0}

    def _ask(
        self, wanted: Mapping[TopicPartition, int], ids: Mapping[str, UUID], cluster_id: str
    ) -> dict[TopicPartition, int]:
        """The offset for each wanted timestamp (or `LATEST`, `EARLIEST`); asked again while leaders move."""
        answers: dict[TopicPartition, int] = {}
        left = dict(wanted)
        absent: dict[str, int] = defaultdict(int)
        patience = Patience(self._tail, "no offsets of the log", time.monotonic, random.random)
        while left:
            causes: list[str] = []
            try:
                places = self._places(left, ids, cluster_id, absent, causes, patience)
            except OSError as e:
                time.sleep(patience.failed(e))
                continue
            for address, asked in _by_leader(left, places).items():
                try:
                    found = self._asked(address, asked, left, patience)
                except (OSError, WireError) as e:
                    causes.append(f"{address[0]}:{address[1]}: {e}")
                    continue
                self._take(found, left, answers, causes)
            if left:
                time.sleep(patience.failed("; ".join(causes[:3]) or "no leader"))
        return answers

    def _places(
        self,
        left: dict[TopicPartition, int],
        ids: Mapping[str, UUID],
        cluster_id: str,
        absent: dict[str, int],
        causes: list[str],
        patience: Patience,
    ) -> dict[TopicPartition, Place]:
        """The leaders; drops from `left` what is not to be read."""
        topics = sorted({topic for topic, _ in left})
        response = self._brokers.metadata(topics, self._timeout_s(patience))
        check_cluster(response.cluster_id, cluster_id)
        places: dict[TopicPartition, Place] = {}
        for topic in topics:
            found = find_topic(response, topic, ids[topic])
            if found.reason:
                causes.append(found.reason)
            absent[topic] = absent[topic] + 1 if found.standing is Standing.ABSENT else 0
            if found.standing is Standing.OTHER and self._fails:
                raise DataLossError(f"{found.reason} (failOnDataLoss=false reads the archive alone)")
            if found.standing is Standing.OTHER or absent[topic] >= _LOOKS_FOR_ABSENT:
                self._warn(f"{found.reason}; what is read of it is the archive alone")
                for key in [key for key in left if key[0] == topic]:
                    del left[key]
            places |= {(topic, partition): place for partition, place in found.places.items()}
        return places

    def _asked(
        self,
        address: Address,
        asked: list[TopicPartition],
        times_ms: Mapping[TopicPartition, int],
        patience: Patience,
    ) -> dict[TopicPartition, Any]:
        request = offsets_request(
            {key: times_ms[key] for key in asked},
            read_committed=self._read_committed,
            timeout_ms=self._tail.client.request_timeout_ms,
        )
        return offsets_found(
            self._brokers.ask(address, ApiKey.LIST_OFFSETS, request, timeout_s=self._timeout_s(patience))
        )

    def _take(
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
                raise BrokerError(
                    f"{key[0]}-{key[1]}: brokers do not tell its offsets: {named(row.error_code)}"
                )

    def _timeout_s(self, patience: Patience) -> float:
        return min(patience.left_s, self._tail.client.request_timeout_ms / 1000)

    def _warn(self, message: str) -> None:
        """Once: streams look again and again."""
        if message not in self._warned:
            self._warned.add(message)
            log.warning("%s", message)


def _by_leader(
    left: Mapping[TopicPartition, int], places: Mapping[TopicPartition, Place]
) -> dict[Address, list[TopicPartition]]:
    leaders: dict[Address, list[TopicPartition]] = defaultdict(list)
    for key in left:
        if key in places:
            leaders[places[key].address].append(key)
    return leaders


@lru_cache(maxsize=4)
def log_ends_of(tail: TailOptions, read_committed: bool, fail_on_data_loss: bool, _pid: int) -> LogEnds:
    """The same for all plans of a process, so that connections stay."""
    return LogEnds(tail, read_committed=read_committed, fail_on_data_loss=fail_on_data_loss)
