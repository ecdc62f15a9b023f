"""Transaction coordinator of this node: a shard for each partition of ``__transaction_state`` that it leads.

Around the shards are what sends markers, and what asks other coordinators about the partitions of a
transaction. All of it is loaded with the first transaction; until then this module is a few methods.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from service.base.errors import RequestError
from service.base.printable import printable
from service.base.rate_limited_log import RateLimitedLog
from service.base.task_set import TaskSet
from service.config.settings import BrokerConfig
from service.coordinator.answers import settled
from service.coordinator.environment import RuntimeSettings
from service.metadata.delta import MetadataDelta
from service.metadata.features import TRANSACTION_VERSION
from service.metadata.image import MetadataImage
from service.serving.internal_topics import TRANSACTIONS
from service.serving.topic_coordinator import CoordinatorParts, TopicCoordinator, number_of
from service.serving.transaction_figures import TransactionFigures, figures_of

if TYPE_CHECKING:
    from kio.schema.errors import ErrorCode

    from service.base.types import TopicIdPartition
    from service.serving.transaction_marker_sender import TransactionMarkerSender
    from service.serving.transaction_verifier import TransactionVerifier
    from service.transactions.marker_requests import PreparedTransaction
    from service.transactions.metrics import TransactionMetrics
    from service.transactions.shard import TransactionShard
    from service.transactions.verification import Mode

_log = logging.getLogger(__name__)

_SHARD_MODULE: Final = "service.serving.transaction_shards"
"""Module with all that only transactions need; a node without them does without it."""
_FIRST_ANSWER_MS: Final = 1000
"""Least wait for the commit of a decision: most have the timeout of their transaction for it."""


class TransactionCoordinators(TopicCoordinator["TransactionShard"]):
    """The transaction coordinator of this node. Owned by the event loop."""

    def __init__(
        self,
        parts: CoordinatorParts,
        producer_id: Callable[[], Awaitable[int]],
        make_sender: Callable[[TransactionCoordinators], TransactionMarkerSender],
        make_verifier: Callable[[TransactionCoordinators], TransactionVerifier],
    ) -> None:
        """`producer_id` returns a new one. `make_sender` and `make_verifier` are called once the module
        `transaction_shards` is loaded."""
        super().__init__(TRANSACTIONS, parts, self._runtime_settings, _SHARD_MODULE)
        self._producer_id = producer_id
        self._make_sender = make_sender
        self._make_verifier = make_verifier
        self.sender: TransactionMarkerSender | None = None
        """None until this node coordinates"""
        self.verifier: TransactionVerifier | None = None
        """None until a partition of this node has had a transaction"""
        self.produce_module: Any = None
        """`transactional_produce`, None until a client has sent a batch of a transaction"""
        self.metrics: TransactionMetrics | None = None
        self._settings: tuple[BrokerConfig, int, Any] | None = None
        self._tasks = TaskSet(asyncio.get_running_loop())
        self._warnings = RateLimitedLog(_log, now=asyncio.get_running_loop().time)

    async def close(self) -> None:
        """Stop coordinating, sending markers and asking others."""
        await self._tasks.close()
        await super().close()
        if self.sender is not None:
            await self.sender.close()
        if self.verifier is not None:
            await self.verifier.close()

    def figures(self, now_ms: int) -> TransactionFigures:
        """Return the figures of transactions at this moment."""
        return figures_of(self.runtime, self.metrics, self.sender, self.verifier, now_ms)

    # -- settings

    def _runtime_settings(self) -> RuntimeSettings:
        size = number_of(self._parts.config().transactions, "transaction.state.log.load.buffer.size")
        return RuntimeSettings(commit_timeout_ms=_FIRST_ANSWER_MS, load_buffer_bytes=size)

    @property
    def transaction_version(self) -> int:
        """Level of the cluster's ``transaction.version``."""
        return self._parts.image().features.get(TRANSACTION_VERSION, 0)

    def settings(self) -> Any:
        """Return the `TransactionSettings`; the shards' module is loaded."""
        config, level = self._parts.config(), self.transaction_version
        if self._settings is None or self._settings[0] is not config or self._settings[1] != level:
            made = self.shard_module.settings_of(config.transactions, level)
            self._settings = config, level, made
        return self._settings[2]

    def cannot_begin(self) -> str | None:
        """Return why no transaction may begin in this cluster: a broker that does not know the feature
        ``transaction.version`` would show its followers' readers what is not decided."""
        for broker in self._parts.image().brokers.values():
            if all(one.name != TRANSACTION_VERSION for one in broker.features):
                return f"broker {broker.id} does not support transactions"
        return None

    # -- shards

    def make_shard(self, partition: int, leader_epoch: int) -> TransactionShard:
        if self.metrics is None:
            self.metrics = self.shard_module.new_metrics()
        if self.sender is None:
            self.sender = self._make_sender(self)
        sender = self.sender
        shard: TransactionShard = self.shard_module.make_shard(
            partition,
            leader_epoch,
            self.settings,
            self.metrics,
            lambda transaction: sender.prepared(partition, transaction),
            self._abort_with_a_new_id,
            _log.warning,
            lambda: sender.deposed(partition),
        )
        return shard

    def _abort_with_a_new_id(self, transactional_id: str) -> None:
        """Abort a transaction that is open for too long and whose producer id is used up."""
        self._tasks.begin(self._abort(transactional_id), "abort of a transaction")

    async def _abort(self, transactional_id: str) -> None:
        try:
            fresh_id = await self._producer_id()
            await settled(
                self.write(
                    transactional_id,
                    lambda shard, _, now_ms: shard.abort_timed_out(transactional_id, fresh_id, now_ms),
                )
            )
        except RequestError as e:
            self._warnings.log(
                logging.INFO, "transactional id %s is aborted later: %s", printable(transactional_id), e
            )

    async def complete(self, transaction: PreparedTransaction) -> None:
        """Write that all markers of a transaction are written. Raises `RequestError`."""
        await settled(
            self.write(
                transaction.transactional_id,
                lambda shard, _, now_ms: shard.markers_written(
                    transaction.transactional_id, transaction.producer_id, transaction.producer_epoch, now_ms
                ),
            )
        )

    # -- partitions of transactions

    @property
    def verifies(self) -> bool:
        """``transaction.partition.verification.enable``."""
        return bool(self._parts.config().transactions["transaction.partition.verification.enable"])

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        tips: Sequence[TopicIdPartition],
        mode: Mode,
    ) -> Mapping[TopicIdPartition, ErrorCode | int]:
        """Return `TransactionVerifier.verify`, loaded with the first call."""
        if self.verifier is None:
            await self._load_shard_module()
            if self.verifier is None:
                self.verifier = self._make_verifier(self)
        return await self.verifier.verify(transactional_id, producer_id, producer_epoch, tips, mode)

    # -- reports of the applier

    def applied(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        super().applied(before, image, delta)
        if self.sender is not None:
            changed = [image.topics_by_id[topic_id].name for topic_id in delta.topics]
            changed += [topic.name for topic in delta.deleted_topics.values()]
            self.sender.image_changed(None if delta.brokers else changed)
