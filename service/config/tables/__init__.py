"""Every configuration key that Firn accepts: one table per concern, and their union. [P]

Names, types, defaults and bounds are Apache Kafka 4.3's (`LogConfig`, `KafkaConfig`) where Kafka has the key;
keys under `firn.` are Firn's own. A key is in these tables only if it has an effect; `config.foreign` has the
keys of others that have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from types import MappingProxyType
from typing import Final

from service.config.keys import ConfigKey
from service.config.tables.authorizer import AUTHORIZER
from service.config.tables.checks import S3_SCHEMES, http_url_problem, store_url_problem
from service.config.tables.cleaner import CLEANER
from service.config.tables.cluster import CLUSTER, CLUSTER_TOPIC
from service.config.tables.disk import DISK
from service.config.tables.groups import GROUPS, OFFSETS_TOPIC
from service.config.tables.log import HOURS_AND_MINUTES, LOG
from service.config.tables.network import NETWORK
from service.config.tables.node import NODE
from service.config.tables.oauthbearer import OAUTHBEARER_KEYS
from service.config.tables.quotas import QUOTAS
from service.config.tables.remote import REMOTE
from service.config.tables.replication import REPLICATION, REPLICATION_TOPIC
from service.config.tables.sasl import SASL
from service.config.tables.ssl import SSL
from service.config.tables.tokens import TOKENS
from service.config.tables.topic import TOPIC
from service.config.tables.transactions import TRANSACTIONS

__all__ = [
    "BROKER_KEYS",
    "S3_SCHEMES",
    "TOPIC_KEYS",
    "http_url_problem",
    "store_url_problem",
]


def _broker_default(topic_key: ConfigKey) -> ConfigKey:
    """Return the broker key that gives a topic key its default: same type and bounds, the broker's name."""
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


_TOPIC: Final = (*TOPIC, *CLUSTER_TOPIC, *REPLICATION_TOPIC)
TOPIC_KEYS: Final[Mapping[str, ConfigKey]] = MappingProxyType({key.name: key for key in _TOPIC})


def _node_keys() -> Mapping[str, ConfigKey]:
    tables = (
        NODE, NETWORK, SSL, SASL, OAUTHBEARER_KEYS, TOKENS, AUTHORIZER, QUOTAS, CLUSTER, REPLICATION, LOG,
        CLEANER, OFFSETS_TOPIC, GROUPS, TRANSACTIONS, DISK, REMOTE,
    )  # fmt: skip
    defaults = (_broker_default(key) for key in _TOPIC if key.synonyms)
    every = (*chain.from_iterable(tables), *defaults, *HOURS_AND_MINUTES)
    return MappingProxyType({key.name: key for key in every})


BROKER_KEYS: Final = _node_keys()
