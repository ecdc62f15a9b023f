"""`firn tiers`: offsets, bytes and objects of a topic in each tier.

Offsets come from the partition's leader (ListOffsets), cold bytes and objects from the manifest in the
bucket, hot bytes from the leader's log directory if it is on this machine. Unknown values are `-`. The
reasons why a partition does not tier, or keeps a cut from being complete, come from the HTTP listeners of
the leaders and of the broker that takes cuts (`/tiering`), if they can be reached from here.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from service.cli.address import add_bootstrap_option
from service.cli.client_properties import node_http_of_args, security_of_args
from service.cli.stores import add_store_options, endpoint_of

if TYPE_CHECKING:
    from service.client.admin import Cluster
    from service.client.admin_models import TopicInfo
    from service.client.node_http import NodeHttp
    from service.client.security import Security
    from service.remote.format.manifest import Manifest, ManifestPage, PageRef, SegmentEntry
    from service.remote.stores.store import ObjectStore

WATCH_INTERVAL_S = 1.0
MAX_TIERING_BYTES = 4 << 20
URL_KEY, ENDPOINT_KEY, REGION_KEY = "firn.remote.url", "firn.remote.s3.endpoint", "firn.remote.s3.region"
DIRS_KEY = "log.dirs"


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
    """Partitions whose archive in the bucket ends after the broker's: another node has written, or the broker
    has an older disk."""
    asleep: tuple[Asleep, ...] = ()
    refused: tuple[str, ...] = ()
    """Errors of the store for single partitions."""
    settings_unknown: bool = False
    """Whether nothing expires, because a recovery restored the topic and its settings are unknown."""
    failing: tuple[str, ...] = ()
    """Failing or waiting work, by partition, or by node and step, with the reason."""


@dataclass(frozen=True, slots=True)
class Asleep:
    """Oldest objects of a partition that lie in an archive class: records up to `last_offset` cannot be read
    before the objects, of which `key` is the first, have been restored."""

    partition: int
    last_offset: int
    key: str


class ManifestSizes(NamedTuple):
    """Sizes in the manifest that a partition's HEAD names."""

    size_bytes: int
    objects: int
    end_offset: int
    asleep: tuple[int, str] | None = None
    """last offset in an archive class, and the key of the first such object"""


