"""Every configuration key that Firn accepts: one table per concern, and what they come to. [P]

Names, types, defaults and bounds are Apache Kafka 4.3's (`LogConfig`, `KafkaConfig`) wherever Kafka has the
key; keys under `firn.` are ours. A key is in these tables only if it has an effect; `REFUSED` says why for
the well-known ones that have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from service.config.keys import ConfigKey
from service.config.tables.checks import S3_SCHEMES, http_url_problem, store_url_problem
from service.config.tables.cleaner import CLEANER
from service.config.tables.disk import DISK
from service.config.tables.groups import GROUPS, OFFSETS_TOPIC
from service.config.tables.log import HOURS_AND_MINUTES, LOG
from service.config.tables.network import NETWORK
from service.config.tables.node import NODE
from service.config.tables.quorum import QUORUM
from service.config.tables.refused import REFUSED, refusal
from service.config.tables.remote import REMOTE
from service.config.tables.topic import TOPIC

__all__ = [
    "BROKER_KEYS",
    "REFUSED",
    "S3_SCHEMES",
    "TOPIC_KEYS",
    "http_url_problem",
    "refusal",
    "store_url_problem",
]


def _broker_default(topic_key: ConfigKey) -> ConfigKey:
    """The broker key that gives a topic key its default: same type and bounds, under the broker's name."""
    name = topic_key.synonyms[0].name
    several = len(topic_key.synonyms) > 1
    return ConfigKey(
        name=name,
        type=topic_key.type,
        # a key with hours or minutes beside it has no default of its own, as in Kafka
        default=None if several else topic_key.default,
        doc=f"Default of the topic key `{topic_key.name}`: {topic_key.doc}",
        at_least=topic_key.at_least,
        at_most=topic_key.at_most,
        one_of=topic_key.one_of,
        check=topic_key.check,
        dynamic=True,
    )


TOPIC_KEYS: Final[Mapping[str, ConfigKey]] = MappingProxyType({key.name: key for key in TOPIC})
BROKER_KEYS: Final[Mapping[str, ConfigKey]] = MappingProxyType(
    {
        key.name: key
        for key in (
            *NODE,
            *NETWORK,
            *QUORUM,
            *LOG,
            *CLEANER,
            *OFFSETS_TOPIC,
            *GROUPS,
            *DISK,
            *REMOTE,
            *(_broker_default(key) for key in TOPIC if key.synonyms),
            *HOURS_AND_MINUTES,
        )
    }
)
