"""`python -m bench.offload [--megabytes N] [--rounds N]`: offload beside raw PUTs of the same store.

- rate: sealed segments of some partitions wait while their topic is not tiered; then it is, and the time is
  taken until the last one is in the store. Beside it, in the same round, as many threads as there are
  partitions put objects of the same size with the same library.
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
from bench.figures import FIRN, Figures, add_json_option, write_asked
from bench.measures import Measured
from bench.peers import Cpu, firn
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
GOAL_PERCENT: Final = 70
SHARE: Final = "offload, share of raw PUTs"


def raw(store: Store, objects: int, size: int) -> float:
    """MB/s of `objects` PUTs of `size` bytes on `PARTITIONS` threads."""
    assert store.endpoint is not None
    client = open_store(
        store.url, world=system_world(), endpoint=store.endpoint, region="us-east-1",
        access_key_id=ACCESS, secret_access_key=SECRET,
    )  # fmt: skip
    part = os.urandom(PART_BYTES)

    def parts() -> Iterator[bytes]:
        for left in range(size, 0, -PART_BYTES):
            yield part[: min(left, PART_BYTES)]

    keys = [f"raw/{number}" for number in range(objects)]
    began = time.monotonic()
    with ThreadPoolExecutor(PARTITIONS) as pool:
        for _ in pool.map(lambda key: client.put_stream(key, parts(), size), keys):
            pass
    took = time.monotonic() - began
    client.delete(keys)
    return objects * size / 1e6 / took


def _wait(what: str, seconds: float, condition: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"no {what} within {seconds:.0f} s"
        time.sleep(0.02)


def offload(folder: Path, store: Store, megabytes: int) -> tuple[float, int, float]:
    """(MB/s, segments, CPU seconds of the node per GB) of what waited."""
    with firn(folder, store) as peer:
        names = [f"waiting-{number}" for number in range(PARTITIONS)]
        ends = {}
        for name in names:
            load.create(peer.bootstrap, name, segment_bytes=str(SEGMENT_MB << 20))
            size, number = load.fill(peer.bootstrap, name, megabytes // PARTITIONS)
            per_segment = (SEGMENT_MB << 20) // size
            ends[name] = (number - 1) // per_segment * per_segment * load.BATCH_RECORDS - 1
        admin = Admin(peer.bootstrap)
        began = time.monotonic()
        with Cpu(peer.pid) as cpu:
            for name in names:
                admin.alter(name, **{"remote.storage.enable": "true"})
            for name, end in ends.items():
                _wait(
                    "end of the offload",
                    300,
                    lambda name=name, end=end: offset(peer.bootstrap, name, 0, LATEST_TIERED) >= end,  # type: ignore[misc]
                )
            took = time.monotonic() - began
        copied = [one for key, one in store.objects().items() if key.endswith(".seg")]
    return sum(copied) / 1e6 / took, len(copied), cpu.all / (sum(copied) / 1e9)


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


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.offload", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000, help="what waits, over all partitions")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which the median is taken (3)")
    add_json_option(parser)
    arguments = parser.parse_args()
    if versitygw_binary() is None:
        parser.error("versitygw is not here: make fetch-tools")
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="firn-bench-") as name, contextlib.ExitStack() as stack:
        endpoint = stack.enter_context(versitygw_server(Path(name)))
        for number in range(arguments.rounds):
            store = new_bucket(endpoint, f"offload-{number}")
            objects = arguments.megabytes // SEGMENT_MB
            before = raw(store, objects, SEGMENT_MB << 20)
            rate, segments, cpu = offload(Path(name) / f"node-{number}", store, arguments.megabytes)
            after = raw(store, objects, SEGMENT_MB << 20)
            raw_rate = statistics.mean((before, after))
            told = [
                Measured("raw PUTs, before and after", "MB/s", None, raw_rate),
                Measured(f"offload of {segments} segments", "MB/s", None, rate),
                Measured(SHARE, "%", None, 100 * rate / raw_rate),
                Measured("offload, CPU of the node", "s/GB", None, cpu),
            ]
            figures.tell(FIRN, told, sys.stderr)
            print(f"load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
        print(f"{SHARE}: {figures.median(SHARE, FIRN):.0f} % (goal: ≥ {GOAL_PERCENT})")
        found = requests(Path(name) / "node-many", new_bucket(endpoint, "offload-many"))
        figures.tell(
            FIRN, [Measured(f"catching up, {what}", "", None, value) for what, value in found.items()]
        )
    write_asked(arguments, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
