"""Data of all pages: queries all desks at the same time and waits for each for a limited time."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.disk import Open
from service.base.errors import ConfigError, FirnError, RequestError, StorageError
from service.base.world import World
from service.client.admin_models import ConfigEntry, NodeInfo
from service.client.broker_health_queries import BrokerAnswer
from service.client.node_http import LISTENER_KEY, PLAIN_HTTP, http_url
from service.console.web import tier_layout
from service.console.web.bucket_desk import BucketDesk
from service.console.web.cluster_desk import ClusterDesk
from service.console.web.disk_desk import blocks_on_disk
from service.console.web.group_desk import GroupDesk
from service.console.web.kafka_desk import KafkaDesk
from service.console.web.order_desk import OrderDesk
from service.console.web.pages import bucket, cold, configuration, overview, records, topic, topics
from service.console.web.partition_tiers import TIERED_KEY, PartitionData, partition_tiers, retention_limits
from service.console.web.record_desk import RecordDesk
from service.console.web.record_query import RecordQuery
from service.console.web.rows import AUTO, Decoded
from service.console.web.schemas.decoder import EncodedValue, ValueDecoder
from service.console.web.settings import ConsoleSettings
from service.console.web.survey import Findings
from service.console.web.tier_layout import SCALES, PublishedTier
from service.console.web.topic_figures import TopicSampler
from service.console.web.topic_rows import TierOffsets, TopicList, TopicSummary
from service.console.web.transaction_desk import TransactionDesk
from service.console.web.trouble_log import TroubleLog
from service.console.web.watch import NodeListener, NodeMonitor

_log = logging.getLogger(__name__)
T = TypeVar("T")

THREADS: Final = 8
HEALTH_THREADS: Final = 32
"""A pool of its own, for what may hang at the same time: the cluster, its quorum and each of its brokers."""
STORE_THREADS: Final = 8
"""A pool of its own: a hanging store does not delay queries of the cluster."""
READERS: Final = 2
"""Few, because each may hold some hundred megabytes of inflated batches for a moment."""
MAX_PARTITION: Final = 2**31 - 1
NO_NODE: Final = -1
MOST_PAGES: Final = 10**8
STORE_WAIT_S: Final = 1.5
"""Longest wait of a page for the bucket; what comes later is shown at the next refresh."""
MOST_PENDING: Final = 200
TOPICS_WAIT_S: Final = 0.15
"""Longest wait of a page for a newer list of all topics."""
TOPICS_MOST_AGE_MS: Final = 60_000
MOST_FSCK_BYTES: Final = 64 << 20
URL_KEY, ENDPOINT_KEY, REGION_KEY = "firn.remote.url", "firn.remote.s3.endpoint", "firn.remote.s3.region"
DIRS_KEY = "log.dirs"
TROUBLE: Final = (FirnError, OSError)


_NOT_THERE: Final = frozenset(
    {
        ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_topic_exception, ErrorCode.unknown_topic_id,
        ErrorCode.invalid_request,
    }
)  # fmt: skip


def status_of(error: BaseException) -> int:
    """Return the HTTP status for an error: 404 if the requested thing does not exist, else 503."""
    is_asker = isinstance(error, ConfigError) or (
        isinstance(error, RequestError) and error.code in _NOT_THERE
    )
    return 404 if is_asker else 503


def error_text(error: BaseException) -> str:
    """Return the text of an error in one line."""
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(words.split()) or type(error).__name__


class Desk:
    """All data of a console. Owned by the event loop; blocking calls run in its pool."""

    def __init__(self, settings: ConsoleSettings, world: World) -> None:
        self.settings = settings
        self._world = world
        self._pool = world.threads.pool("console", THREADS)
        self._store_pool = world.threads.pool("console-store", STORE_THREADS)
        self._readers = world.threads.pool("console-records", READERS)
        self._kafka = KafkaDesk(settings.bootstrap, world.clock, world.threads, settings.security)
        self._records = RecordDesk(self._kafka, world.clock)
        self._decoder = ValueDecoder(settings.decode, world.clock, world.threads)
        self.groups = GroupDesk(self._kafka, world.clock, self._call, error_text)
        self.transactions = TransactionDesk(self._kafka, world.clock, self._call, error_text)
        self.watch = NodeMonitor(self._find_listeners, world.clock, settings.node_http or PLAIN_HTTP)
        self._asking = world.threads.pool("console-health", HEALTH_THREADS)
        self.cluster = ClusterDesk(self._kafka, world.clock, self._ask, error_text, lambda: self.watch.nodes)
        self.sampler = TopicSampler(self._kafka, world.clock, self._call, self._all_topics)
        self._topics: TopicList | None = None
        self._newer_topics: asyncio.Future[TopicList] | None = None
        self._chains: dict[tuple[UUID, int], asyncio.Future[PublishedTier]] = {}
        self._bucket: BucketDesk | None = None
        self._opening: asyncio.Task[None] | None = None
        self._bucket_problem: str | None = None
        self._has_bucket: bool | None = None if settings.url is None else True
        self._findings: Findings | None = None
        self._facts: bucket.Settings | None = None
        self._survey_problem: str | None = None
        self._surveying = False
        self._log_dirs: dict[int, str | None] = {}
        self._orders = OrderDesk(self._kafka, world, self._ask, error_text)
        self._tasks: list[asyncio.Task[None]] = []
        self._survey_trouble = TroubleLog(_log, world.clock)

    @property
    def kafka(self) -> KafkaDesk:
        return self._kafka

    async def start(self) -> None:
        self._spawn(self.watch.run(), "watch")
        self._spawn(self.groups.run(), "groups")
        self._spawn(self.groups.sampler.run(), "lags of groups")
        self._spawn(self.sampler.run(), "figures of topics")
        if self.settings.survey_s:
            self._spawn(self._surveys(), "survey")

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work, name=name))

    def failure(self) -> BaseException | None:
        """Return the error of a task that must not end; it is a bug."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                return task.exception() or RuntimeError(f"{task.get_name()} has ended")
        return None

    async def close(self) -> None:
        tasks = [*self._tasks, *(() if self._opening is None else (self._opening,))]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._kafka.close()
        self._decoder.close()
        for pool in (self._pool, self._store_pool, self._readers, self._asking):
            pool.shutdown(wait=False, cancel_futures=True)

    def _call(self, question: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._pool, question)

    def _ask(self, question: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._asking, question)

    async def _all_topics(self) -> Sequence[TopicSummary]:
        """Return all topics; some seconds old if a newer list takes long, as with many partitions."""
        rows = await self._known_topics(waits=True)
        assert rows is not None
        return rows

    async def _known_topics(self, *, waits: bool) -> Sequence[TopicSummary] | None:
        """Return all topics; None if they are not known yet, and the caller does not wait (`waits`)."""
        known = self._topics
        if self._newer_topics is None and (known is None or self._kafka.is_old(known)):
            self._newer_topics = self._call(self._kafka.topics)
            self._newer_topics.add_done_callback(self._topics_found)
        if (newer := self._newer_topics) is not None:
            # `wait`, because the cancellation of one page must not cancel the query for the others.
            is_known = known is not None and not self._kafka.is_old(known, TOPICS_MOST_AGE_MS)
            await asyncio.wait([newer], timeout=TOPICS_WAIT_S if is_known or not waits else None)
            if newer.done():
                return newer.result().rows
        return None if known is None else known.rows

    def _topics_found(self, future: asyncio.Future[TopicList]) -> None:
        self._newer_topics = None
        is_found = not future.cancelled() and future.exception() is None
        self._topics = future.result() if is_found else None

    # -- background work

    async def _find_listeners(self) -> Sequence[NodeListener]:
        if self.settings.listeners:
            return [NodeListener(node_id, url) for node_id, url in self.settings.listeners]
        return [_listener(node, answer) for node, answer in await self.cluster.brokers()]

    async def bucket_desk(self, wait_s: float | None = None) -> BucketDesk | None:
        """Return the bucket's desk, after at most `wait_s` if that is given; None if there is no bucket, or
        it cannot be opened (`_bucket_problem`)."""
        if self._bucket is None and self._has_bucket is not False:
            if self._opening is None or self._opening.done():
                self._opening = asyncio.get_running_loop().create_task(self._opened_bucket(), name="bucket")
            opening = self._opening
            await asyncio.wait([opening], timeout=wait_s)
            if opening.done():
                opening.result()
            elif self._bucket_problem is None:
                self._bucket_problem = "no broker has said yet where it is"
        return self._bucket

    async def _opened_bucket(self) -> None:
        try:
            brokers = [] if self.settings.url is not None else await self.cluster.brokers()
            answers = [answer for _, answer in brokers if answer is not None and answer.silence is None]
            answers.sort(key=lambda one: not one.settings)  # a broker of Kafka knows no key of ours
            asked = [one.node_id for one in answers]
            self._bucket = await self._ask(lambda: self._open_bucket(asked))
            self._bucket_problem = None
        except TROUBLE as e:
            self._bucket_problem = error_text(e)

    def _open_bucket(self, brokers: Sequence[int]) -> BucketDesk | None:
        """Open the bucket that one of the brokers names, which have just answered."""
        settings = self.settings
        url, endpoint, region = settings.url, settings.endpoint, settings.region
        if url is None:
            if not brokers:
                raise StorageError("no broker answers")
            settings_found = self._kafka.broker_settings(brokers[0], (URL_KEY, ENDPOINT_KEY, REGION_KEY))
            url = settings_found.get(URL_KEY)
            endpoint, region = (
                endpoint or settings_found.get(ENDPOINT_KEY),
                region or settings_found.get(REGION_KEY),
            )
            self._has_bucket = url is not None
            if url is None:
                return None
        return BucketDesk(url, endpoint, region, self._world, self._store_pool)

    async def _surveys(self) -> None:
        while True:
            pause_s = float(self.settings.survey_s)
            desk = await self.bucket_desk()
            if desk is None:
                pause_s = 5.0
            else:
                self._surveying = True
                try:
                    facts = await desk.facts()
                    if facts is not None:
                        self._facts = bucket.Settings(
                            facts.uploads, facts.oldest_upload_ms, facts.rules, facts.versioning,
                            facts.encryption, facts.problems, facts.more_uploads, facts.expires,
                        )  # fmt: skip
                    self._findings = await desk.survey(self.settings.survey_most)
                    self._survey_problem = None
                    self._survey_trouble.over("the bucket can be listed again")
                    if not self._findings.listed:
                        pause_s = min(pause_s, 10.0)
                except TROUBLE as e:
                    self._survey_problem = error_text(e)
                    self._survey_trouble.failed("cannot list the bucket, retrying: %s", e)
                    pause_s = min(pause_s, 10.0)
                finally:
                    self._surveying = False
            await asyncio.sleep(pause_s)

    # -- pages

    async def find_overview(self) -> overview.Overview:
        found, rows = await asyncio.gather(
            self.cluster.find(), self._known_topics(waits=False), return_exceptions=True
        )
        if isinstance(found, BaseException):
            raise found
        problem = found.problem
        if isinstance(rows, BaseException):
            if not isinstance(rows, TROUBLE):
                raise rows
            problem, rows = problem or error_text(rows), None
        return overview.Overview(
            found.info,
            problem,
            None if rows is None else len(rows),
            None if rows is None else sum(one.partitions for one in rows),
            self.watch.nodes,
            found.findings,
            self.watch.history.columns(),
        )

    async def find_topics(self, wanted: str, number: int, sort: str = "") -> topics.TopicsPage:
        sort = sort if sort in topics.SORTS else topics.SORTS[0]
        sums = self._findings.topics if self._findings is not None else {}
        try:
            rows = await self._all_topics()
            matching = [one for one in rows if wanted.lower() in one.name.lower()] if wanted else list(rows)
            matching = list(topics.ordered(matching, self.sampler.figures, sums, sort))
            pages = max(-(-len(matching) // topics.PER_PAGE), 1)
            number = min(max(number, 1), pages)
            here = matching[(number - 1) * topics.PER_PAGE : number * topics.PER_PAGE]
            settings, figures = await asyncio.gather(
                self._call(lambda: self._topic_settings([one.name for one in here])), self.sampler.of(here)
            )
        except TROUBLE as e:
            return topics.TopicsPage((), {}, {}, 1, 0, 0, wanted, error_text(e))
        return topics.TopicsPage(
            here, settings, sums, number, len(matching), len(rows), wanted, None, figures, sort
        )

    def _topic_settings(self, names: Sequence[str]) -> dict[str, dict[str, str | None]]:
        """Return settings of topics; none at all if one of them has just been deleted."""
        try:
            return self._kafka.topic_settings(names, topics.SETTINGS)
        except RequestError:
            return {}

    async def find_topic(self, name: str, number: int, partition: int | None, scale: str) -> topic.TopicPage:
        """Return the data of a page of a topic's partitions, or of one partition."""
        scale = scale if scale in SCALES else SCALES[0]
        number = min(max(number, 1), MOST_PAGES)
        first = min((number - 1) * topic.PER_PAGE if partition is None else partition, MAX_PARTITION)
        most = 1 if partition is not None else topic.PER_PAGE
        try:
            page = await self._call(lambda: self._kafka.partitions(name, first, most))
            here = page.topic.partitions
            if partition is not None and [one.partition for one in here] != [partition]:
                return topic.TopicPage(name, problem=f"{name} has no partition {partition}.", status=404)
            leaders = {one.partition: one.leader for one in here}
            borders, settings, dirs = await asyncio.gather(
                self._call(lambda: self._kafka.borders(name, leaders)),
                self._call(lambda: self._kafka.topic_settings((name,), topic.SETTINGS)),
                self._call(lambda: self._dirs_of(set(leaders.values()))),
            )
        except TROUBLE as e:
            return topic.TopicPage(name, problem=error_text(e), status=status_of(e))
        topic_id = page.topic.topic_id
        published, store_problem, pending = await self._published(topic_id, borders)
        groups, all_groups = await self.groups.sampler.of_topic(name)
        stable = None
        if partition is not None:
            stable = await self.transactions.find_stable(name, partition, leaders[partition])
        on_disk = await self._call(
            lambda: {
                p: blocks_on_disk(self._world.disk, dirs.get(leaders[p]), name, topic_id, p, one.end)
                for p, one in borders.items()
                if one.end is not None
            }
        )
        limits, is_tiered = retention_limits(settings[name]), settings[name].get(TIERED_KEY) == "true"
        now_ms = self._world.clock.now_ms()
        lines = []
        for one in here:
            data = PartitionData(
                borders[one.partition], published.get(one.partition), on_disk.get(one.partition), is_tiered
            )
            line = partition_tiers(one, data)
            lines.append(replace(line, edges=tier_layout.retention_edges(line, limits, now_ms)))
        return topic.TopicPage(
            name, str(topic_id), settings[name], lines, scale, number, None, page.more,
            partition is not None, None, store_problem, pending,
            not lines or any(blocks is not None for blocks in on_disk.values()), stable=stable,
            groups=groups, all_groups=all_groups,
        )  # fmt: skip

    def _dirs_of(self, leaders: set[int]) -> dict[int, str | None]:
        for leader in leaders - self._log_dirs.keys() - {-1}:
            self._log_dirs[leader] = self._kafka.broker_settings(leader, (DIRS_KEY,)).get(DIRS_KEY)
        return self._log_dirs

    async def _published(
        self, topic_id: Any, borders: dict[int, TierOffsets]
    ) -> tuple[dict[int, PublishedTier], str | None, int]:
        """Return archives of partitions that have one, an error, and the number of pending queries."""
        tiered = [p for p, one in borders.items() if one.bucket_end]
        desk = await self.bucket_desk(STORE_WAIT_S) if tiered else None
        if desk is None:
            return {}, self._bucket_problem if tiered else None, 0
        queries: dict[int, asyncio.Future[PublishedTier]] = {}
        for p in tiered:
            if (future := self._chain(desk, topic_id, p, borders[p].bucket_end)) is not None:
                queries[p] = future
        if queries:
            await asyncio.wait(queries.values(), timeout=STORE_WAIT_S)
        found: dict[int, PublishedTier] = {}
        problem: str | None = None
        pending = len(tiered) - len(queries)
        for p, future in queries.items():
            if not future.done():
                pending += 1
            elif (error := future.exception()) is None:
                found[p] = future.result()
            elif isinstance(error, TROUBLE):
                problem = error_text(error)
            else:
                raise error
        return found, problem, pending

    def _chain(
        self, desk: BucketDesk, topic_id: UUID, partition: int, end: int | None
    ) -> asyncio.Future[PublishedTier] | None:
        """Query one archive, once for all pages that need it; None if too many queries are pending."""
        place = (topic_id, partition)
        if (known := self._chains.get(place)) is not None:
            return known
        if len(self._chains) >= MOST_PENDING:
            return None
        question = partial(desk.published, topic_id, partition, end)
        future = asyncio.get_running_loop().run_in_executor(self._store_pool, question)
        self._chains[place] = future

        def done(future: asyncio.Future[PublishedTier]) -> None:
            del self._chains[place]
            if not future.cancelled():
                future.exception()  # waiting pages report it; mark it as retrieved

        future.add_done_callback(done)
        return future

    async def find_records(
        self, form: records.Form, ask: RecordQuery | None, problem: str | None
    ) -> records.Records:
        names: Sequence[str] = ()
        try:
            names = [one.name for one in await self._all_topics()]
            if ask is None:
                return records.Records(form, names, None, problem, 200 if problem is None else 400)
            found, decoded = await self._read(lambda: self._decoded(ask, form.form))
        except TROUBLE as e:
            return records.Records(form, names, None, error_text(e), status_of(e))
        return records.Records(form, names, found, problem, decoded=decoded)

    def _decoded(
        self, ask: RecordQuery, form: str
    ) -> tuple[records.FoundRecords | records.MergedRecords, Mapping[tuple[int, int, str], Decoded]]:
        """Return records, and their keys and values by schemas unless another format is asked for."""
        found = self._records.read(ask)
        if form != AUTO or not self.settings.decode.is_any:
            return found, {}
        rows = (
            [(found.partition, one) for one in found.records]
            if isinstance(found, records.FoundRecords)
            else [(one.partition, one.record) for one in found.records]
        )
        parts = [
            ((partition, record.offset, part), EncodedValue(ask.topic, part, data))
            for partition, record in rows
            for part, data in (("key", record.key), ("value", record.value))
            if data
        ]
        answers = self._decoder.decode([one for _, one in parts])
        return found, {
            place: answer for (place, _), answer in zip(parts, answers, strict=True) if answer is not None
        }

    async def download(self, ask: RecordQuery, part: str) -> tuple[bytes, str] | None:
        """Return bytes and a file name; None if there is no such record. Raises `FirnError` and `OSError`."""
        return await self._read(lambda: self._records.download(ask, part))

    def _read(self, question: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._readers, question)

    async def find_bucket(self, chosen: str | None) -> bucket.BucketPage:
        desk = await self.bucket_desk(STORE_WAIT_S)
        return bucket.BucketPage(
            self.settings.url or (desk.url if desk is not None else None),
            desk.endpoint if desk is not None else None,
            self._findings,
            self._surveying,
            self._survey_problem or self._bucket_problem,
            self._facts,
            desk is not None and desk.lacks_aioboto3,
            self.settings.prices,
            self.watch.nodes,
            await self._call(self._fsck),
            chosen,
            await self._orders.find(),
        )

    def _fsck(self) -> bucket.Fsck | None:
        path = self.settings.fsck_path
        if path is None:
            return None
        disk = self._world.disk
        try:
            entry = disk.stat(Path(path))
            if entry.size > MOST_FSCK_BYTES:
                return bucket.Fsck(path, problem=f"{entry.size} bytes are too many")
            fd = disk.open(Path(path), Open.READ)
            try:
                document = json.loads(disk.pread(fd, entry.size, 0))
            finally:
                disk.close(fd)
        except StorageError as e:
            return bucket.Fsck(path, problem=error_text(e))
        except (ValueError, RecursionError) as e:
            return bucket.Fsck(path, problem=f"not JSON: {e}")
        if not isinstance(document, dict):
            return bucket.Fsck(path, problem="not a report of firn fsck --json")
        return bucket.fsck_of(path, entry.modified_ms, document)

    async def find_cold(self) -> cold.ColdPage:
        problem: str | None = None
        if not self.watch.nodes:
            try:
                await self._call(self._kafka.describe)
            except TROUBLE as e:
                problem = error_text(e)
        return cold.ColdPage(self.watch.nodes, problem)

    async def find_configuration(
        self, node: int | None, name: str | None, wanted: str, only_set: bool
    ) -> configuration.Configuration:
        nodes: Sequence[int] = ()
        entries: Sequence[ConfigEntry] = ()
        problem, status = None, 200
        try:
            nodes = [one.node_id for one in (await self._call(self._kafka.describe)).nodes]
            if name is not None:
                entries = await self._call(lambda: self._kafka.topic_entries(name))
            elif node is not None and node not in nodes:
                problem, status = "There is no such node.", 404
            elif nodes:
                chosen = nodes[0] if node is None else node
                entries = await self._call(lambda: self._kafka.broker_entries(chosen))
                node = chosen
        except TROUBLE as e:
            problem, status = error_text(e), status_of(e)
        return configuration.Configuration(nodes, node, name, entries, wanted, only_set, problem, status)


def _listener(node: NodeInfo, answer: BrokerAnswer | None) -> NodeListener:
    """Return the HTTP listener of a node, from what it answered of its configuration."""
    node_id = node.node_id
    if node.is_fenced:
        return NodeListener(node_id, None, "it is fenced")
    if answer is None:
        return NodeListener(node_id, None, "no answer yet")
    if (problem := answer.silence or answer.refusal) is not None:
        return NodeListener(node_id, None, problem)
    if not answer.settings.get(LISTENER_KEY):
        return NodeListener(node_id, None, "firn.http.listener is not set")
    url = http_url(answer.settings, node.host)
    if url is None:
        return NodeListener(node_id, None, "its firn.http.listener has no fixed port; name it with --metrics")
    return NodeListener(node_id, url)
