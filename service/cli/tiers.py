"""`firn tiers`: which offsets, bytes and objects of a topic lie in which tier.

Offsets come from the partition's leader (ListOffsets), cold bytes and objects from the manifest in the
bucket, hot bytes from the leader's log directory where that is on this machine. What cannot be had is `-`.
Why a partition does not tier comes from the HTTP listeners of the leaders (`/tiering`), where they have one
that can be reached from here.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from service.cli.stores import add_store_options, endpoint_of
from service.cli.topic import add_bootstrap_option

if TYPE_CHECKING:
    from service.client.admin_models import TopicInfo
    from service.remote.format.manifest import Manifest, ManifestPage, PageRef, SegmentEntry
    from service.remote.stores.store import ObjectStore

WATCH_INTERVAL_S = 1.0
MOST_TOLD_BYTES = 4 << 20
URL_KEY, ENDPOINT_KEY, REGION_KEY = "firn.remote.url", "firn.remote.s3.endpoint", "firn.remote.s3.region"
DIRS_KEY, HTTP_KEY = "log.dirs", "firn.http.listener"


@dataclass(frozen=True, slots=True)
class PartitionTiers:
    """One partition. Ranges are [start, end); None is unknown. The tiers may overlap."""

    partition: int
    hot_start: int
    hot_end: int
    hot_bytes: int | None
    hot_segments: int | None
    cold_start: int
    cold_end: int
    cold_bytes: int | None
    cold_objects: int | None


@dataclass(frozen=True, slots=True)
class TopicTiers:
    topic: str
    topic_id: UUID
    url: str | None
    problem: str | None
    partitions: tuple[PartitionTiers, ...]
    writer: str | None = None
    """Node and incarnation that the bucket names as its only writer."""
    ahead: tuple[int, ...] = ()
    """Partitions whose archive in the bucket goes on behind what the broker knows: another writer, or an
    older disk."""
    asleep: tuple[Asleep, ...] = ()
    refused: tuple[str, ...] = ()
    """What the store refuses to tell of single partitions."""
    settings_unknown: bool = False
    """Whether nothing expires, as a recovery has brought the topic back and its settings are not known."""
    failing: tuple[str, ...] = ()
    """What fails or waits, by partition, or by node and step, with the reason."""


@dataclass(frozen=True, slots=True)
class Asleep:
    """The oldest objects of a partition lie in an archive class: records up to `last_offset` cannot be read
    before the objects, of which `key` is the first, have been restored."""

    partition: int
    last_offset: int
    key: str


class Published(NamedTuple):
    """What HEAD of one partition stands for."""

    size_bytes: int
    objects: int
    end_offset: int
    asleep: tuple[int, str] | None = None
    """the last offset that lies in an archive class, and the first such object"""


class Cold(NamedTuple):
    """What the bucket says of a topic: by partition, who writes it, and what is not known of it, and why."""

    published: dict[int, Published]
    writer: str | None
    problem: str | None
    refused: tuple[str, ...]
    settings_unknown: bool = False


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "tiers",
        help="show what lies in which tier",
        description="Show which offsets, bytes and objects of a topic lie hot (on the broker's disk) and cold"
        " (in object storage).",
    )
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--json", action="store_true", help="print JSON, one document for each look")
    parser.add_argument("--watch", action="store_true", help="look again every second, until Ctrl-C")
    parser.add_argument(
        "--url", metavar="URL", help="the cold tier's URL (default: the broker's firn.remote.url)"
    )
    add_bootstrap_option(parser)
    add_store_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    first = True
    while True:
        tiers = collect(
            args.bootstrap_server, args.topic, url=args.url, endpoint=endpoint_of(args), region=args.region
        )
        if tiers.problem and first:
            print(f"firn tiers: cold bytes are not known: {tiers.problem}", file=sys.stderr)
        if args.json:
            print(json.dumps(asdict(tiers), default=str), flush=True)
        else:
            if args.watch and sys.stdout.isatty():
                print("\x1b[H\x1b[J", end="")
            print("\n".join(table(tiers)), flush=True)
        if not args.watch:
            return 0
        first = False
        try:
            time.sleep(WATCH_INTERVAL_S)
        except KeyboardInterrupt:
            return 0


def collect(
    bootstrap: str,
    topic: str,
    *,
    url: str | None = None,
    endpoint: str | None = None,
    region: str | None = None,
) -> TopicTiers:
    """One look at a topic. Raises `RequestError`, `OSError`; an unreadable bucket is only a `problem`."""
    from service.client.admin import EARLIEST, EARLIEST_LOCAL, LATEST, LATEST_TIERED, Cluster
    from service.client.readiness_queries import ask_health

    with Cluster(bootstrap) as cluster:
        (info,) = cluster.topics([topic])
        leaders = {p.partition: p.leader for p in info.partitions}
        settings = {
            leader: cluster.broker_configs(leader, (URL_KEY, ENDPOINT_KEY, REGION_KEY, DIRS_KEY, HTTP_KEY))
            for leader in set(leaders.values())
        }
        hosts = {one.node_id: one.host for one in cluster.describe().nodes}
        start = cluster.offsets(topic, leaders, EARLIEST)
        hot_start = cluster.offsets(topic, leaders, EARLIEST_LOCAL)
        hot_end = cluster.offsets(topic, leaders, LATEST)
        last_cold = cluster.offsets(topic, leaders, LATEST_TIERED)
    any_broker = next(iter(settings.values()), {})
    url = url or any_broker.get(URL_KEY)
    cold, writer, problem, refused, is_unknown = _cold_sizes(
        info, url, endpoint or any_broker.get(ENDPOINT_KEY), region or any_broker.get(REGION_KEY)
    )
    suspects = [p for p in leaders if p in cold and cold[p].end_offset > last_cold[p] + 1]
    if suspects:  # unless it was committed while we looked
        with Cluster(bootstrap) as cluster:
            last_cold = cluster.offsets(topic, leaders, LATEST_TIERED)
    ahead = tuple(p for p in suspects if cold[p].end_offset > last_cold[p] + 1)
    rows = []
    for p, leader in leaders.items():
        hot_bytes, hot_segments = _hot_sizes(settings[leader].get(DIRS_KEY), info, p)
        published = cold.get(p)
        rows.append(
            PartitionTiers(
                partition=p,
                hot_start=hot_start[p],
                hot_end=hot_end[p],
                hot_bytes=hot_bytes,
                hot_segments=hot_segments,
                cold_start=start[p],
                cold_end=max(last_cold[p] + 1, start[p]),
                cold_bytes=published.size_bytes if published is not None else None,
                cold_objects=published.objects if published is not None else None,
            )
        )
    asleep = tuple(Asleep(p, *found.asleep) for p, found in cold.items() if found.asleep is not None)
    listeners = {
        leader: (hosts.get(leader, "127.0.0.1"), listener)
        for leader, found in settings.items()
        if (listener := found.get(HTTP_KEY))
    }
    failing = [line for leader, at in listeners.items() for line in _failing(leader, *at, info.topic_id)]
    failing += ask_health(listeners)
    return TopicTiers(
        topic,
        info.topic_id,
        url,
        problem,
        tuple(rows),
        writer,
        ahead,
        asleep,
        refused,
        is_unknown,
        tuple(failing),
    )


def _failing(leader: int, host: str, listener: str, topic_id: UUID) -> list[str]:
    """What `leader` says of the topic's partitions and of the prefix; nothing where it cannot be asked."""
    from urllib.request import urlopen

    from service.client.readiness_queries import WAIT_S, http_url

    try:
        with urlopen(http_url(listener, host, f"/tiering?topic={topic_id}"), timeout=WAIT_S) as answer:
            told = json.loads(answer.read(MOST_TOLD_BYTES))
        return [
            *(f"partition {one['partition']}: {one['why']}" for one in told["partitions"]),
            *(f"node {leader}: {one['step']}: {one['why']}" for one in told["prefix"]),
        ]
    except (OSError, HTTPException, ValueError, KeyError, TypeError, RecursionError):
        return []  # another machine's loopback, or an older node