class ColdSizes(NamedTuple):
    """State of a topic in the bucket: sizes by partition, the writer, and errors."""

    published: dict[int, ManifestSizes]
    writer: str | None
    problem: str | None
    refused: tuple[str, ...]
    settings_unknown: bool = False


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "tiers",
        help="show the tiers of a topic",
        description="Show which offsets, bytes and objects of a topic are hot (on the broker's disk) and cold"
        " (in object storage).",
    )
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--json", action="store_true", help="print JSON, one document for each query")
    parser.add_argument("--watch", action="store_true", help="repeat every second, until Ctrl-C")
    parser.add_argument(
        "--url", metavar="URL", help="the cold tier's URL (default: the broker's firn.remote.url)"
    )
    add_bootstrap_option(parser)
    add_store_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the tiers of a topic, with ``--watch`` until Ctrl-C; the exit code is 0, errors are raised."""
    first, security, http = True, security_of_args(args), node_http_of_args(args)
    while True:
        tiers = collect(
            args.bootstrap_server,
            args.topic,
            url=args.url,
            endpoint=endpoint_of(args),
            region=args.region,
            security=security,
            http=http,
        )
        if tiers.problem and first:
            print(f"firn tiers: cold bytes are unknown: {tiers.problem}", file=sys.stderr)
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


def _connect(bootstrap: str, security: Security | None) -> Cluster:
    from service.client.admin import Cluster
    from service.client.security import PLAINTEXT

    return Cluster(bootstrap, security=security or PLAINTEXT)


def collect(
    bootstrap: str,
    topic: str,
    *,
    url: str | None = None,
    endpoint: str | None = None,
    region: str | None = None,
    security: Security | None = None,
    http: NodeHttp | None = None,
) -> TopicTiers:
    """Query a topic once, over PLAINTEXT without `security`. `http`: how leaders' HTTP listeners are asked.

    Raises `RequestError`, `OSError`; an unreadable bucket is only a `problem`."""
    from service.client.admin import EARLIEST, EARLIEST_LOCAL, LATEST, LATEST_TIERED
    from service.client.node_http import HTTP_KEYS, PLAIN_HTTP

    with _connect(bootstrap, security) as cluster:
        (info,) = cluster.topics([topic])
        leaders = {p.partition: p.leader for p in info.partitions}
        hosts = {one.node_id: one.host for one in cluster.describe().nodes}
        # The broker of the lowest id takes cuts, as long as it does not fail.
        asked = {*leaders.values(), *sorted(hosts)[:1]}
        settings = {
            one: cluster.broker_configs(one, (URL_KEY, ENDPOINT_KEY, REGION_KEY, DIRS_KEY, *HTTP_KEYS))
            for one in asked
        }
        start = cluster.offsets(topic, leaders, EARLIEST)
        hot_start = cluster.offsets(topic, leaders, EARLIEST_LOCAL)
        hot_end = cluster.offsets(topic, leaders, LATEST)
        last_cold = cluster.offsets(topic, leaders, LATEST_TIERED)
    any_broker = next(iter(settings.values()), {})
    url = url or any_broker.get(URL_KEY)
    cold, writer, problem, refused, is_unknown = cold_sizes(
        info, url, endpoint or any_broker.get(ENDPOINT_KEY), region or any_broker.get(REGION_KEY)
    )
    suspects = [p for p in leaders if p in cold and cold[p].end_offset > last_cold[p] + 1]
    if suspects:  # unless it was committed since the first query
        with _connect(bootstrap, security) as cluster:
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
    failing = _told_by_leaders(http or PLAIN_HTTP, settings, hosts, info.topic_id)
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
        failing,
    )


def _told_by_leaders(
    http: NodeHttp,
    settings: Mapping[int, Mapping[str, str | None]],
    hosts: Mapping[int, str],
    topic_id: UUID,
) -> tuple[str, ...]:
    """Return failing work and problems, as the HTTP listeners of those leaders say that can be reached."""
    from service.client.node_http import http_url
    from service.client.readiness_queries import ask_health

    listeners = {
        leader: at
        for leader, found in settings.items()
        if (at := http_url(found, hosts.get(leader, "127.0.0.1")))
    }
    failing = [line for leader, at in listeners.items() for line in _failing(http, leader, at, topic_id)]
    return (*failing, *ask_health(listeners, http))


def _failing(http: NodeHttp, leader: int, url: str, topic_id: UUID) -> list[str]:
    """Return failing work of the topic and of the prefix, as `leader` reports; none if it does not answer."""
    from service.client.readiness_queries import WAIT_S

    try:
        report = json.loads(http.get(f"{url}/tiering?topic={topic_id}", WAIT_S, MAX_TIERING_BYTES))
        return [
            *(f"partition {one['partition']}: {one['why']}" for one in report["partitions"]),
            *(f"node {leader}: {one['step']}: {one['why']}" for one in report["prefix"]),
        ]
    except (OSError, HTTPException, ValueError, KeyError, TypeError, RecursionError):
        return []  # loopback address of another machine, or an older node


def cold_sizes(info: TopicInfo, url: str | None, endpoint: str | None, region: str | None) -> ColdSizes:
    """Query the bucket once. A partition that the store refuses is left out; the others are returned."""
    from service.base.errors import CorruptionError, FirnError
    from service.base.world import system_world
    from service.remote.stores.errors import OF_THE_STORE, StoreRefused
    from service.remote.stores.obstore_store import StoreOptions, open_store

    if url is None:
        return ColdSizes({p.partition: ManifestSizes(0, 0, 0) for p in info.partitions}, None, None, ())
    options = StoreOptions(connect_timeout_s=3, request_timeout_s=10, max_retries=1, retry_timeout_s=10)
    try:
        store = open_store(
            url,
            world=system_world(),
            endpoint=endpoint,
            region=region,
            options=options,
            must_exist=True,
        )
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
        return ColdSizes(found, _writer(store), None, tuple(refused), is_unknown)
    except FirnError as e:
        return ColdSizes({}, None, str(e), ())


def _is_unknown(store: ObjectStore, topic_id: UUID) -> bool:
    from service.tiering.shared_objects import read_topics

    topics = read_topics(store)
    rows = () if topics is None else topics.topics
    return any(row.settings_unknown for row in rows if row.topic_id == topic_id)


def _writer(store: ObjectStore) -> str | None:
    from service.remote.stores.errors import ObjectNotFound
    from service.tiering.prefix_fence import read_cluster

    try:
        stamp = read_cluster(store).stamp
    except ObjectNotFound:
        return None
    return f"node {stamp.writer.node_id}, incarnation {stamp.writer.incarnation}" if stamp else None


def _published(store: ObjectStore, topic_id: UUID, partition: int) -> ManifestSizes:
    """Return the sizes of the manifest that HEAD names; zeros if nothing was copied yet."""
    from service.remote.format.keys import HeadKey
    from service.remote.reading.object_reader import open_published

    chain = open_published(store, HeadKey(topic_id, partition))
    if chain is None or not chain.manifest.segments:
        return ManifestSizes(0, 0, 0)
    manifest = chain.manifest
    return ManifestSizes(
        manifest.size_bytes, manifest.segments, manifest.end_offset, _asleep(store, manifest)
    )


def _asleep(store: ObjectStore, manifest: Manifest) -> tuple[int, str] | None:
    """Return the last offset and the first key of the oldest objects in an archive class, or None.

    Lifecycle rules move the oldest objects first, so a binary search finds the end; without such objects it
    takes one request.
    """
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
    """Return bytes and number of the partition's segments, if its directory is on this machine."""
    from service.base.errors import StorageError
    from service.base.world import system_world
    from service.hot.log_dir import read_topic_id
    from service.hot.names import LOG, partition_dir

    disk = system_world().disk
    for log_dir in (log_dirs or "").split(","):
        directory = Path(log_dir) / partition_dir(info.name, partition)
        try:
            if read_topic_id(disk, directory) != info.topic_id:
                continue  # a topic of that name in another cluster
            sizes = [one.size for one in disk.list(directory) if one.is_file and one.name.endswith(LOG)]
        except StorageError:
            continue  # on another machine, or deleted meanwhile
        return sum(sizes), len(sizes)
    return None, None


def table(tiers: TopicTiers) -> list[str]:
    """Return lines of text, a row for each partition and one for the total."""
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
        f"partition {one.partition}: {one.key} and all objects up to offset {one.last_offset} are in an "
        f"archive class; restore them to read their records (docs/operations.md)"
        for one in tiers.asleep
    ]
    lines += tiers.refused
    if tiers.ahead:
        numbers = ", ".join(map(str, tiers.ahead))
        lines.append(
            f"partitions {numbers}: the archive in the bucket ends after the broker's; see the broker's log "
            f"(docs/operations.md)"
        )
    if tiers.settings_unknown:
        lines.append(
            "nothing expires, because a recovery restored the topic and its settings are unknown: set "
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
    """Return a size as text: `12.3 MB`, `-` if unknown."""
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
