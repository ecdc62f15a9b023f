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


def retention_of(settings: Mapping[str, str], topic: str) -> int | None:
    """Return for how many milliseconds the topic keeps a record after its timestamp, None for as long as it
    likes, for arrival times and where brokers do not tell."""
    kafka = confluent_kafka(REMEDY)
    from confluent_kafka.admin import AdminClient, ConfigResource

    admin = create_client(AdminClient, {**settings, "error_cb": lambda _: None})
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    try:
        found = admin.describe_configs([resource], request_timeout=_TIMEOUT_S)[resource].result()
    except kafka.KafkaException:
        return None  # the right to describe settings is not needed to write
    return kept_ms({name: entry.value for name, entry in found.items()})


def kept_ms(settings: Mapping[str, str | None]) -> int | None:
    """Return for how long a topic of these settings keeps a record after its timestamp; None: no limit."""
    if settings.get("message.timestamp.type") == "LogAppendTime":
        return None
    if "delete" not in (settings.get("cleanup.policy") or "").split(","):
        return None
    kept = int(settings.get("retention.ms") or -1)
    return None if kept < 0 else kept
