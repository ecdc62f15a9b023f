"""Look-up of the topic to write, as the brokers know it. Needs confluent-kafka."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from service.base.confluent import confluent_kafka, create_client
from service.base.errors import ConfigError
from service.spark.write.sender import REMEDY, SendError

_TIMEOUT_S: Final = 30.0
_NO_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
"""Kafka's text of the zero id, which brokers before 2.8 answer: they have no topic ids."""


class Target(NamedTuple):
    """The topic to write. `topic_id` is as Kafka prints it, None where brokers have no topic ids."""

    topic: str
    topic_id: str | None
    partitions: int

    def refuse_beyond(self, partitions: Iterable[int]) -> None:
        """Raise `ConfigError` where the topic lacks one of these partitions."""
        greatest = max(partitions, default=0)
        if greatest >= self.partitions:
            raise ConfigError(f"topic {self.topic} has {self.partitions} partitions, no {greatest}")


def target_of(settings: Mapping[str, str], topic: str) -> Target:
    """Look the topic up. `ConfigError` where there is none, `SendError` where the brokers cannot be asked."""
    kafka = confluent_kafka(REMEDY)
    from confluent_kafka.admin import AdminClient

    errors: list[str] = []
    admin = create_client(AdminClient, {**settings, "error_cb": lambda error: errors.append(error.str())})
    try:
        future = admin.describe_topics(kafka.TopicCollection([topic]), request_timeout=_TIMEOUT_S)[topic]
        found = future.result()
    except kafka.KafkaException as e:
        error = e.args[0]
        admin.poll(0)  # calls the callback
        if error.code() == kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise ConfigError(f"brokers know no topic {topic}; create it first") from e
        last = f" ({errors[-1]})" if errors else ""
        raise SendError(f"{topic}: brokers did not describe it: {error.str()}{last}") from e
    topic_id = str(found.topic_id)
    return Target(topic, None if topic_id == _NO_ID else topic_id, len(found.partitions))
