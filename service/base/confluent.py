"""Clients of librdkafka by the package confluent-kafka, which only some commands and jobs need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from service.base.errors import ConfigError


def confluent_kafka(remedy: str) -> Any:
    """Import the package; `ConfigError` with the remedy where it is not installed."""
    try:
        import confluent_kafka
    except ImportError as e:
        raise ConfigError(f"confluent-kafka is not here ({e}): {remedy}") from e
    return confluent_kafka


def create_client(kind: Callable[[dict[str, Any]], Any], settings: Mapping[str, Any]) -> Any:
    """Construct a client; `ConfigError` for settings that librdkafka refuses."""
    from confluent_kafka import KafkaException

    try:
        return kind(dict(settings))
    except (KafkaException, TypeError, ValueError) as e:
        reason = e.args[0].str() if isinstance(e, KafkaException) else e
        raise ConfigError(f"the client refuses its settings: {reason}") from e
