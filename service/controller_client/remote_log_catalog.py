"""Remote catalog over CommitCatalog, for a broker whose controller is another process.

Reads use this node's own image; the controller decides changes. After a lost response the same entries are
sent again, and `decide_commit` recognises those that it has committed. Therefore no request names a partition
twice: when it is repeated, the first of two entries would look like a conflict.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError, StorageError
from service.base.types import TopicIdPartition
from service.controller_client import rewrite_messages
from service.controller_client.forwarding import Asker
from service.metadata.controller.rewrite_control import RewriteChange
from service.remote.catalog import (
    CatalogCommit,
    CatalogEntry,
    CatalogResult,
    ErasedPlace,
    ErasedPlaces,
    Erasure,
    LoadedTail,
    Notes,
    RewriteAnswer,
    RewriteIntent,
    Tombstone,
)
from service.remote.erased_notes import NoteQueue
from service.wire.api import ApiKey
from service.wire.catalog import (
    MAX_COMMITS,
    MAX_ERASED_PLACES,
    MAX_ERASURES_IN_REQUEST,
    CatalogChange,
    CatalogErasure,
    CommitCatalogRequest,
    CommitCatalogResponse,
    LoadedPartition,
    LoadedTopic,
    OrderOp,
)
from service.wire.errors import UnsupportedVersion

_RESULTS: Final = (
    CatalogResult.COMMITTED,
    CatalogResult.FENCED,
    CatalogResult.VERSION_CONFLICT,
    CatalogResult.UNKNOWN_PARTITION,
    CatalogResult.NO_INTENT,
)
"""Results by their number on the wire"""
_REFUSALS: Final = frozenset(
    {
        ErrorCode.unsupported_version,
        ErrorCode.unknown_topic_id,
        ErrorCode.invalid_topic_exception,
        ErrorCode.policy_violation,
    }
)
"""Errors by which the controller refuses a rewrite or an erasure for good."""
_ALWAYS_ALLOWED: Final = frozenset({"commits", "forgotten_topics", "loaded"})
"""Fields of a request to which such errors are an unknown outcome, as any other."""


class CatalogView(Protocol):
    """The catalog in this node's own image."""

    def entry(self, topic_id: UUID, partition: int) -> CatalogEntry | None: ...
    def tombstones(self) -> Mapping[UUID, Tombstone]: ...
    def rewrite(self, topic_id: UUID, partition: int) -> RewriteIntent | None: ...
    def erasures(self) -> Mapping[UUID, Erasure]: ...
    def erased(self, erasure_id: UUID) -> ErasedPlaces: ...
    async def reached(self, offset: int) -> None:
        """Return once the image holds `offset`. Raises `StorageError` where it never will."""


class Registration(NamedTuple):
    """Broker id and epoch of this process's registration."""

    broker_id: int
    broker_epoch: int


