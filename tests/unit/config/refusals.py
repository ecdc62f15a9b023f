"""Two nodes, and the messages of settings that they refuse, for tests."""

from __future__ import annotations

import pytest

from service.base.errors import ConfigError
from service.config.settings import BrokerConfig, topic_config

PLAIN = BrokerConfig.from_properties({})
TIERED = BrokerConfig.from_properties({"firn.remote.url": "s3://bucket/prefix"})


def refused(properties: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as raised:
        BrokerConfig.from_properties(properties)
    return str(raised.value)


def topic_refused(overrides: dict[str, str], broker: BrokerConfig = TIERED) -> str:
    with pytest.raises(ConfigError) as raised:
        topic_config(overrides, broker)
    return str(raised.value)
