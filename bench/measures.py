"""The measures, each a function of a running node or of a way to start one, in the units of its target."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import NamedTuple

from bench import load
from bench.peers import Cpu, Peer, firn, rss_mb
from tests.support.stores import Store
from tests.support.tiers import settle


class Measured(NamedTuple):
    """A figure of a peer. `target` is an upper bound, or None for what is only told."""

    what: str
    unit: str
    target: float | None
    value: float


def _topic(peer: Peer, **config: str) -> str:
    name = f"bench-{uuid.uuid4().hex[:8]}"
    load.create(peer.bootstrap, name, **config)
    return name


def idle(peer: Peer) -> list[Measured]:
    """Measure a node that was just started and idle for a few seconds."""
    time.sleep(4)
    return [
        Measured("start to ready", "s", 1.5, peer.seconds_to_ready),
        Measured("resident memory, idle", "MB", 80, rss_mb(peer.pid)),
    ]


def produce(peer: Peer, requests: int) -> list[Measured]:
    topic = _topic(peer)
    with Cpu(peer.pid) as cpu:
        load.produce_single_records(peer.bootstrap, topic, requests)
    return [
        Measured("user CPU per single-record produce request", "µs", 35, cpu.user / requests * 1e6),
        Measured("user and system CPU of it", "µs", None, cpu.all / requests * 1e6),
        Measured("single-record produce requests", "1000/s", None, requests / cpu.wall / 1e3),
    ]


def produce_singly(peer: Peer, requests: int) -> list[Measured]:
    """Have one request under way, as a producer that waits for each."""
    topic = _topic(peer)
    with Cpu(peer.pid) as cpu:
        load.produce_single_records(peer.bootstrap, topic, requests, window=1, chunk=1)
    return [
        Measured("CPU of a request, one under way", "µs", None, cpu.all / requests * 1e6),
        Measured("requests, one under way", "1000/s", None, requests / cpu.wall / 1e3),
    ]


def produce_bulk(peer: Peer, megabytes: int) -> list[Measured]:
    topic = _topic(peer)
    with Cpu(peer.pid) as cpu:
        size, number = load.fill(peer.bootstrap, topic, megabytes)
    gigabytes = size * number / 1e9
    return [
        Measured("user CPU per produced GB (batches of 200 KB)", "s", None, cpu.user / gigabytes),
        Measured("produced", "MB/s", None, gigabytes * 1e3 / cpu.wall),
    ]


def fetch(peer: Peer, megabytes: int, times: int) -> list[Measured]:
    """Fetch the same data from the page cache several times."""
    topic = _topic(peer)
    size, number = load.fill(peer.bootstrap, topic, megabytes)
    load.fetch_all(peer.bootstrap, topic, size, number)
    with Cpu(peer.pid) as cpu:
        total = sum(load.fetch_all(peer.bootstrap, topic, size, number) for _ in range(times))
    gigabytes = total / 1e9
    return [
        Measured("CPU per fetched GB, hot, user and system", "s", 0.8, cpu.all / gigabytes),
        Measured("fetched hot, one connection", "MB/s", None, gigabytes * 1e3 / cpu.wall),
        Measured("resident memory after hot fetches", "MB", None, rss_mb(peer.pid)),
    ]


def consume(peer: Peer, megabytes: int, times: int) -> list[Measured]:
    """Do what `fetch` does with a real consumer with librdkafka's defaults."""
    topic = _topic(peer)
    size, number = load.fill(peer.bootstrap, topic, megabytes)
    records = number * load.BATCH_RECORDS
    load.consume_all(peer.bootstrap, topic, records)
    with Cpu(peer.pid) as cpu:
        for _ in range(times):
            load.consume_all(peer.bootstrap, topic, records)
    gigabytes = times * size * number / 1e9
    return [
        Measured("CPU per fetched GB, hot, 1 MiB fetches (librdkafka)", "s", None, cpu.all / gigabytes),
        Measured("consumed hot, one librdkafka consumer", "MB/s", None, gigabytes * 1e3 / cpu.wall),
    ]


def cold(folder: Path, store: Store, megabytes: int) -> list[Measured]:
    """All but the last segment from object storage, by a node that has nothing of it in its caches."""
    with firn(folder, store) as peer:
        time.sleep(4)
        with_store = rss_mb(peer.pid)
        topic = _topic(
            peer, remote_storage_enable="true", segment_bytes=str(64 << 20), local_retention_bytes="1"
        )
        with Cpu(peer.pid) as offload:
            size, number = load.fill(peer.bootstrap, topic, megabytes)
            border = settle(peer.bootstrap, topic, 0, 120)
    gigabytes = border * load.RECORD_BYTES / 1e9
    with firn(folder, store, **{"log.dirs": str(folder / "data")}) as peer:
        batches = border // load.BATCH_RECORDS
        with Cpu(peer.pid) as cpu:
            read = load.fetch_all(peer.bootstrap, topic, size, batches) / 1e9
        memory = rss_mb(peer.pid)
    assert number * load.BATCH_RECORDS > border
    return [
        Measured("resident memory, idle, with a cold tier", "MB", 80, with_store),
        Measured("CPU per offloaded GB, producing included, all", "s", None, offload.all / gigabytes),
        Measured("CPU per fetched GB, cold, user and system", "s", None, cpu.all / read),
        Measured("fetched cold, one connection", "MB/s", None, read * 1e3 / cpu.wall),
        Measured("resident memory after cold fetches", "MB", None, memory),
    ]