class RpcCatalog:
    """`remote.catalog.NodeCatalog` over the queue to the controller. Owned by the event loop."""

    def __init__(
        self,
        controllers: Asker,
        view: CatalogView,
        registration: Callable[[], Registration],
        *,
        timeout_ms: int = 30_000,
    ) -> None:
        self._controllers = controllers
        self._view = view
        self._registration = registration
        self._timeout_ms = timeout_ms
        self._notes = NoteQueue(self._note_erased, most=MAX_ERASED_PLACES, most_keys=MAX_ERASURES_IN_REQUEST)

    def entry(self, topic_id: UUID, partition: int) -> CatalogEntry | None:
        return self._view.entry(topic_id, partition)

    def tombstones(self) -> Mapping[UUID, Tombstone]:
        return self._view.tombstones()

    async def commit(self, commits: Sequence[CatalogCommit]) -> list[CatalogResult]:
        """Do what `Catalog.commit` does, then wait until the image has the commits, at most the timeout."""
        results: list[CatalogResult] = []
        for batch in batches(commits):
            answer = await self._ask(commits=tuple(map(change_of, batch)))
            if len(answer.results) != len(batch):
                raise StorageError(f"the catalog gave {len(answer.results)} results for {len(batch)} commits")
            results += [result_of(number) for number in answer.results]
            # The results hold even if the image lags behind the controller; its readers expect that.
            with suppress(TimeoutError):
                await self._reached(answer.metadata_offset)
        return results

    async def forget_topics(self, topic_ids: Collection[UUID]) -> None:
        left = tuple(topic_ids)
        while left:
            now, left = left[:MAX_COMMITS], left[MAX_COMMITS:]
            answer = await self._ask(forgotten_topics=now)
            with suppress(TimeoutError):
                await self._reached(answer.metadata_offset)

    async def tails_loaded(self, loaded: Collection[LoadedTail]) -> None:
        """Tell the controller which restored partitions this broker, as their leader, has loaded.

        Raises `StorageError` where the outcome is unknown; repeating the call does no harm. What was noted
        is in the image, at the latest, once the partitions are there without a restored tail.
        """
        left = tuple(loaded)
        while left:
            now, left = left[:MAX_COMMITS], left[MAX_COMMITS:]
            answer = await self._ask(loaded=loaded_topics(now))
            with suppress(TimeoutError):
                await self._reached(answer.metadata_offset)

    # -- rewrites and erasures

    def rewrite(self, topic_id: UUID, partition: int) -> RewriteIntent | None:
        return self._view.rewrite(topic_id, partition)

    async def begin_rewrite(self, tip: TopicIdPartition, intent: RewriteIntent) -> RewriteAnswer:
        """Begin a rewrite; return once the image has it, at most after the timeout."""
        return await self._change(RewriteChange(tip, intent.rewrite_id, intent))

    async def give_up_rewrite(self, tip: TopicIdPartition, rewrite_id: UUID) -> None:
        await self._change(RewriteChange(tip, rewrite_id))

    async def _change(self, change: RewriteChange) -> RewriteAnswer:
        answer = await self._told(rewrites=(rewrite_messages.rewrite_change(change),))
        [result] = rewrite_messages.answers_of(answer.rewrite_answers, 1)
        return result

    def erasures(self) -> Mapping[UUID, Erasure]:
        return self._view.erasures()

    def erased(self, erasure_id: UUID) -> ErasedPlaces:
        return self._view.erased(erasure_id)

    async def note_erased(self, erasure_id: UUID, places: Collection[ErasedPlace], broker_id: int) -> None:
        """Note clean places; those of several calls go in one request."""
        await self._notes.note(erasure_id, places, broker_id)

    async def _note_erased(self, notes: Notes) -> None:
        await self._told(erased=rewrite_messages.erased_notes(notes))

    async def start_erasure(self, erasure: Erasure) -> None:
        await self._told(erasures=(rewrite_messages.started(erasure),))

    async def finish_erasure(self, erasure_id: UUID, done_ms: int) -> None:
        await self._told(erasures=(CatalogErasure(op=OrderOp.DONE, id=erasure_id, done_ms=done_ms),))

    async def remove_erasure(self, erasure_id: UUID) -> None:
        await self._told(erasures=(CatalogErasure(op=OrderOp.REMOVED, id=erasure_id),))

    async def _told(self, **what: tuple[Any, ...]) -> CommitCatalogResponse:
        """Ask, then wait until the image has it, at most the timeout."""
        answer = await self._ask(**what)
        with suppress(TimeoutError):
            await self._reached(answer.metadata_offset)
        return answer

    # -- requests

    async def barrier(self) -> int:
        """Wait until the image holds all that the controller had committed at this call; return that offset.

        Raises `StorageError` after the timeout, or where this broker is fenced or was replaced.
        """
        answer = await self._ask()
        try:
            await self._reached(answer.metadata_offset)
        except TimeoutError as e:
            raise StorageError(f"the metadata has not reached offset {answer.metadata_offset}") from e
        return answer.metadata_offset

    async def _reached(self, offset: int) -> None:
        async with asyncio.timeout(self._timeout_ms / 1000):
            await self._view.reached(offset)

    async def _ask(self, **what: tuple[Any, ...]) -> CommitCatalogResponse:
        """Ask for what the fields of `CommitCatalogRequest` say; without any it is a barrier."""
        broker_id, broker_epoch = self._registration()
        message = CommitCatalogRequest(broker_id=broker_id, broker_epoch=broker_epoch, **what)
        try:
            answer = await self._controllers.ask(ApiKey.COMMIT_CATALOG, message, timeout_ms=self._timeout_ms)
        except (RequestError, UnsupportedVersion) as e:
            raise StorageError(f"the catalog did not answer: {e}") from e
        code: int = answer.error_code
        if code == ErrorCode.invalid_request or (code in _REFUSALS and not what.keys() <= _ALWAYS_ALLOWED):
            why = answer.error_message or "the catalog refuses an entry that no chain can have"
            raise RequestError(ErrorCode(code), why)
        if code != ErrorCode.none:
            name = code.name if isinstance(code, ErrorCode) else str(code)
            raise StorageError(f"the catalog refuses this broker: {name}")
        response: CommitCatalogResponse = answer
        return response


