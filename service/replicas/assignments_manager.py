"""AssignReplicasToDirs requests, for replicas whose log directory differs from the metadata's.

A broker with several directories chooses one for each replica, and a new disk has a new id. Until the
controller knows, it cannot move the leaderships of a directory that fails. Apache Kafka
``AssignmentsManager`` (KIP-858).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.rate_limited_log import RateLimitedLog
from service.base.types import TopicIdPartition
from service.controller_client.forwarding import Asker
from service.metadata.image import PartitionImage
from service.wire.api import ApiKey, request_module
from service.wire.errors import UnsupportedVersion

_LOG = logging.getLogger(__name__)
_MOST_AT_ONCE: Final = 2_000
_TIMEOUT_MS: Final = 30_000
_AGAIN_S: Final = 1.0


class AssignmentsManager:
    """Sends one request at a time. Owned by the event loop."""

    def __init__(self, broker_id: int, broker_epoch: Callable[[], int], controllers: Asker) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._controllers = controllers
        self._unreported: dict[TopicIdPartition, UUID] = {}
        """directories of replicas that the metadata has elsewhere"""
        self._wakeup = asyncio.Event()
        self._warnings = RateLimitedLog(_LOG, now=asyncio.get_running_loop().time)

    def assign(self, tip: TopicIdPartition, replica: PartitionImage, directory_id: UUID) -> None:
        """Note the directory of this broker's replica; `replica` is its metadata."""
        known = dict(zip(replica.replicas, replica.directories, strict=False)).get(self._broker_id)
        if known is None or known == directory_id:
            self._unreported.pop(tip, None)
        elif self._unreported.get(tip) != directory_id:
            self._unreported[tip] = directory_id
            self._wakeup.set()

    def forget(self, tip: TopicIdPartition) -> None:
        """Drop a replica that is no longer on this broker."""
        self._unreported.pop(tip, None)

    async def run(self) -> None:
        """Send requests until cancelled."""
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            while self._unreported:
                some = dict(list(self._unreported.items())[:_MOST_AT_ONCE])
                if not await self._send(some):
                    await asyncio.sleep(_AGAIN_S)

    async def _send(self, directories: Mapping[TopicIdPartition, UUID]) -> bool:
        """Send a request; returns whether the controller has processed it. The metadata says what became of
        each."""
        try:
            answer = await self._controllers.ask(
                ApiKey.ASSIGN_REPLICAS_TO_DIRS,
                self._message(directories),
                timeout_ms=_TIMEOUT_MS,
            )
        except (RequestError, UnsupportedVersion) as e:
            self._warnings.warning(
                "AssignReplicasToDirs of %d replicas failed, retrying: %s", len(directories), e
            )
            return False
        if answer.error_code != ErrorCode.none:
            name = answer.error_code.name
            self._warnings.warning(
                "AssignReplicasToDirs of %d replicas failed, retrying: %s", len(directories), name
            )
            return False
        for tip, directory_id in directories.items():
            if self._unreported.get(tip) == directory_id:
                del self._unreported[tip]
        refused = [
            one.error_code.name
            for directory in answer.directories
            for topic in directory.topics
            for one in topic.partitions
            if one.error_code != ErrorCode.none
        ]
        if refused:
            self._warnings.warning(
                "controller rejected directories of %d replicas: %s",
                len(refused),
                ", ".join(sorted(set(refused))),
            )
        return True

    def _message(self, directories: Mapping[TopicIdPartition, UUID]) -> Any:
        module = request_module(ApiKey.ASSIGN_REPLICAS_TO_DIRS)
        found: dict[UUID, dict[UUID, list[Any]]] = {}
        for tip, directory_id in directories.items():
            partition = module.PartitionData(partition_index=tip.partition)
            found.setdefault(directory_id, {}).setdefault(tip.topic_id, []).append(partition)
        return module.AssignReplicasToDirsRequest(
            broker_id=self._broker_id,
            broker_epoch=self._broker_epoch(),
            directories=tuple(
                module.DirectoryData(
                    id_=directory_id,
                    topics=tuple(
                        module.TopicData(topic_id=topic_id, partitions=tuple(partitions))
                        for topic_id, partitions in topics.items()
                    ),
                )
                for directory_id, topics in found.items()
            ),
        )
