"""`python -m bench.steady [nothing] [mixed] [--hours 24] [--minutes 30]`: memory and descriptors over time.

- nothing: a node with tiered topics that nobody uses, for `--hours` of its own time. libfaketime, where it is
  installed, has the clocks of the node and of its loop run `--faster` times as fast (a thread that waits
  with a timeout does so in real time); without it the hours are real.
- mixed: three nodes with replicas over one bucket, under all that clients do: `--minutes` of real time. Their
  caches of the archive are small, so that they are full behind the first quarter.

Each line is a sample; the figures compare the middle of what came after the first quarter with the end.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple
from urllib.request import urlopen

from bench.figures import FIRN, Figures, add_json_option, write_asked
from bench.measures import Measured
from bench.parts import parts_of
from bench.peers import rss_mb
from bench.steady_load import steady_load
from bench.tiered_cluster import tiered_cluster
from tests.support.clients import Admin, Confluent, make_rows
from tests.support.processes import Node
from tests.support.stores import Store, moto_server, new_bucket, versitygw_binary, versitygw_server

NAMES: Final = ("nothing", "mixed")
SAMPLES: Final = 48
TOPICS: Final = 20
SMALL_CACHE: Final = {"firn.remote.cache.bytes": str(32 << 20)}
"""A quarter of the default."""
_CACHE: Final = re.compile(r'^firn_memory_bytes\{owner="cold_cache"\} (\S+)', re.MULTILINE)
FAKETIME: Final = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")


class Watched(NamedTuple):
    """A process, and where its metrics are, if it serves them."""

    pid: int
    http: str | None = None


class Sample(NamedTuple):
    """Memory (MB), open files and threads of a process at one moment. `cache`: what of the memory is the
    cache of the archive, which grows to its bound and stays there."""

    memory: float
    cache: float
    files: int
    threads: int


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.steady", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: both")
    parser.add_argument("--hours", type=float, default=24, help="of nothing (default: 24)")
    parser.add_argument(
        "--faster", type=float, default=100, help="times, of the node's clocks (default: 100)"
    )
    parser.add_argument("--minutes", type=float, default=30, help="of mixed load (default: 30)")
    add_json_option(parser)
    arguments = parser.parse_args()
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="firn-steady-") as name:
        if "nothing" in (names := parts_of(parser, arguments.names, NAMES)):
            figures.tell(FIRN, nothing(Path(name), arguments.hours, arguments.faster))
        if "mixed" in names:
            figures.tell(FIRN, mixed(Path(name), arguments.minutes))
    write_asked(arguments, figures)
    return 0


def nothing(folder: Path, hours: float, faster: float) -> list[Measured]:
    """Leave a node alone."""
    if not FAKETIME.exists():
        print("libfaketime is not here: the hours are real ones", file=sys.stderr)
        faster = 1.0
    with _store(folder / "store-of-nothing", is_moto=True) as store:
        environ = {**store.env}
        if FAKETIME.exists():
            environ |= {"LD_PRELOAD": str(FAKETIME), "FAKETIME": f"+0 x{faster:g}"}
        node = Node(folder / "nothing", store.node_settings, environ)
        try:
            node.start()
            _fill(node.bootstrap)
            samples = [one for (one,) in _watched([Watched(node.pid)], hours * 3600 / faster, hours, "h")]
            node.stop()
        finally:
            node.close()
    return list(_compared(f"{hours:g} h of nothing", samples))


def _fill(bootstrap: str) -> None:
    rows = make_rows(2_000, 2)
    for number in range(TOPICS):
        name = f"quiet-{number}"
        Admin(bootstrap).create(name, 2, remote_storage_enable="true", segment_bytes="1048576")
        Confluent().produce(bootstrap, name, rows)


def mixed(folder: Path, minutes: float) -> list[Measured]:
    """Have clients do everything at once."""
    with ExitStack() as stack:
        store = stack.enter_context(_store(folder / "store-of-mixed"))
        cluster = stack.enter_context(tiered_cluster(folder / "mixed", store, SMALL_CACHE))
        cluster.start()
        stack.enter_context(steady_load(cluster.bootstrap))
        nodes = [
            Watched(one.process.pid, one.settings["firn.http.listener"])
            for one in cluster.members.values()
            if one.process is not None
        ]
        samples = list(_watched(nodes, minutes * 60, minutes, "min"))
    found: list[Measured] = []
    for number, name in enumerate(cluster.members):
        found += _compared(f"{minutes:g} min of mixed load, node {name}", [one[number] for one in samples])
    return found


@contextmanager
def _store(folder: Path, *, is_moto: bool = False) -> Iterator[Store]:
    """Have a bucket in versitygw, if it is here; in moto, if it `is_moto`: it takes requests of any date."""
    folder.mkdir()
    server = moto_server if is_moto or versitygw_binary() is None else versitygw_server
    with server(folder) as endpoint:
        yield new_bucket(endpoint, "steady")


def _watched(nodes: Sequence[Watched], seconds: float, told: float, unit: str) -> Iterator[list[Sample]]:
    """Sample the processes, at equal times, and print it; `told` of `unit` are what the seconds stand for."""
    began = time.monotonic()
    for number in range(1, SAMPLES + 1):
        time.sleep(max(0.0, began + number * seconds / SAMPLES - time.monotonic()))
        samples = [_sample(one) for one in nodes]
        cells = "; ".join(
            f"{one.memory:7.1f} MB ({one.cache:.1f} cache) {one.files:4} files {one.threads:3} threads"
            for one in samples
        )
        print(f"{told * number / SAMPLES:6.1f} {unit}  {cells}", file=sys.stderr, flush=True)
        yield samples


def _sample(node: Watched) -> Sample:
    process, cache = Path(f"/proc/{node.pid}"), 0.0
    if node.http is not None:
        with urlopen(f"http://{node.http}/metrics", timeout=20) as answer:
            found = _CACHE.search(answer.read().decode())
        assert found is not None, "no firn_memory_bytes of the cache"
        cache = float(found[1]) / 1e6
    files, threads = (len(list((process / one).iterdir())) for one in ("fd", "task"))
    return Sample(rss_mb(node.pid), cache, files, threads)


def _compared(what: str, samples: Sequence[Sample]) -> Iterator[Measured]:
    """Tell what there was behind the first quarter and in the last one."""
    quarter = len(samples) // 4
    for when, some in (
        ("second quarter", samples[quarter : 2 * quarter]),
        ("last quarter", samples[-quarter:]),
    ):
        memory = median(one.memory - one.cache for one in some)
        yield Measured(f"{what}: memory without the cache of the archive, {when}", "MB", None, memory)
        yield Measured(f"{what}: that cache, {when}", "MB", None, median(one.cache for one in some))
        yield Measured(f"{what}: open files, {when}", "", None, median(one.files for one in some))
        yield Measured(f"{what}: threads, {when}", "", None, median(one.threads for one in some))


if __name__ == "__main__":
    sys.exit(main())
