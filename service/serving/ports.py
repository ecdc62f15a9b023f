"""What handlers ask of the controller, in small pieces: the rest of it is not theirs. [P]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from service.config.settings import BrokerConfig
from service.metadata.controller.features_control import FeatureUpdate
from service.metadata.controller.requests import (
    AlterResource,
    AlterResourceResult,
    CreatePartitions,
    CreatePartitionsResult,
    CreateTopic,
    CreateTopicResult,
    DeleteTopic,
    DeleteTopicResult,
    ProducerIdBlock,
)


class TopicMaker(Protocol):
    """Creates topics, each with its own outcome; they are known to this node when it returns."""

    async def create_topics(
        self, requests: Sequence[CreateTopic], *, validate_only: bool = False
    ) -> list[CreateTopicResult]: ...


class TopicAdmin(TopicMaker, Protocol):
    """Creates topics, has them grow, and deletes them; each has its own outcome."""

    async def create_partitions(
        self, requests: Sequence[CreatePartitions], *, validate_only: bool = False
    ) -> list[CreatePartitionsResult]: ...

    async def delete_topics(self, requests: Sequence[DeleteTopic]) -> list[DeleteTopicResult]: ...


class ConfigAdmin(Protocol):
    """Changes settings, each resource wholly or not at all."""

    async def incremental_alter_configs(
        self,
        resources: Sequence[AlterResource],
        *,
        validate_only: bool = False,
        via_broker: int | None = None,
    ) -> list[AlterResourceResult]: ...

    async def alter_configs(
        self,
        resources: Sequence[AlterResource],
        *,
        validate_only: bool = False,
        via_broker: int | None = None,
    ) -> list[AlterResourceResult]: ...


class FeatureAdmin(Protocol):
    """Changes the cluster's finalized features, all that are asked for or none."""

    async def update_features(
        self, updates: Sequence[FeatureUpdate], *, validate_only: bool = False
    ) -> None: ...


class BrokerAdmin(TopicMaker, ConfigAdmin, Protocol):
    """What a broker asks of the controller for itself, and for its clients after a look of its own."""

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock: ...


class AdminHost(Protocol):
    """What the admin's handlers need of their node, a broker or a controller."""

    @property
    def config(self) -> BrokerConfig: ...
    @property
    def topic_admin(self) -> TopicAdmin: ...
    @property
    def config_admin(self) -> ConfigAdmin: ...
    @property
    def feature_admin(self) -> FeatureAdmin: ...
