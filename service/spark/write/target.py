"""The topic that is written, as the brokers know it. Needs confluent-kafka."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from service.base.errors import ConfigError
from service.spark.write.sender import SendError, confluent_kafka, made

_TIMEOUT_S: Final = 30.0
_NO_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
"""Kafka's way to write the id that is all zeros: brokers before 2.8 know none."""


class Target(NamedTuple):
    """`topic_id` as Kafka prints it, None where brokers do not tell it."""

    topic: str
    topic_id: str | None
    partitions: int

    def refuse_beyond(self, partitions: Iterable[int]) -> None:
        """`ConfigError` where one of these partitions is not there."""
        greatest = max(partitions, default=0)
        if greatest >= self.partitions:
            raise ConfigError(f"topic {self.topic} has {self.partitions} partitions, no {greatest}")


def target_of(settings: Mapping[str, str], topic: str) -> Target:
    """`ConfigError` where there is no such topic, `SendError` where the brokers cannot be asked."""
    kafka = confluent_kafka()
    heard: list[str] = []
    admin = made(kafka.admin.AdminClient, {**settings, "error_cb": lambda error: heard.append(error.str())})
    try:
        future = admin.describe_topics(kafka.TopicCollection([topic]), request_timeout=_TIMEOUT_S)[topic]
        found = future.result()
    except kafka.KafkaException as e:
        error = e.args[0]
        admin.poll(0)  # which is when the callback is called
        if error.code() == kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise ConfigError(f"brokers know no topic {topic}; make it first") from e
        last = f" ({heard[-1]})" if heard else ""
        raise SendError(f"{topic}: brokers do not describe it: {error.str()}{last}") from e
    topic_id = str(found.topic_id)
    return Target(topic, None if topic_id == _NO_ID else topic_id, len(found.partitions))