def _cold_sizes(info: TopicInfo, url: str | None, endpoint: str | None, region: str | None) -> Cold:
    """One look at the bucket. A partition that the store refuses is left out; the others are told."""
    from service.base.errors import CorruptionError, FirnError
    from service.base.world import system_world
    from service.remote.stores.errors import OF_THE_STORE, StoreRefused
    from service.remote.stores.obstore_store import StoreOptions, open_store

    if url is None:
        return Cold({p.partition: Published(0, 0, 0) for p in info.partitions}, None, None, ())
    options = StoreOptions(connect_timeout_s=3, request_timeout_s=10, max_retries=1, retry_timeout_s=10)
    try:
        store = open_store(url, world=system_world(), endpoint=endpoint, region=region, options=options)
        found, refused = {}, []
        for one in info.partitions:
            try:
                found[one.partition] = _published(store, info.topic_id, one.partition)
            except StoreRefused as e:
                if isinstance(e, OF_THE_STORE):
                    raise
                refused.append(f"partition {one.partition}: {e}")
        is_unknown = False
        try:
            is_unknown = _is_unknown(store, info.topic_id)
        except (CorruptionError, StoreRefused) as e:
            refused.append(f"topics.json: {e}")
        return Cold(found, _writer(store), None, tuple(refused), is_unknown)
    except FirnError as e:
        return Cold({}, None, str(e), ())


def _is_unknown(store: ObjectStore, topic_id: UUID) -> bool:
    from service.tiering.shared_objects import read_topics

    topics = read_topics(store)
    rows = () if topics is None else topics.topics
    return any(row.settings_unknown for row in rows if row.topic_id == topic_id)


def _writer(store: ObjectStore) -> str | None:
    from service.remote.stores.errors import ObjectNotFound
    from service.tiering.fence import read_cluster

    try:
        stamp = read_cluster(store).stamp
    except ObjectNotFound:
        return None
    return f"node {stamp.writer.node_id}, incarnation {stamp.writer.incarnation}" if stamp else None


