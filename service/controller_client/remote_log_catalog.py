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
from service.controller_client.forwarding import Asker
from service.remote.catalog import CatalogCommit, CatalogEntry, CatalogResult, LoadedTail, Tombstone
from service.wire.api import ApiKey
from service.wire.catalog import (
    MAX_COMMITS,
    CatalogChange,
    CommitCatalogRequest,
    CommitCatalogResponse,
    LoadedPartition,
    LoadedTopic,
)
from service.wire.errors import UnsupportedVersion

_RESULTS: Final = (
    CatalogResult.COMMITTED,
    CatalogResult.FENCED,
    CatalogResult.VERSION_CONFLICT,
    CatalogResult.UNKNOWN_PARTITION,
)
"""Results by their number on the wire"""


class CatalogView(Protocol):
    """The catalog in this node's own image."""

    def entry(self, topic_id: UUID, partition: int) -> CatalogEntry | None: ...
    def tombstones(self) -> Mapping[UUID, Tombstone]: ...
    async def reached(self, offset: int) -> None:
        """Return once the image holds `offset`. Raises `StorageError` where it never will."""


class Registration(NamedTuple):
    """Broker id and epoch of this process's registration."""

    broker_id: int
    broker_epoch: int


class RpcCatalog:
    """`remote.catalog.Catalog` over the queue to the controller. Owned by the event loop."""

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

    def entry(self, topic_id: UUID, partition: int) -> CatalogEntry | None:
        return self._view.entry(topic_id, partition)

    def tombstones(self) -> Mapping[UUID, Tombstone]:
        return self._view.tombstones()

    async def commit(self, commits: Sequence[CatalogCommit]) -> list[CatalogResult]:
        """Do what `Catalog.commit` does, then wait until the image has the commits, at most the timeout."""
        results: list[CatalogResult] = []
        for batch in batches(commits):
            answer = await self._ask(tuple(map(change_of, batch)))
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
            answer = await self._ask((), now)
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
            answer = await self._ask((), loaded=loaded_topics(now))
            with suppress(TimeoutError):
                await self._reached(answer.metadata_offset)

    async def barrier(self) -> int:
        """Wait until the image holds all that the controller had committed at this call; return that offset.

        Raises `StorageError` after the timeout, or where this broker is fenced or was replaced.
        """
        answer = await self._ask(())
        try:
            await self._reached(answer.metadata_offset)
        except TimeoutError as e:
            raise StorageError(f"the metadata has not reached offset {answer.metadata_offset}") from e
        return answer.metadata_offset

    async def _reached(self, offset: int) -> None:
        async with asyncio.timeout(self._timeout_ms / 1000):
            await self._view.reached(offset)

    async def _ask(
        self,
        commits: tuple[CatalogChange, ...],
        forgotten: tuple[UUID, ...] = (),
        loaded: tuple[LoadedTopic, ...] = (),
    ) -> CommitCatalogResponse:
        broker_id, broker_epoch = self._registration()
        message = CommitCatalogRequest(
            broker_id=broker_id,
            broker_epoch=broker_epoch,
            commits=commits,
            forgotten_topics=forgotten,
            loaded=loaded,
        )
        try:
            answer = await self._controllers.ask(ApiKey.COMMIT_CATALOG, message, timeout_ms=self._timeout_ms)
        except (RequestError, UnsupportedVersion) as e:
            raise StorageError(f"the catalog did not answer: {e}") from e
        code: int = answer.error_code
        if code == ErrorCode.invalid_request:
            raise RequestError(
                ErrorCode.invalid_request, "the catalog refuses an entry that no chain can have"
            )
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
    )


def commits_of(
    request: CommitCatalogRequest, topic_name: Callable[[UUID], str | None]
) -> list[CatalogCommit]:
    """Return the commits in a request. Raises `RequestError` INVALID_REQUEST for more than `MAX_COMMITS`."""
    if len(request.commits) > MAX_COMMITS:
        raise RequestError(ErrorCode.invalid_request, f"{len(request.commits)} commits in one request")
    return [
        CatalogCommit(_tip(one, topic_name), one.previous_version, _entry(one)) for one in request.commits
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


def error_response(code: ErrorCode) -> Any:
    """Build the controller's response to a request that it refused as a whole, without any change."""
    return CommitCatalogResponse(error_code=code)
