"""Produce with a transactional id: appends what the transaction's coordinator knows of (invariant X7).

Where the transaction of a batch is open in its partition already, the coordinator knows of it, and the batch
is appended at once. Else the request waits as a whole while the coordinator is asked (Produce 11 and older,
TV1) or told to add the partition (12 and newer, TV2). Meanwhile its partitions hold a guard each: an append
whose guard is no longer the partition's is refused, as a marker or another batch came in between. The
connection's next Produce is handled once this one is appended; responses that are owed before it stay owed in
their place, and its own is owed like that of any other Produce (ADR 46).

The order of checks is Kafka's (`KafkaApis.handleProduceRequest`, `ReplicaManager.handleProduceAppend`): what
concerns the client and the partition before the verification, what concerns the append after it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from service.base.errors import CorruptionError, FirnError, RequestError, StorageError
from service.base.slices import Slice
from service.base.steps import Steps, at_once
from service.base.types import INTERNAL_TOPICS, Buffer, TopicIdPartition
from service.hot.verification import VERIFICATION_OFF, VerificationGuard
from service.network.request import Answer, Owed, PendingResponse
from service.partition.partition import Partition
from service.records.batch import BatchHeader, is_zstd, read_header
from service.records.validation import check_frame, validate_produced
from service.serving.produce_operation import (
    FIRST_VERSION_WITH_ZSTD,
    MOST_AT_ONCE,
    ProduceBudget,
    ProduceOperation,
    check_internal,
    is_transactional,
    without_repeats,
)
from service.transactions.verification import Mode, mode_of_produce, produce_error
from service.wire.produce import ProducedTopic, ProducePartitionResult, TopicKey


class _Unverified(NamedTuple):
    """A batch whose transaction is not known to have its partition."""

    topic: TopicKey
    number: int
    partition: Partition
    header: BatchHeader


class TransactionalProduce(ProduceOperation):
    """One Produce request with a transactional id."""

    may_transact = True

    def begin(self, topics: Sequence[ProducedTopic]) -> Answer | Awaitable[Answer]:
        """Append the batches, at once if every transaction is open in its partition."""
        self._verified: dict[tuple[TopicKey, int], VerificationGuard | FirnError] = {}
        self._mode = mode_of_produce(self.context.api_version)
        named = sum([len(partitions) for _, partitions in topics])
        if named > MOST_AT_ONCE:
            return self._begin_in_slices(topics)
        if named > 1:
            self.budget = ProduceBudget(self.broker)
            topics = at_once(without_repeats(topics))
        self.topics = topics
        if at_once(self.refuse_transactional()):
            return self.answer()
        if self._all_are_open():
            return self.append_at_once()
        return self._verify_and_append()

    async def _begin_in_slices(self, topics: Sequence[ProducedTopic]) -> Answer:
        self.topics = await Slice().go_on(without_repeats(topics))
        if await Slice().go_on(self.refuse_transactional()):
            return await Slice().go_on(self._response())
        return await self._verify_and_append()

    def _all_are_open(self) -> bool:
        """Return whether each transactional batch belongs to a transaction of one producer that is open in
        the batch's partition."""
        producer: tuple[int, int] | None = None
        find = self.broker.replicas.get_by
        for topic, partitions in self.topics:
            for index, records in partitions:
                if records is None or not is_transactional(records):
                    continue
                header = read_header(records)
                one = header.producer_id, header.producer_epoch
                partition = find(topic, index)
                if (
                    partition is None
                    or producer not in (None, one)
                    or not partition.log.has_open_transaction(*one)
                ):
                    return False
                producer = one
        return True

    # -- verification

    async def _verify_and_append(self) -> Answer:
        """Verify, then append. The batches are validated as they are appended."""
        unverified = await Slice().go_on(self._checked())
        if len({(one.header.producer_id, one.header.producer_epoch) for one in unverified}) > 1:
            await Slice().go_on(self._refuse_two_producers())
            return await Slice().go_on(self._response())
        await self._verify(unverified)
        self.now_ms = self.broker.clock.now_ms()
        if self.budget is not None:
            self.budget.slice.begin()
        elif sum([len(partitions) for _, partitions in self.topics]) > 1:
            return await self._continue_in_slices()
        answer = self.append_at_once()
        if isinstance(answer, PendingResponse) and answer.weight:
            return Owed(answer)  # the connection goes on with its next request
        return await answer if isinstance(answer, Awaitable) else answer

    def _checked(self) -> Steps[list[_Unverified]]:
        """Return the transactional batches that pass the checks before the verification; the errors of the
        others are kept for their turn."""
        found: list[_Unverified] = []
        for topic, partitions in self.topics:
            for index, records in partitions:
                yield
                if records is None or not is_transactional(records):
                    continue
                try:
                    partition = self._may_be_asked(topic, index, records)
                except (RequestError, StorageError) as e:
                    self._verified[topic, index] = e
                    continue
                header = read_header(records)
                if header.producer_id >= 0:
                    found.append(_Unverified(topic, index, partition, header))
        return found

    def _may_be_asked(self, topic: TopicKey, index: int, records: Buffer) -> Partition:
        try:
            partition = self.broker.replicas.find(topic, index)
        except (RequestError, StorageError):
            self.check_missing(topic, index)
            raise
        name = partition.tip.topic
        if self.authorizer is not None and name != self.allowed:
            self.check_allowed(self.authorizer, name)
        if name in INTERNAL_TOPICS:
            check_internal(self.context, name)
        check_frame(records)
        if self.context.api_version < FIRST_VERSION_WITH_ZSTD and is_zstd(records):
            raise RequestError(
                ErrorCode.unsupported_compression_type, "zstd needs a client with Produce version 7 or newer"
            )
        return partition

    def _refuse_two_producers(self) -> Steps[None]:
        error = RequestError(
            ErrorCode.invalid_producer_id_mapping, "the request has the batches of more than one producer"
        )
        for topic, partitions in self.topics:
            results: list[ProducePartitionResult] = []
            self.results.append((topic, results))
            for index, _ in partitions:
                yield
                results.append(self._refused(topic, index, error))

    async def _verify(self, unverified: list[_Unverified]) -> None:
        """Ask the coordinator about the batches whose transaction is not open; keep their guards, or
        errors."""
        if (
            self._mode is not Mode.ADD
            and not self.broker.config.transactions["transaction.partition.verification.enable"]
        ):
            for one in unverified:
                self._verified[one.topic, one.number] = VERIFICATION_OFF
            return
        asked = await Slice().go_on(self._guarded(unverified))
        if not asked:
            return
        header, transactional_id, coordinators = (
            asked[0].header, self.transactional_id, self.broker.transactions,
        )  # fmt: skip
        assert transactional_id is not None
        assert coordinators is not None
        mode = self._mode
        errors: Mapping[TopicIdPartition, ErrorCode | int] = await coordinators.verify(
            transactional_id,
            header.producer_id,
            header.producer_epoch,
            [one.partition.tip for one in asked],
            mode,
        )
        for one in asked:
            error = produce_error(errors[one.partition.tip], mode)
            if error != ErrorCode.none:
                self._verified[one.topic, one.number] = _refusal(error)

    def _guarded(self, unverified: list[_Unverified]) -> Steps[list[_Unverified]]:
        """Begin the verification in each partition; return the batches that the coordinator is to be asked
        about."""
        asked: list[_Unverified] = []
        for one in unverified:
            yield
            header = one.header
            try:
                one.partition.check_leads()
                guard = one.partition.log.begin_verification(
                    header.producer_id,
                    header.producer_epoch,
                    header.base_sequence,
                    is_tv2=self._mode is Mode.ADD,
                )
            except (RequestError, StorageError) as e:
                self._verified[one.topic, one.number] = e
                continue
            if guard is not None:
                self._verified[one.topic, one.number] = guard
                asked.append(one)
        return asked

    # -- appends

    def _guard(self, topic: TopicKey, index: int) -> VerificationGuard | None:
        """Return the guard of the batch of this partition. Raises the error that it has already."""
        verified = self._verified.get((topic, index))
        if isinstance(verified, FirnError):
            raise verified
        return verified

    def _append(self, topic: TopicKey, index: int, records: Buffer | None) -> ProducePartitionResult:
        inflation = None if self.budget is None else self.budget.inflation
        try:
            guard = self._guard(topic, index)
            partition = self._partition(topic, index, records)
            assert not isinstance(records, bytes | None)
            batch = validate_produced(records, partition.rules, self.now_ms, inflation, True, True)
            info = partition.append(batch, self.now_ms, guard)
        except (RequestError, StorageError, CorruptionError) as e:
            return self._refused(topic, index, e)
        return self._appended(partition, topic, index, batch, info)


def _refusal(error: ErrorCode | int) -> RequestError:
    if error == ErrorCode.invalid_txn_state:
        return RequestError(ErrorCode.invalid_txn_state, "the partition was not added to the transaction")
    if error == ErrorCode.not_enough_replicas:
        return RequestError(
            ErrorCode.not_enough_replicas, "the coordinator has not verified the partition's transaction"
        )
    if isinstance(error, ErrorCode):
        return RequestError(error, "the coordinator has refused the partition's transaction")
    return RequestError(ErrorCode.unknown_server_error, f"the coordinator has answered error {error}")