def _published(store: ObjectStore, topic_id: UUID, partition: int) -> Published:
    """The manifest that HEAD names; nothing where nothing was copied yet."""
    from service.remote.format.keys import HeadKey
    from service.remote.reading.object_reader import open_published

    chain = open_published(store, HeadKey(topic_id, partition))
    if chain is None or not chain.manifest.segments:
        return Published(0, 0, 0)
    manifest = chain.manifest
    return Published(manifest.size_bytes, manifest.segments, manifest.end_offset, _asleep(store, manifest))


def _asleep(store: ObjectStore, manifest: Manifest) -> tuple[int, str] | None:
    """Lifecycle rules take the oldest objects first: the last offset of those at the beginning that lie in an
    archive class, and the first of them. One request where there are none."""
    from service.remote.reading.object_reader import open_page
    from service.remote.stores.errors import ObjectAsleep

    @cache
    def load(ref: PageRef) -> ManifestPage:
        return open_page(store, ref, manifest)

    def sleeps(offset: int) -> SegmentEntry | None:
        entry = manifest.find(offset, load)
        try:
            if entry is not None:
                store.get_range(entry.key, 0, 1)
        except ObjectAsleep:
            return entry
        return None

    first = last = sleeps(manifest.start_offset)
    if first is None or last is None:
        return None
    awake = manifest.end_offset
    while last.last_offset + 1 < awake:
        middle = (last.last_offset + 1 + awake) // 2
        entry = sleeps(middle)
        if entry is not None:
            last = entry
        else:
            found = manifest.find(middle, load)
            awake = found.base_offset if found is not None else middle
    return last.last_offset, first.key


def _hot_sizes(log_dirs: str | None, info: TopicInfo, partition: int) -> tuple[int | None, int | None]:
    """Bytes and number of the partition's segments, where its directory is on this machine."""
    from service.base.errors import StorageError
    from service.base.world import system_world
    from service.hot.log_dir import read_topic_id
    from service.hot.names import LOG, partition_dir

    disk = system_world().disk
    for log_dir in (log_dirs or "").split(","):
        directory = Path(log_dir) / partition_dir(info.name, partition)
        try:
            if read_topic_id(disk, directory) != info.topic_id:
                continue  # another cluster's topic of that name
            sizes = [one.size for one in disk.list(directory) if one.is_file and one.name.endswith(LOG)]
        except StorageError:
            continue  # on another machine, or deleted while we looked
        return sum(sizes), len(sizes)
    return None, None


def table(tiers: TopicTiers) -> list[str]:
    """Lines for people, a row for each partition and one for their sum."""
    head = ("partition", "hot offsets", "bytes", "segments", "cold offsets", "bytes", "objects")
    rows = [
        (
            str(p.partition),
            _range(p.hot_start, p.hot_end),
            human_bytes(p.hot_bytes),
            _count(p.hot_segments),
            _range(p.cold_start, p.cold_end),
            human_bytes(p.cold_bytes),
            _count(p.cold_objects),
        )
        for p in tiers.partitions
    ]
    every = tiers.partitions
    total = (
        "all",
        f"{sum(p.hot_end - p.hot_start for p in every):,} records",
        human_bytes(_sum(p.hot_bytes for p in every)),
        _count(_sum(p.hot_segments for p in every)),
        f"{sum(p.cold_end - p.cold_start for p in every):,} records",
        human_bytes(_sum(p.cold_bytes for p in every)),
        _count(_sum(p.cold_objects for p in every)),
    )
    writer = f"  (written by {tiers.writer})" if tiers.writer is not None else ""
    lines = [f"{tiers.topic}  {tiers.url or 'no cold tier'}{writer}", *_aligned([head, *rows, total])]
    lines += [
        f"partition {one.partition}: {one.key} and all up to offset {one.last_offset} lie in an archive "
        f"class and cannot be read before they have been restored (docs/operations.md)"
        for one in tiers.asleep
    ]
    lines += tiers.refused
    if tiers.ahead:
        numbers = ", ".join(map(str, tiers.ahead))
        lines.append(
            f"partitions {numbers}: the bucket is ahead of what the broker knows; its log says why "
            f"(docs/operations.md)"
        )
    if tiers.settings_unknown:
        lines.append(
            "nothing expires, as a recovery brought the topic back and its settings are not known: set "
            f"retention.ms, or run firn topic settings-known {tiers.topic}"
        )
    return [*lines, *tiers.failing]


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _range(start: int, end: int) -> str:
    return f"{start}..{end - 1}" if end > start else "-"


def _sum(values: Iterable[int | None]) -> int | None:
    found = list(values)
    return None if None in found else sum(value for value in found if value is not None)


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def human_bytes(count: int | None) -> str:
    """Bytes for people: `12.3 MB`, `-` where they are not known."""
    if count is None:
        return "-"
    if count < 1000:
        return f"{count} B"
    value = float(count)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 1000:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:,.1f} TB"
