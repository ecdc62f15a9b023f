"""`python -m bench.offload [--kafka] [--rounds N]`: offload beside raw PUTs of the same store.

- rate: sealed segments of some partitions wait while their topic is not tiered; then it is, and the time is
  taken until the last one is in the store. Beside it, in the same round, as many threads as there are
  partitions put objects of the same size with the same library (`bench.left`: share of what is left). With
  `--kafka` Apache Kafka copies as many to its tiered storage, too, which is a folder of files
  (bench/tiered_kafka.py).
- requests: one partition catches up 200 small segments through a proxy that counts: PUT-class requests (PUT,
  POST) for each segment, and manifests written.

Store, clients and node share one machine, so trust shares rather than rates; the load is printed beside them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from bench import load
from bench.figures import FIRN, KAFKA, Figures, add_json_option, write_asked
from bench.left import Meter, Work, child, left
from bench.measures import Measured
from bench.peers import Peer, firn
from bench.tiered_kafka import WARM_UP_MB, TieredKafka, tiered_kafka, tiered_kafka_is_here
from service.base.world import system_world
from service.remote.stores.obstore_store import open_store
from tests.support.clients import Admin
from tests.support.faults import FaultProxy
from tests.support.stores import ACCESS, SECRET, Store, new_bucket, versitygw_binary, versitygw_server
from tests.support.tiers import EARLIEST_LOCAL, LATEST_TIERED, offset

PARTITIONS: Final = 4
SEGMENT_MB: Final = 32
PART_BYTES: Final = 1 << 20
SMALL_SEGMENTS: Final = 200
SMALL_BYTES: Final = 1 << 20
GOAL_PERCENT: Final = 90
SHARE: Final = "offload, share of raw PUTs"


def raw(store: Store, store_pid: int, objects: int, size: int) -> Work:
    """Put `objects` of `size` bytes on `PARTITIONS` threads."""
    assert store.endpoint is not None
    client = open_store(
        store.url, world=system_world(), endpoint=store.endpoint, region="us-east-1",
        access_key_id=ACCESS, secret_access_key=SECRET,
    )  # fmt: skip
    part = os.urandom(PART_BYTES)

    def parts() -> Iterator[bytes]:
        for missing in range(size, 0, -PART_BYTES):
            yield part[: min(missing, PART_BYTES)]

    keys = [f"raw/{number}" for number in range(objects)]
    with Meter(own=os.getpid(), store=store_pid) as meter, ThreadPoolExecutor(PARTITIONS) as pool:
        for _ in pool.map(lambda key: client.put_stream(key, parts(), size), keys):
            pass
    client.delete(keys)
    return meter.work(objects * size)


def _wait(what: str, seconds: float, condition: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"no {what} within {seconds:.0f} s"
        time.sleep(0.05)


def offload(folder: Path, store: Store, store_pid: int, megabytes: int) -> tuple[Work, int]:
    """Return what it took to copy all that waited, and the number of segments."""
    with firn(folder, store) as peer:
        meter = _offloaded(peer, "waiting", megabytes, store_pid)
        copied = [one for key, one in store.objects().items() if key.endswith(".seg")]
    return meter.work(sum(copied)), len(copied)


def offload_by_kafka(peer: TieredKafka, topics: str, megabytes: int) -> tuple[Work, int]:
    """Return for Apache Kafka what `offload` does, of topics whose names begin with `topics`."""
    meter = _offloaded(peer, topics, megabytes)
    copied = peer.segments(topics)
    return meter.work(sum(copied)), len(copied)


def _offloaded(peer: Peer, topics: str, megabytes: int, store: int | None = None) -> Meter:
    """Write topics, have them tiered; return what that took."""
    names = [f"{topics}-{number}" for number in range(PARTITIONS)]
    ends = {}
    for name in names:
        load.create(peer.bootstrap, name, segment_bytes=str(SEGMENT_MB << 20))
        size, number = load.fill(peer.bootstrap, name, megabytes // PARTITIONS)
        per_segment = (SEGMENT_MB << 20) // size
        ends[name] = (number - 1) // per_segment * per_segment * load.BATCH_RECORDS - 1
    admin = Admin(peer.bootstrap)
    with Meter(own=peer.pid, store=store) as meter:
        for name in names:
            admin.alter(name, **{"remote.storage.enable": "true"})
        for name, end in ends.items():
            _wait(
                "end of the offload",
                300,
                lambda name=name, end=end: offset(peer.bootstrap, name, 0, LATEST_TIERED) >= end,  # type: ignore[misc]
            )
    return meter


def requests(folder: Path, store: Store) -> dict[str, float]:
    """Count the requests that the offload of `SMALL_SEGMENTS` segments of one partition takes."""
    assert store.endpoint is not None
    with contextlib.closing(FaultProxy(store.endpoint)) as proxy:
        with firn(folder, store.through(proxy.endpoint)) as peer:
            load.create(peer.bootstrap, "many", segment_bytes=str(SMALL_BYTES))
            load.fill(peer.bootstrap, "many", (SMALL_SEGMENTS + 1) * SMALL_BYTES // 1_000_000)
            time.sleep(2)
            before = len(proxy.seen)
            began = time.monotonic()
            Admin(peer.bootstrap).alter("many", **{"remote.storage.enable": "true"})
            last = offset(peer.bootstrap, "many", 0, EARLIEST_LOCAL)
            seen, moved = last, time.monotonic()
            while time.monotonic() - moved < 3:
                tiered = offset(peer.bootstrap, "many", 0, LATEST_TIERED)
                if tiered != seen:
                    seen, moved = tiered, time.monotonic()
                time.sleep(0.05)
        passed = [one for one in proxy.seen[before:] if "/data/" in one.path]
    written = [one.path for one in passed if one.method in ("PUT", "POST") and "delete" not in one.path]
    segments = len({path.partition("?")[0] for path in written if ".seg" in path})
    return {
        "segments": segments,
        "seconds": moved - began,
        "PUT-class requests for each segment": len(written) / segments,
        "all requests for each segment": len(passed) / segments,
        "manifests": sum("/manifest/" in path for path in written),
        "writes of HEAD": sum(path.endswith("/HEAD") for path in written),
    }


def _measured(work: Work, segments: int) -> list[Measured]:
    return [
        Measured(f"offload of {segments} segments", "MB/s", None, work.rate),
        Measured("offload, CPU of the node", "s/GB", None, work.own),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.offload", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000, help="what waits, over all partitions")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which the median is taken (3)")
    parser.add_argument(
        "--kafka", action="store_true", help="measure Apache Kafka's tiered storage beside it"
    )
    add_json_option(parser)
    arguments = parser.parse_args()
    if arguments.kafka and not tiered_kafka_is_here():
        parser.error("Apache Kafka's jars and LocalTieredStorage are not here: make fetch-tools")
    if versitygw_binary() is None:
        parser.error("versitygw is not here: make fetch-tools")
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="firn-bench-") as name, contextlib.ExitStack() as stack:
        endpoint = stack.enter_context(versitygw_server(Path(name)))
        store_pid = child("versitygw")
        kafka = stack.enter_context(tiered_kafka(Path(name) / "kafka")) if arguments.kafka else None
        if kafka is not None:
            offload_by_kafka(kafka, "warm", WARM_UP_MB)
        for number in range(arguments.rounds):
            store = new_bucket(endpoint, f"offload-{number}")
            objects = arguments.megabytes // SEGMENT_MB
            before = raw(store, store_pid, objects, SEGMENT_MB << 20)
            work, segments = offload(Path(name) / f"node-{number}", store, store_pid, arguments.megabytes)
            after = raw(store, store_pid, objects, SEGMENT_MB << 20)
            plain = Work(*map(statistics.mean, zip(before, after, strict=True)))
            told = [
                Measured("raw PUTs, before and after", "MB/s", None, plain.rate),
                Measured("raw PUTs, CPU", "s/GB", None, plain.own),
                Measured("raw PUTs, CPU of the store", "s/GB", None, plain.store),
                Measured(SHARE, "%", None, 100 * work.rate / plain.rate),
                Measured("offload, share of what is left", "%", None, 100 * work.rate / left(plain, work)),
                Measured("offload, CPU of the store", "s/GB", None, work.store),
            ]
            figures.tell(FIRN, [*told, *_measured(work, segments)], sys.stderr)
            if kafka is not None:
                found = offload_by_kafka(kafka, f"waiting-{number}", arguments.megabytes)
                figures.tell(KAFKA, _measured(*found), sys.stderr)
            print(f"load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
        print(f"{SHARE}: {figures.median(SHARE, FIRN):.0f} % (goal: ≥ {GOAL_PERCENT})")
        counted = requests(Path(name) / "node-many", new_bucket(endpoint, "offload-many"))
        figures.tell(
            FIRN, [Measured(f"catching up, {what}", "", None, value) for what, value in counted.items()]
        )
    write_asked(arguments, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
