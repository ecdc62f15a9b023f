"""Queries of the bucket: manifests of partitions, and a survey of all objects."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import aclosing, contextmanager
from itertools import islice
from typing import Final, NamedTuple
from uuid import UUID

from service.base.clock import Clock
from service.base.errors import FirnError, StorageError
from service.base.threads import Threads
from service.base.world import World
from service.console.web.cuts import CutsShown, awaited, cut_end, missing_of
from service.console.web.s3_desk import BucketFacts, S3Desk, is_installed
from service.console.web.survey import Findings, ListedObject, PartitionObjects, Survey
from service.console.web.tier_layout import BUCKET, PublishedTier, TierBlock
from service.remote.format.keys import CUT_NAME, HeadKey
from service.remote.format.manifest import Manifest, ManifestPage, PageRef, live_segments
from service.remote.format.manifest_codec import Head, TopicsFile
from service.remote.reading.object_reader import Chain, open_page, open_published, open_topics
from service.remote.reading.tails import open_cuts, open_named_cut
from service.remote.stores.errors import ObjectNotFound, StoreRefused
from service.remote.stores.obstore_store import StoreOptions, open_store
from service.remote.stores.read_only_store import ReadOnlyStore
from service.remote.stores.s3_address import is_s3
from service.remote.stores.store import ObjectStore

CHAIN_AGE_MS: Final = 3_000
PROBLEM_AGE_MS: Final = 5_000
"""Pause after a failure of the store: a page of many partitions waits for it once, not for each."""
MOST_CHAINS: Final = 2_000
GRACE_MS: Final = 3_600_000
"""Age below which an unnamed object may belong to an upload under way."""
PATIENCE: Final = StoreOptions(
    connect_timeout_s=2, first_byte_timeout_s=4, request_timeout_s=8, max_retries=0, retry_timeout_s=8
)


class _Known(NamedTuple):
    chain: Chain | None
    published: PublishedTier
    at_ms: int


EMPTY: Final = PublishedTier((), 0, 0, 0, 0)


class BucketDesk:
    """Reader of one prefix of a store. Its blocking calls are thread-safe."""

    def __init__(
        self, url: str, endpoint: str | None, region: str | None, world: World, pool: Executor
    ) -> None:
        self.url = url
        self.endpoint = endpoint
        self._clock: Clock = world.clock
        threads: Threads = world.threads
        self._lock = threads.lock()
        self._pool = pool
        self._store: ObjectStore = ReadOnlyStore(
            open_store(url, world=world, endpoint=endpoint, region=region, options=PATIENCE, must_exist=True)
        )
        self.s3: S3Desk | None = None
        if is_s3(url) and is_installed():
            self.s3 = S3Desk(url, endpoint, region, world.environ, pool)
        self._chains: OrderedDict[tuple[UUID, int], _Known] = OrderedDict()
        self._problem: StorageError | None = None
        self._problem_at_ms = -PROBLEM_AGE_MS

    @property
    def lacks_aioboto3(self) -> bool:
        return is_s3(self.url) and self.s3 is None

    # -- one partition; blocking

    def published(self, topic_id: UUID, partition: int, end: int | None = None) -> PublishedTier:
        """Return the archive of one partition, at most some seconds old, unless it ends before `end`.

        Raises `FirnError`.
        """
        place, now = (topic_id, partition), self._clock.monotonic_ms()
        with self._lock:
            known = self._chains.get(place)
            is_behind = known is not None and end is not None and known.published.end < end
            if known is not None and not is_behind and now - known.at_ms < CHAIN_AGE_MS:
                self._chains.move_to_end(place)
                return known.published
            if self._problem is not None and now - self._problem_at_ms < PROBLEM_AGE_MS:
                raise StorageError(str(self._problem))
        try:
            with permitted():
                chain = open_published(self._store, HeadKey(topic_id, partition), _remembered(known))
        except ObjectNotFound:
            raise
        except StorageError as e:
            with self._lock:
                self._problem, self._problem_at_ms = e, self._clock.monotonic_ms()
            raise
        if known is not None and chain is not None and chain == known.chain:
            published = known.published
        else:
            published = _published(chain.manifest) if chain is not None else EMPTY
        with self._lock:
            self._problem = None
            self._chains[place] = _Known(chain, published, now)
            while len(self._chains) > MOST_CHAINS:
                self._chains.popitem(last=False)
        return published

    # -- the whole; on the loop

    async def survey(self, most: int) -> Findings:
        """Read the listing, at most `most` objects of it. Raises `FirnError` if it cannot begin."""
        began, loop = self._clock.monotonic_ms(), asyncio.get_running_loop()
        topics = await loop.run_in_executor(self._pool, self._topics)
        names = {row.topic_id: row.name for row in topics.topics} if topics is not None else {}
        survey = Survey(names, self._clock.now_ms(), GRACE_MS)
        found = survey.findings
        async with aclosing(self._listing()) as listing:
            async for objects in listing:
                found.requests += 1
                for group in survey.add(objects):
                    await self._judge(survey, group)
                if found.listed >= most:
                    found.is_whole = False
                    break
        if (last := survey.end()) is not None and found.is_whole:
            await self._judge(survey, last)
        found.cuts = await loop.run_in_executor(self._pool, self._cuts, names)
        found.took_ms = self._clock.monotonic_ms() - began
        return found

    async def facts(self) -> BucketFacts | None:
        """Return the bucket's settings; None if it is not S3, or aioboto3 is not installed."""
        return None if self.s3 is None else await self.s3.facts()

    def _topics(self) -> TopicsFile | None:
        with permitted():
            try:
                return open_topics(self._store)
            except ObjectNotFound:
                return None

    def _cuts(self, names: Mapping[UUID, str]) -> CutsShown | None:
        """Return what `CUT` says, and what the newest cut lacks; None where no cut was ever taken."""
        try:
            with permitted():
                cuts = open_cuts(self._store)
                if cuts.newest.is_complete:
                    return CutsShown(cuts.kept, orders=len(cuts.erasures))
                cut = open_named_cut(self._store, cuts.newest)
                ends = {place: self.published(*place, end=cut_end(cut, place)).end for place in awaited(cut)}
        except ObjectNotFound as e:
            return None if e.key == CUT_NAME else CutsShown(problem=str(e))
        except FirnError as e:
            return CutsShown(problem=str(e))
        return CutsShown(cuts.kept, *missing_of(cut, names, ends), orders=len(cuts.erasures))

    async def _listing(self) -> AsyncGenerator[list[ListedObject], None]:
        if self.s3 is not None:
            async with aclosing(self.s3.listing()) as pages:
                async for page in pages:
                    yield page
            return
        loop = asyncio.get_running_loop()
        listing = self._store.list("")

        def some() -> list[ListedObject]:
            return [ListedObject(one.key, one.size, one.last_modified_ms) for one in islice(listing, 1000)]

        while page := await loop.run_in_executor(self._pool, some):
            yield page

    async def _judge(self, survey: Survey, group: PartitionObjects) -> None:
        if group.overflow:
            survey.findings.problems.append(
                f"{group.topic_id}/{group.partition}: too many objects to be judged"
            )
            return
        survey.findings.requests += 2
        loop = asyncio.get_running_loop()
        try:
            live = await loop.run_in_executor(self._pool, self._live, group)
        except FirnError as e:
            if len(survey.findings.problems) < 20:
                survey.findings.problems.append(str(e))
            return
        survey.judged(group, live)

    def _live(self, group: PartitionObjects) -> set[str]:
        chain = open_published(self._store, HeadKey(group.topic_id, group.partition))
        if chain is None:
            return set()
        manifest = chain.manifest
        live: set[str] = set()

        def load(ref: PageRef) -> ManifestPage:
            live.add(ref.key)
            return open_page(self._store, ref, manifest)

        live.update(segment.key for segment in live_segments(manifest, load))
        live.update(ref.key for ref in manifest.pages)
        return live


