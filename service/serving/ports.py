"""Interfaces of the controller and of coordinators that handlers use, each with few methods."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from service.config.settings import BrokerConfig
from service.coordinator.runtime import Runtime
from service.coordinator.shard import Decide, Query
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
from service.metadata.image import MetadataImage
from service.quotas.mutations import MutationQuota
from service.security.operations import AclOperation
from service.serving.authorization import AuthorizerHost

if TYPE_CHECKING:
    from service.network.request_meter import RequestQuotas
    from service.transactions.shard import TransactionShard

R = TypeVar("R")


class TopicMaker(Protocol):
    """Creates topics, each with its own outcome. This node knows them when the call returns."""

    async def create_topics(
        self, requests: Sequence[CreateTopic], *, validate_only: bool = False
    ) -> list[CreateTopicResult]: ...


class TopicAdmin(Protocol):
    """Creates topics, adds partitions to them, and deletes them; each has its own outcome.

    `quota` counts the partitions of each change, and may refuse it."""

    async def create_topics(
        self,
        requests: Sequence[CreateTopic],
        *,
        validate_only: bool = False,
        quota: MutationQuota | None = None,
    ) -> list[CreateTopicResult]: ...

    async def create_partitions(
        self,
        requests: Sequence[CreatePartitions],
        *,
        validate_only: bool = False,
        quota: MutationQuota | None = None,
    ) -> list[CreatePartitionsResult]: ...

    async def delete_topics(
        self, requests: Sequence[DeleteTopic], *, quota: MutationQuota | None = None
    ) -> list[DeleteTopicResult]: ...


class ConfigAdmin(Protocol):
    """Changes settings: all changes of a resource or none."""

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
    """Changes the cluster's finalized features: all of the request or none."""

    async def update_features(
        self, updates: Sequence[FeatureUpdate], *, validate_only: bool = False
    ) -> None: ...


class BrokerAdmin(TopicMaker, ConfigAdmin, Protocol):
    """The controller's interface to a broker, for itself and for requests of clients that it has checked."""

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock: ...


class AdminHost(AuthorizerHost, Protocol):
    """Interface of a node, broker or controller, to the handlers of admin requests."""

    @property
    def config(self) -> BrokerConfig: ...
    @property
    def image(self) -> MetadataImage:
        """The newest committed metadata."""

    @property
    def alters_loggers(self) -> AclOperation:
        """The operation on the cluster that it takes to change levels of loggers."""

    @property
    def topic_admin(self) -> TopicAdmin: ...
    @property
    def config_admin(self) -> ConfigAdmin: ...
    @property
    def feature_admin(self) -> FeatureAdmin: ...
    @property
    def quotas(self) -> RequestQuotas: ...


class CoordinatedTransactions(Protocol):
    """Interface of the transaction coordinator to handlers."""

    @property
    def runtime(self) -> Runtime[TransactionShard]: ...

    def partition_of(self, key: str) -> int:
        """Return the partition that coordinates a transactional id. Raises `RequestError`."""

    def write(self, key: str, decide: Decide[TransactionShard, R]) -> R | Awaitable[R]:
        """Have the id's shard decide, and return its answer once it is committed. Raises `RequestError`."""

    def read(self, key: str, query: Query[TransactionShard, R]) -> R:
        """Return the result of `query` on the committed state. Raises `RequestError`."""
