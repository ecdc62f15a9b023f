"""Internal topics of coordinators: their names, and their creation on first need."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError, StorageError
from service.base.futures import retrieve_exception
from service.config.settings import BrokerConfig
from service.metadata.controller.requests import CreateTopic
from service.metadata.controller.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from service.metadata.image import MetadataImage, TopicImage
from service.security.change_audit import tell
from service.serving.change_words import automatically_created
from service.serving.ports import TopicMaker

_log = logging.getLogger(__name__)

OFFSETS: Final = OFFSETS_TOPIC
TRANSACTIONS: Final = TRANSACTIONS_TOPIC
ADMIN_CLIENT: Final = "__admin_client"
"""Kafka's client id of clients that may write to internal topics."""
CREATED_WITHIN_S: Final = 2.0
"""Longest wait of a request, and of those after it on its connection, for the creation of topics: there may
be no controller, and clients retry."""
_MOST_REPLICAS: Final = 3


def creation_request(name: str, config: BrokerConfig, image: MetadataImage) -> CreateTopic:
    """Return the request that creates an internal topic, with its own settings.

    Without a configured replication factor the topic has one replica per broker, at most three.
    """
    if name == OFFSETS:
        groups = config.groups
        return CreateTopic(
            name,
            num_partitions=int(str(groups["offsets.topic.num.partitions"])),
            replication_factor=_replicas("offsets.topic.replication.factor", groups, config, image),
            configs=(
                ("cleanup.policy", "compact"),
                ("compression.type", "producer"),
                ("segment.bytes", str(groups["offsets.topic.segment.bytes"])),
            ),
        )
    if name == TRANSACTIONS:
        keys, prefix = config.transactions, "transaction.state.log."
        replicas = _replicas(prefix + "replication.factor", keys, config, image)
        return CreateTopic(
            name,
            num_partitions=int(str(keys[prefix + "num.partitions"])),
            replication_factor=replicas,
            configs=(
                ("cleanup.policy", "compact"),
                ("compression.type", "uncompressed"),
                ("min.insync.replicas", str(min(int(str(keys[prefix + "min.isr"])), replicas))),
                ("segment.bytes", str(keys[prefix + "segment.bytes"])),
                ("unclean.leader.election.enable", "false"),
            ),
        )
    return CreateTopic(name)


def _replicas(key: str, values: Mapping[str, object], config: BrokerConfig, image: MetadataImage) -> int:
    given = key in config.static or key in config.dynamic or key in config.dynamic_default
    return int(str(values[key])) if given else min(_MOST_REPLICAS, max(len(image.brokers), 1))


class InternalTopics:
    """Creates internal topics; concurrent requests wait for the same creation. Owned by the event loop."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        image: Callable[[], MetadataImage],
        admin: TopicMaker,
    ) -> None:
        self._config = config
        self._image = image
        self._admin = admin
        self._creating: dict[str, asyncio.Task[None]] = {}
        self._refusal = ""
        """last logged reason of a failed creation: clients retry, and each reason is logged once"""

    def find(self, name: str) -> TopicImage | None:
        return self._image().topics_by_name.get(name)

    async def find_or_create(self, name: str) -> TopicImage:
        """Return the topic, and create it if it does not exist. Raises `RequestError`
        COORDINATOR_NOT_AVAILABLE if that fails or takes longer than `CREATED_WITHIN_S`.
        """
        topic = self.find(name)
        if topic is not None:
            return topic
        creating = self._creating.get(name)
        if creating is None:
            creating = asyncio.get_running_loop().create_task(self._create_once(name), name=f"create-{name}")
            self._creating[name] = creating
            creating.add_done_callback(lambda _: self._creating.pop(name, None))
            creating.add_done_callback(retrieve_exception)  # its client may have left
        done, _ = await asyncio.wait({creating}, timeout=CREATED_WITHIN_S)
        for one in done:
            one.result()
        topic = self.find(name)
        if topic is None:
            raise RequestError(ErrorCode.coordinator_not_available, f"topic {name} does not exist yet")
        return topic

    async def _create_once(self, name: str) -> None:
        try:
            await self._create(name)
        except RequestError as e:
            if str(e) != self._refusal:
                _log.warning("%s", e)
            self._refusal = str(e)
            raise
        self._refusal = ""

    async def _create(self, name: str) -> None:
        try:
            request = creation_request(name, self._config(), self._image())
            [result] = await self._admin.create_topics([request])
        except (RequestError, StorageError) as e:
            raise RequestError(
                ErrorCode.coordinator_not_available, f"topic {name} cannot be created: {e}"
            ) from e
        if result.error not in (ErrorCode.none, ErrorCode.topic_already_exists):
            raise RequestError(
                ErrorCode.coordinator_not_available, f"topic {name} cannot be created: {result.message}"
            )
        tell(automatically_created([result]))