@contextmanager
def permitted() -> Iterator[None]:
    """Add the missing permission to errors of reading an object."""
    try:
        yield
    except StoreRefused as e:
        if "AccessDenied" in str(e):
            raise StoreRefused(f"{e}; s3:GetObject is needed") from e
        raise


def _remembered(known: _Known | None) -> Callable[[Head], Manifest | None]:
    def of_head(head: Head) -> Manifest | None:
        if known is None or known.chain is None or known.chain.head != head:
            return None
        return known.chain.manifest

    return of_head


def _published(manifest: Manifest) -> PublishedTier:
    """Return the archive as blocks; a manifest page of many segments is one block, and is not read."""
    blocks = []
    before_ms: int | None = None
    for child in manifest.children:
        if child.last_offset < manifest.start_offset:
            continue
        is_page = isinstance(child, PageRef)
        min_ms = child.min_timestamp if child.min_timestamp >= 0 else before_ms
        max_ms = child.max_timestamp if child.max_timestamp >= 0 else None
        blocks.append(
            TierBlock(
                tier=BUCKET,
                first=max(child.base_offset, manifest.start_offset),
                end=child.last_offset + 1,
                size=child.size_bytes,
                segments=child.segments,
                min_ms=min_ms,
                max_ms=max_ms,
                name="" if is_page else child.key,
            )
        )
        before_ms = max_ms if max_ms is not None else before_ms
    return PublishedTier(
        tuple(blocks), manifest.size_bytes, manifest.segments, manifest.end_offset, manifest.version
    )
