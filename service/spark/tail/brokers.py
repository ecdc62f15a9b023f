"""Brokers asked for the ends of their logs. Needs confluent-kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar

from service.base.errors import ConfigError, StorageError
from service.spark.tail.options import TailOptions

_T = TypeVar("_T")
TopicPartition = tuple[str, int]
_ATTEMPTS: Final = 5


class BrokerError(StorageError):
    """Brokers could not be asked, or did not answer as they should."""


def confluent_kafka() -> Any:
    """The client's module; `ConfigError` that says what to do where there is none."""
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError as e:
        raise ConfigError(
            "option bootstrap.servers needs the package confluent-kafka in the Python of the driver and of "
            f"every executor, and it is not here ({e}): pip install confluent-kafka, or leave the option "
            "out and read the sealed part of the log alone"
        ) from e
    return confluent_kafka


class Brokers:
    """The ends of partitions, as the brokers know them."""

    def __init__(self, tail: TailOptions, *, read_committed: bool) -> None:
        self._kafka = confluent_kafka()
        self._timeout_s = tail.timeout_ms / 1000
        self._read_committed = read_committed
        self._admin = _made(self._kafka, lambda: self._kafka.admin.AdminClient(dict(tail.client)))

    def bounds(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Where each log starts and where it ends (exclusive): for `read_committed` its last stable offset.

        What brokers do not know is left out.
        """
        spec = self._kafka.admin.OffsetSpec
        # Starts first: a log never starts behind where it ends later.
        starts = self._ask({partition: spec.earliest() for partition in partitions})
        ends = self._ask({partition: spec.latest() for partition in starts})
        return {partition: (starts[partition], end) for partition, end in ends.items()}

    def offsets_for_timestamps(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """The first record not older than its time, of those partitions that have one."""
        spec = self._kafka.admin.OffsetSpec
        found = self._ask({key: spec.for_timestamp(ms) for key, ms in timestamps_ms.items()})
        return {key: offset for key, offset in found.items() if offset >= 0}

    def _ask(self, wanted: Mapping[TopicPartition, Any]) -> dict[TopicPartition, int]:
        """Answers by partition; asks again for a while where leaders move."""
        answers: dict[TopicPartition, int] = {}
        left = dict(wanted)
        for attempt in range(_ATTEMPTS):
            for key, outcome in self._asked(left):
                if isinstance(outcome, int):
                    answers[key] = outcome
                    del left[key]
                elif self._is_unknown(outcome) and attempt:
                    del left[key]
                elif attempt + 1 == _ATTEMPTS:
                    raise BrokerError(f"{key[0]}-{key[1]}: brokers do not tell its offsets: {outcome}")
            if not left:
                break
            time.sleep(0.1 * 2**attempt)
        return answers

    def _asked(self, wanted: Mapping[TopicPartition, Any]) -> list[tuple[TopicPartition, int | Exception]]:
        kafka = self._kafka
        if not wanted:
            return []
        levels = kafka.IsolationLevel
        futures = self._admin.list_offsets(
            {kafka.TopicPartition(*key): spec for key, spec in wanted.items()},
            isolation_level=levels.READ_COMMITTED if self._read_committed else levels.READ_UNCOMMITTED,
            request_timeout=self._timeout_s / _ATTEMPTS,
        )
        found: list[tuple[TopicPartition, int | Exception]] = []
        for partition, future in futures.items():
            try:
                outcome: int | Exception = future.result().offset
            except kafka.KafkaException as e:
                outcome = e
            found.append(((partition.topic, partition.partition), outcome))
        return found

    def _is_unknown(self, error: Exception) -> bool:
        codes = self._kafka.KafkaError
        return error.args[0].code() in (
            codes.UNKNOWN_TOPIC_OR_PART,
            codes._UNKNOWN_TOPIC,
            codes._UNKNOWN_PARTITION,
        )


def _made(kafka: Any, make: Callable[[], _T]) -> _T:
    """A client; what it refuses of its options is the user's to mend."""
    try:
        return make()
    except kafka.KafkaException as e:
        raise ConfigError(f"the client of the brokers refuses its options: {e}") from e


@lru_cache(maxsize=4)
def brokers_of(tail: TailOptions, read_committed: bool, _pid: int) -> Brokers:
    return Brokers(tail, read_committed=read_committed)
