"""Topics that coordinators keep: what they are called, and how they are made once they are needed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError, StorageError
from service.client.async_connection import retrieve_exception
from service.config.settings import BrokerConfig
from service.metadata.controller.requests import CreateTopic
from service.metadata.controller.topic_names import OFFSETS_TOPIC
from service.metadata.image import MetadataImage, TopicImage
from service.serving.ports import TopicMaker

_log = logging.getLogger(__name__)

OFFSETS: Final = OFFSETS_TOPIC
INTERNAL_TOPICS: Final = frozenset({OFFSETS, "__transaction_state", "__share_group_state"})
ADMIN_CLIENT: Final = "__admin_client"
"""Kafka's client id for who may write to internal topics."""
CREATED_WITHIN_S: Final = 2.0
"""A client, and what else it has asked on its connection, is kept no longer for topics that are missing:
there may be no controller, and it asks again."""
_MOST_REPLICAS: Final = 3


def as_created(name: str, config: BrokerConfig, image: MetadataImage) -> CreateTopic:
    """How an internal topic is made: its own numbers and settings, whoever asks for it.

    Its replicas are as many as is set; where nothing is, as there are brokers, and no more than three.
    """
    if name != OFFSETS:
        return CreateTopic(name)
    groups, factor = config.groups, "offsets.topic.replication.factor"
    given = factor in config.static or factor in config.dynamic or factor in config.dynamic_default
    replicas = int(str(groups[factor])) if given else min(_MOST_REPLICAS, max(len(image.brokers), 1))
    return CreateTopic(
        name,
        num_partitions=int(str(groups["offsets.topic.num.partitions"])),
        replication_factor=replicas,
        configs=(
            ("cleanup.policy", "compact"),
            ("compression.type", "producer"),
            ("segment.bytes", str(groups["offsets.topic.segment.bytes"])),
        ),
    )


class InternalTopics:
    """Makes them; who needs one that is being made waits for that. Owned by the event loop."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        image: Callable[[], MetadataImage],
        admin: TopicMaker,
    ) -> None:
        self._config = config
        self._image = image
        self._admin = admin
        self._making: dict[str, asyncio.Task[None]] = {}
        self._refusal = ""
        """why it could not be done the last time; clients ask again and again"""

    def find(self, name: str) -> TopicImage | None:
        return self._image().topics_by_name.get(name)

    async def made(self, name: str) -> TopicImage:
        """The topic, which is made if it is not there; COORDINATOR_NOT_AVAILABLE where it cannot be, or is
        still being made."""
        topic = self.find(name)
        if topic is not None:
            return topic
        making = self._making.get(name)
        if making is None:
            making = asyncio.get_running_loop().create_task(self._make(name), name=f"make-{name}")
            self._making[name] = making
            making.add_done_callback(lambda _: self._making.pop(name, None))
            making.add_done_callback(retrieve_exception)  # who asked may have gone
        done, _ = await asyncio.wait({making}, timeout=CREATED_WITHIN_S)
        for one in done:
            one.result()
        topic = self.find(name)
        if topic is None:
            raise RequestError(ErrorCode.coordinator_not_available, f"{name} is not there yet")
        return topic

    async def _make(self, name: str) -> None:
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
            [result] = await self._admin.create_topics([as_created(name, self._config(), self._image())])
        except (RequestError, StorageError) as e:
            raise RequestError(ErrorCode.coordinator_not_available, f"{name} cannot be made: {e}") from e
        if result.error not in (ErrorCode.none, ErrorCode.topic_already_exists):
            raise RequestError(
                ErrorCode.coordinator_not_available, f"{name} cannot be made: {result.message}"
            )
