"""`python -m bench.restoring`: time of a restore, of clusters with little and with much in their archive.

For each number of segments the bucket of a lost cluster is laid out in versitygw, or in a folder. Then come
`firn restore plan`, `firn restore apply --take-over --force`, `firn format --restore` and the start of a
node, until all of it is served. Told are seconds, CPU seconds and resident memory, and the ratio of the
greatest archive to the least. `--force` leaves out the half minute in which nobody may write.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from bench.lost_bucket import LostBucket
from service.base.errors import RequestError, StorageError
from service.base.world import system_world
from service.client.admin import Cluster
from service.inspect.restore_status import restore_status
from service.remote.stores.obstore_store import ObstoreStore, open_store
from tests.support.processes import FIRN, Node, cpu_seconds, wait_until
from tests.support.stores import (
    ACCESS,
    SECRET,
    Store,
    folder_store,
    new_bucket,
    versitygw_binary,
    versitygw_server,
)

MOST_RATIO: Final = 1.2
MOST_S: Final = 60.0
MOST_MB: Final = 200.0
STEPS: Final = ("plan", "apply", "ready")


class Took(NamedTuple):
    """Seconds, CPU seconds and the greatest resident memory, in MB, of one step."""

    seconds: float
    cpu: float
    memory_mb: float


Restore = dict[str, Took]


@contextmanager
def _where(kind: str, folder: Path) -> Iterator[tuple[Callable[[], Store], Callable[[Store], Path]]]:
    """Yield what makes a new bucket, and what says in which folder a bucket has its objects."""
    numbers = iter(range(1 << 30))
    if kind == "folder":
        yield (
            lambda: folder_store(folder / f"bucket-{next(numbers)}"),
            lambda store: Path(store.url.removeprefix("file://")),
        )
        return
    with versitygw_server(folder) as endpoint:
        yield (
            lambda: new_bucket(endpoint, f"lost-{next(numbers)}"),
            lambda store: folder / "versitygw" / store.url.removeprefix("s3://"),
        )


def _opened(store: Store) -> ObstoreStore:
    key, secret = (ACCESS, SECRET) if store.endpoint else (None, None)
    return open_store(
        store.url,
        world=system_world(),
        endpoint=store.endpoint,
        region="us-east-1",
        access_key_id=key,
        secret_access_key=secret,
    )


def firn(store: Store, *words: str) -> tuple[str, Took]:
    """Run a command to its end."""
    environ = {**os.environ, **store.env, "AWS_REGION": "us-east-1"}
    if store.endpoint is not None:
        environ["AWS_ENDPOINT_URL"] = store.endpoint
    began = time.monotonic()
    process = subprocess.Popen([str(FIRN), *words], stdout=subprocess.PIPE, text=True, env=environ)
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    took = Took(time.monotonic() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
    if process.returncode != 0:
        raise SystemExit(f"firn {' '.join(words)} failed ({process.returncode}):\n{said}")
    return said, took


def restore(folder: Path, store: Store) -> Restore:
    """Restore what lies in the bucket as one node; return what each step took."""
    file = folder / "restore.checkpoint"
    file.unlink(missing_ok=True)
    where = ("--from", store.url)
    _, planned = firn(store, "restore", "plan", *where, "--json")
    said, applied = firn(
        store, "restore", "apply", *where, "--take-over", "--force", "--brokers", "1", "-o", str(file)
    )
    cluster_id = said.rpartition(" -t ")[2].split()[0]
    node = Node(folder / "node", {"node.id": "1", **store.node_settings}, store.env)
    began = time.monotonic()
    settings = [word for key, value in node.settings.items() for word in ("--set", f"{key}={value}")]
    firn(store, "format", *settings, "-t", cluster_id, "--restore", str(file))
    try:
        node.start(120)
        _wait_until_served(node.bootstrap)
        ready = Took(time.monotonic() - began, sum(cpu_seconds(node.pid)), node.peak_rss_bytes() / 1e6)
    finally:
        node.close()
        shutil.rmtree(folder / "node")
    return {"plan": planned, "apply": applied, "ready": ready}


def _wait_until_served(bootstrap: str) -> None:
    def is_served() -> bool:
        try:
            with Cluster(bootstrap) as cluster, ThreadPoolExecutor(1) as pool:
                return restore_status(cluster, pool).is_served
        except (RequestError, StorageError, OSError):
            return False

    wait_until("all of it to be served", is_served, 300, 0.1)


def _run(arguments: argparse.Namespace, folder: Path) -> bool:
    found: dict[int, list[Restore]] = {}
    with ExitStack() as stack:
        make, place_of = stack.enter_context(_where(arguments.store, folder))
        pool = stack.enter_context(ThreadPoolExecutor(16))
        for number in range(arguments.rounds):
            for segments in arguments.segments:
                store = make()
                LostBucket(_opened(store), place_of(store), pool).fill(arguments.partitions, segments)
                took = restore(folder, store)
                found.setdefault(segments, []).append(took)
                words = "   ".join(
                    f"{step} {one.seconds:5.1f} s ({one.cpu:4.1f} s of CPU, {one.memory_mb:3.0f} MB)"
                    for step, one in took.items()
                )
                print(f"{number + 1:>2}  {segments:>9,} segments   {words}", flush=True)
                shutil.rmtree(place_of(store))
    return _tell(found)


def _tell(found: Mapping[int, list[Restore]]) -> bool:
    """Print medians, and whether bars are reached."""
    medians = {
        segments: {step: median(took[step].seconds for took in all_of) for step in STEPS}
        for segments, all_of in found.items()
    }
    totals = {segments: sum(steps.values()) for segments, steps in medians.items()}
    for segments, steps in medians.items():
        words = "   ".join(f"{step} {seconds:5.1f} s" for step, seconds in steps.items())
        print(f"median  {segments:>9,} segments   {words}   together {totals[segments]:5.1f} s")
    memory = max(took[step].memory_mb for all_of in found.values() for took in all_of for step in STEPS[:2])
    ratio = totals[max(totals)] / totals[min(totals)]
    reached = True
    for what, value, most in (
        ("together, of the greatest archive by the least", ratio, MOST_RATIO),
        ("together, s", max(totals.values()), MOST_S),
        ("resident memory of firn restore, MB", memory, MOST_MB),
    ):
        is_reached = value <= most
        reached = reached and is_reached
        print(f"{what:<52}{value:>8.2f}  ≤ {most:g} {'reached' if is_reached else 'MISSED'}")
    return reached


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.restoring", description=__doc__)
    parser.add_argument("--partitions", type=int, default=1_000, help="(default: 1000)")
    parser.add_argument(
        "--segments", type=int, nargs="+", default=[1_000, 100_000], help="of all (default: 1000 100000)"
    )
    parser.add_argument("--rounds", type=int, default=2, help="of which medians are told (default: 2)")
    parser.add_argument("--store", choices=("versitygw", "folder"), default="versitygw")
    arguments = parser.parse_args()
    if arguments.store == "versitygw" and versitygw_binary() is None:
        parser.error("versitygw is not here: make fetch-tools")
    with tempfile.TemporaryDirectory(prefix="firn-restoring-") as name:
        return 0 if _run(arguments, Path(name)) else 1


if __name__ == "__main__":
    sys.exit(main())
