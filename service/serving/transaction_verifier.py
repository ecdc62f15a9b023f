"""Questions to the coordinators of transactional ids: the shell of `transactions.verification`.

Produce and TxnOffsetCommit ask before the first batch of a transaction in a partition. Owned by the event
loop; it is loaded with the first such request of a node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from kio.schema.add_partitions_to_txn.v5.request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kio.schema.errors import ErrorCode

from service.base.clock import Clock
from service.base.errors import FirnError, RequestError
from service.base.java_hash import partition_of
from service.base.printable import printable
from service.base.rate_limited_log import RateLimitedLog
from service.base.task_set import TaskSet
from service.base.types import TopicIdPartition
from service.metadata.image import MetadataImage
from service.serving.broker_channels import BrokerChannels
from service.transactions.verification import (
    Answered,
    AskBroker,
    Asked,
    AskHere,
    Errors,
    Mode,
    RetrySettings,
    TransactionQuestion,
    VerificationEffect,
    VerificationQueue,
)
from service.wire.apis import ApiKey
from service.wire.errors import UnsupportedVersion

_log = logging.getLogger(__name__)

OWN_ANSWER_S: Final = 30.0
"""Longest wait for this node's coordinator, as for another's: a decision waits for its replicas as long as
its transaction may last."""
AskOwn: TypeAlias = Callable[[TransactionQuestion], Awaitable[Errors]]
"""Asks the coordinator of this node. Raises `RequestError`."""


class TransactionVerifier:
    """Verification of transactional batches on this node."""

    def __init__(
        self,
        own_id: int,
        image: Callable[[], MetadataImage],
        topic: str,
        brokers: BrokerChannels,
        ask_own: AskOwn,
        clock: Clock,
        retries: Callable[[], RetrySettings] = RetrySettings,
    ) -> None:
        """`topic`: ``__transaction_state``."""
        self._image = image
        self._topic = topic
        self._brokers = brokers
        self._ask_own = ask_own
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self.machine = VerificationQueue(self._coordinator_of, own_id, retries)
        self._answers: dict[Asked, asyncio.Future[Errors]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = TaskSet(self._loop)
        self._warnings = RateLimitedLog(_log, now=self._loop.time)

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        tips: Sequence[TopicIdPartition],
        mode: Mode,
    ) -> Mapping[TopicIdPartition, ErrorCode | int]:
        """Ask whether these partitions are part of the transaction, or add them to it; return an error for
        each (`ErrorCode.none`: it is part of it).

        Errors are those of the coordinator, or NETWORK_EXCEPTION and COORDINATOR_NOT_AVAILABLE where there is
        no answer; `verification.produce_error` gives those of a Produce. Returns within the time of one
        request to a coordinator, twice that where one is under way already.
        """
        names = tuple([(tip.topic, tip.partition) for tip in tips])
        asked = Asked(
            TransactionQuestion(transactional_id, producer_id, producer_epoch, names, mode),
            self._clock.monotonic_ms(),
        )
        answer = self._answers[asked] = self._loop.create_future()
        try:
            self._carry_out(self.machine.ask(asked, asked.began_ms))
            errors = await answer
        finally:
            del self._answers[asked]
        return {tip: errors[name] for tip, name in zip(tips, names, strict=True)}

    async def close(self) -> None:
        """Stop. Whoever waits is cancelled with the requests that wait."""
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.close()
        await self._brokers.close()

    def _coordinator_of(self, transactional_id: str) -> int | None:
        topic = self._image().topics_by_name.get(self._topic)
        if topic is None or not len(topic.partitions):
            return None
        found = topic.partitions.get(partition_of(transactional_id, len(topic.partitions)))
        return found.leader if found is not None and found.has_leader else None

    # -- effects

    def _carry_out(self, effects: Iterable[VerificationEffect]) -> None:
        for effect in effects:
            if isinstance(effect, AskBroker):
                self._tasks.begin(self._ask(effect), "verification of transactions")
            elif isinstance(effect, AskHere):
                self._tasks.begin(self._ask_here(effect.asked), "verification of a transaction")
            else:
                assert isinstance(effect, Answered)
                answer = self._answers.get(effect.asked)
                if answer is not None and not answer.done():
                    answer.set_result(effect.errors)
        due_ms = self.machine.due_ms
        if due_ms is not None and self._timer is None:
            wait_s = max(0, due_ms - self._clock.monotonic_ms()) / 1000
            self._timer = self._loop.call_later(wait_s, self._timed)

    def _timed(self) -> None:
        self._timer = None
        self._carry_out(self.machine.due(self._clock.monotonic_ms()))

    async def _ask(self, effect: AskBroker) -> None:
        broker, machine = effect.broker, self.machine
        request = AddPartitionsToTxnRequest(
            transactions=tuple([_transaction(one) for one in effect.questions])
        )
        try:
            channel = self._brokers.to(broker)
            highest = (await channel.versions()).get(ApiKey.ADD_PARTITIONS_TO_TXN, (-1, -1))[1]
            if highest < 4:
                raise UnsupportedVersion(f"AddPartitionsToTxn {highest}")
            response = await channel.call(ApiKey.ADD_PARTITIONS_TO_TXN, None, request)
        except UnsupportedVersion:
            self._warnings.warning("broker %d cannot verify transactions: its partitions pass", broker)
            self._carry_out(machine.unsupported(broker, self._clock.monotonic_ms()))
        except (OSError, FirnError) as e:
            self._warnings.log(
                logging.INFO, "broker %d did not verify transactions: %s", broker, printable(e)
            )
            self._carry_out(machine.lost(broker, self._clock.monotonic_ms()))
        else:
            now_ms = self._clock.monotonic_ms()
            if response.error_code != ErrorCode.none:
                self._carry_out(machine.refused(broker, response.error_code, now_ms))
            else:
                self._carry_out(machine.answered(broker, _results(response), now_ms))

    async def _ask_here(self, asked: Asked) -> None:
        question = asked.question
        errors: Errors
        try:
            async with asyncio.timeout(OWN_ANSWER_S):
                errors = await self._ask_own(question)
        except RequestError as e:
            errors = dict.fromkeys(question.partitions, e.code)
        except TimeoutError:
            errors = dict.fromkeys(question.partitions, ErrorCode.network_exception)
        self._carry_out(self.machine.answered_here(asked, errors, self._clock.monotonic_ms()))


def _transaction(question: TransactionQuestion) -> AddPartitionsToTxnTransaction:
    topics: dict[str, list[int]] = {}
    for topic, partition in question.partitions:
        topics.setdefault(topic, []).append(partition)
    return AddPartitionsToTxnTransaction(
        transactional_id=question.transactional_id,
        producer_id=question.producer_id,
        producer_epoch=question.producer_epoch,
        verify_only=question.mode is not Mode.ADD,
        topics=tuple(
            [
                AddPartitionsToTxnTopic(name=topic, partitions=tuple(partitions))
                for topic, partitions in topics.items()
            ]
        ),
    )


def _results(response: Any) -> dict[str, dict[tuple[str, int], ErrorCode | int]]:
    return {
        transaction.transactional_id: {
            (topic.name, one.partition_index): one.partition_error_code
            for topic in transaction.topic_results
            for one in topic.results_by_partition
        }
        for transaction in response.results_by_transaction
    }