def batches(commits: Sequence[CatalogCommit]) -> Iterator[list[CatalogCommit]]:
    """Split `commits` in order into few batches of at most `MAX_COMMITS`, with no partition twice in one."""
    batch: list[CatalogCommit] = []
    named: set[tuple[UUID, int]] = set()
    for one in commits:
        key = (one.tip.topic_id, one.tip.partition)
        if key in named or len(batch) == MAX_COMMITS:
            yield batch
            batch, named = [], set()
        batch.append(one)
        named.add(key)
    if batch:
        yield batch


def change_of(commit: CatalogCommit) -> CatalogChange:
    """Return a compare-and-set in its wire form."""
    return CatalogChange(
        topic_id=commit.tip.topic_id,
        partition=commit.tip.partition,
        previous_version=commit.previous_version,
        **commit.entry._asdict(),
        rewrite_id=commit.rewrite_id,
    )


def commits_of(
    request: CommitCatalogRequest, topic_name: Callable[[UUID], str | None]
) -> list[CatalogCommit]:
    """Return the commits in a request. Raises `RequestError` INVALID_REQUEST for more than `MAX_COMMITS`."""
    if len(request.commits) > MAX_COMMITS:
        raise RequestError(ErrorCode.invalid_request, f"{len(request.commits)} commits in one request")
    return [
        CatalogCommit(_tip(one, topic_name), one.previous_version, _entry(one), one.rewrite_id)
        for one in request.commits
    ]


def loaded_topics(loaded: Iterable[LoadedTail]) -> tuple[LoadedTopic, ...]:
    """Return loaded partitions in their wire form."""
    by_topic: dict[UUID, list[LoadedPartition]] = {}
    for one in loaded:
        wire = LoadedPartition(partition=one.partition, leader_epoch=one.leader_epoch)
        by_topic.setdefault(one.topic_id, []).append(wire)
    return tuple(
        LoadedTopic(topic_id=topic_id, partitions=tuple(partitions))
        for topic_id, partitions in by_topic.items()
    )


def loaded_of(request: CommitCatalogRequest) -> list[LoadedTail]:
    """Return the loaded partitions in a request. Raises `RequestError` INVALID_REQUEST for more than
    `MAX_COMMITS`."""
    count = sum(len(topic.partitions) for topic in request.loaded)
    if count > MAX_COMMITS:
        raise RequestError(ErrorCode.invalid_request, f"{count} loaded partitions in one request")
    return [
        LoadedTail(topic.topic_id or UUID(int=0), one.partition, one.leader_epoch)
        for topic in request.loaded
        for one in topic.partitions
    ]


def _tip(one: CatalogChange, topic_name: Callable[[UUID], str | None]) -> TopicIdPartition:
    topic_id = one.topic_id or UUID(int=0)
    return TopicIdPartition(topic_id, topic_name(topic_id) or "", one.partition)


def _entry(one: CatalogChange) -> CatalogEntry:
    return CatalogEntry(**{name: getattr(one, name) for name in CatalogEntry._fields})


def response_of(results: Sequence[CatalogResult], metadata_offset: int) -> CommitCatalogResponse:
    """Build the controller's response to commits that it has decided and committed."""
    return CommitCatalogResponse(
        error_code=ErrorCode.none,
        metadata_offset=metadata_offset,
        results=tuple(map(_RESULTS.index, results)),
    )


def result_of(number: int) -> CatalogResult:
    """Return the result with this wire number. Raises `StorageError` for an unknown one."""
    if not 0 <= number < len(_RESULTS):
        raise StorageError(f"the catalog gave a result that is not known: {number}")
    return _RESULTS[number]


def error_response(code: ErrorCode, message: str | None = None) -> Any:
    """Build the controller's response to a request that it refused as a whole, without any change."""
    return CommitCatalogResponse(error_code=code, error_message=message)
