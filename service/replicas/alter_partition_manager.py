"""AlterPartition requests, which propose ISRs to the controller: the shell of `AlterPartitionQueue`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.clock import Clock
from service.base.errors import RequestError
from service.base.rate_limited_log import RateLimitedLog
from service.base.types import TopicIdPartition
from service.controller_client.controller_channel import OutcomeUnknown
from service.controller_client.forwarding import Asker
from service.replication.alter_partition_queue import (
    AlterPartitionQueue,
    ProposalRequest,
    ProposalResponse,
    ProposalResult,
    ProposalSettings,
)
from service.replication.leader import Accepted, IsrProposal, LeaderState
from service.wire.api import ApiKey, request_module
from service.wire.errors import UnsupportedVersion

_LOG = logging.getLogger(__name__)
_TIMEOUT_MS: Final = 5_000
_RECOVERED: Final = 0
_OVERTAKEN: Final = frozenset(
    {
        ErrorCode.fenced_leader_epoch,
        ErrorCode.ineligible_replica,
        ErrorCode.invalid_update_version,
        ErrorCode.new_leader_elected,
        ErrorCode.operation_not_attempted,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
    }
)
"""Errors of a proposal that the metadata has overtaken: the controller is right, and this leader learns it
with the next metadata (Kafka `Partition.handleAlterPartitionError` logs none of them above INFO)."""


class AlterPartitionManager:
    """Sends one AlterPartition request at a time. Owned by the event loop."""

    def __init__(
        self,
        broker_id: int,
        broker_epoch: Callable[[], int],
        controllers: Asker,
        clock: Clock,
        leader_of: Callable[[TopicIdPartition], LeaderState | None],
        happened: Callable[[ProposalResult], None],
    ) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._controllers = controllers
        self._clock = clock
        self._happened = happened
        self._proposals = AlterPartitionQueue(leader_of, ProposalSettings())
        self._wakeup = asyncio.Event()
        now = asyncio.get_running_loop().time
        self._warnings = RateLimitedLog(_LOG, now=now)
        self._overtaken = RateLimitedLog(_LOG, now=now)

    def propose(self, tip: TopicIdPartition) -> None:
        """Queue the new proposal of the leader of `tip`."""
        self._proposals.propose(tip)
        self._wakeup.set()

    async def run(self) -> None:
        """Send proposals until cancelled."""
        while True:
            self._wakeup.clear()
            request = self._proposals.next_request(self._clock.monotonic_ms())
            if request is None:
                await self._wait()
            else:
                for one in await self._ask(request):
                    self._happened(one)

    async def _wait(self) -> None:
        due_ms = self._proposals.next_deadline_ms()
        left_s = None if due_ms is None else max(due_ms - self._clock.monotonic_ms(), 0) / 1000
        with suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await self._wakeup.wait()

    async def _ask(self, request: ProposalRequest) -> list[ProposalResult]:
        try:
            answer = await self._controllers.ask(
                ApiKey.ALTER_PARTITION, self._message(request.proposals), timeout_ms=_TIMEOUT_MS
            )
        except (RequestError, UnsupportedVersion) as e:
            was_sent = isinstance(e, OutcomeUnknown)
            self._warnings.warning(
                "AlterPartition of %d partitions failed, retrying: %s", len(request.proposals), e
            )
            return self._proposals.failed(request.number, self._clock.monotonic_ms(), was_sent=was_sent)
        response = self._read(answer, request.proposals)
        if response.error is not ErrorCode.none:
            self._warnings.warning("controller rejected AlterPartition: %s", response.error.name)
        return self._proposals.answered(request.number, response, self._clock.monotonic_ms())

    def _message(self, proposals: Sequence[tuple[TopicIdPartition, IsrProposal]]) -> Any:
        module = request_module(ApiKey.ALTER_PARTITION)
        topics: dict[UUID, list[Any]] = {}
        for tip, proposal in proposals:
            topics.setdefault(tip.topic_id, []).append(
                module.PartitionData(
                    partition_index=tip.partition,
                    leader_epoch=proposal.leader_epoch,
                    new_isr_with_epochs=tuple(
                        module.BrokerState(broker_id=one.broker_id, broker_epoch=one.broker_epoch)
                        for one in proposal.isr
                    ),
                    leader_recovery_state=_RECOVERED,
                    partition_epoch=proposal.partition_epoch,
                )
            )
        return module.AlterPartitionRequest(
            broker_id=self._broker_id,
            broker_epoch=self._broker_epoch(),
            topics=tuple(
                module.TopicData(topic_id=topic_id, partitions=tuple(partitions))
                for topic_id, partitions in topics.items()
            ),
        )

    def _read(
        self, answer: Any, proposals: Sequence[tuple[TopicIdPartition, IsrProposal]]
    ) -> ProposalResponse:
        """Return the outcomes of the proposals; partitions that were not proposed are ignored."""
        proposed = {(tip.topic_id, tip.partition): tip for tip, _ in proposals}
        outcomes: dict[TopicIdPartition, Accepted | ErrorCode] = {}
        for topic in answer.topics:
            for one in topic.partitions:
                tip = proposed.get((topic.topic_id, one.partition_index))
                if tip is None:
                    continue
                if one.error_code == ErrorCode.none:
                    outcomes[tip] = Accepted(int(one.leader_epoch), int(one.partition_epoch))
                else:
                    outcomes[tip] = one.error_code
                    self._log_rejected(tip, one.error_code)
        return ProposalResponse(answer.error_code, outcomes)

    def _log_rejected(self, tip: TopicIdPartition, error: ErrorCode) -> None:
        words = "controller rejected the ISR of %s: %s"
        if error in _OVERTAKEN:
            self._overtaken.log(logging.INFO, words, tip, error.name)
        else:
            self._warnings.warning(words, tip, error.name)
