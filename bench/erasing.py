"""Price of an erasure: `python -m bench.erasing`, by default 2 GB with 100,000 keys, of which 10 are erased

Three nodes with three replicas over a bucket behind an S3 gateway. Printed: seconds until the order is done
and gone, requests of the store, bytes that nodes read from the bucket and wrote to it beside those of the
topic, and the same for copying the topic to a new one without the keys, which is the only way elsewhere. At
the end every object and every local file is searched for the keys' bytes; exit code 1 where one has them.

Small: `python -m bench.erasing --mb 20 --keys 1000 --erase 2 --grace-s 5`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka import Producer

from bench.tiered_cluster import summed_figures, tiered_cluster
from service.console.figures import Figures
from tests.support.clients import Admin
from tests.support.processes import FIRN, wait_until
from tests.support.quorums import Cluster
from tests.support.replicas import wait_in_sync
from tests.support.stores import Store, new_bucket, versitygw_binary, versitygw_server

TOPIC: Final = "people"
PARTITIONS: Final = 6
VALUE_BYTES: Final = 1_000
MIB: Final = 1 << 20
_PUTS: Final = ("put", "put_stream", "put_if_absent", "put_if_match")
_GETS: Final = ("get", "get_range", "get_suffix", "get_tagged", "head")


class Spent(NamedTuple):
    """Requests and bytes of all nodes together."""

    gets: float
    puts: float
    read_mb: float
    written_mb: float


def main() -> int:
    """Run the bench; return the exit code."""
    args = _arguments()
    if versitygw_binary() is None:
        print("bench.erasing: versitygw is not there (make fetch-tools)", file=sys.stderr)
        return 2
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="firn-erasing-")))
        endpoint = stack.enter_context(versitygw_server(folder))
        store = new_bucket(endpoint, "erasing")
        settings = {
            "firn.remote.object.grace.ms": str(args.grace_s * 1000),
            "log.segment.delete.delay.ms": "1000",
            "firn.cut.interval.ms": str(min(10_000, args.grace_s * 1000)),
        }
        cluster = stack.enter_context(tiered_cluster(folder / "nodes", store, settings))
        cluster.start()
        return run(args, cluster, store)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mb", type=int, default=2048, help="size of the topic (default: 2048)")
    parser.add_argument("--keys", type=int, default=100_000, help="different keys (default: 100000)")
    parser.add_argument("--erase", type=int, default=10, help="keys to erase (default: 10)")
    parser.add_argument("--segment-mb", type=int, default=16, help="size of a segment (default: 16)")
    parser.add_argument("--grace-s", type=int, default=30, help="firn.remote.object.grace.ms (default: 30 s)")
    return parser.parse_args()


def run(args: argparse.Namespace, cluster: Cluster, store: Store) -> int:
    """Fill a topic, erase keys, and print what it took."""
    keys = [key_of(number * max(args.keys // args.erase, 1)) for number in range(args.erase)]
    Admin(cluster.bootstrap).replicate(
        TOPIC, PARTITIONS, 3, min_insync_replicas="2", remote_storage_enable="true",
        segment_bytes=str(args.segment_mb * MIB), local_retention_bytes="1",
    )  # fmt: skip
    wait_in_sync(cluster, TOPIC)
    records = args.mb * MIB // VALUE_BYTES
    fill(cluster, records, args.keys)
    wait_until("segments in the bucket", lambda: is_settled(store), 600)
    held = sum(size for key, size in store.objects().items() if key.endswith(".seg"))
    plan = erase(cluster, "plan", keys)
    print(f"{held / MIB:.0f} MB in objects, {records} records, {args.keys} keys, {args.erase} to erase")
    print(
        f"plan: {plan['objects']} objects, {plan['objects_that_may_have_records']} may have records, "
        f"{plan['gets']} GETs, {plan['puts']} PUTs, {plan['dollars']} US$"
    )
    before, began = summed_figures(cluster), time.monotonic()
    order = erase(cluster, "start", keys, "--execute")["id"]
    done_s = wait_for(cluster, order, began, is_gone=False)
    spent = between(before, summed_figures(cluster))
    gone_s = wait_for(cluster, order, began, is_gone=True)
    copied = held / MIB
    print(f"done after {done_s:.1f} s, gone after {gone_s:.1f} s (the grace is {args.grace_s} s)")
    print(
        f"{spent.gets:.0f} reading requests, {spent.puts:.0f} writing ones, all of the cluster's among them"
    )
    print(
        f"read {spent.read_mb:.0f} MB and written {spent.written_mb:.0f} MB: "
        f"{(spent.read_mb + spent.written_mb) / max(copied, 1e-9):.2f} x the topic's objects; copying it to "
        f"a new topic reads it once and writes it once, and three times to disks: 2.00 x"
    )
    left = with_keys(store, cluster, keys)
    for one in left[:10]:
        print(f"has bytes of a key: {one}")
    print(f"objects and files with bytes of the keys: {len(left)}")
    return 1 if left else 0


def key_of(number: int) -> str:
    return f"person-{number:09d}-of-the-bench"


def fill(cluster: Cluster, records: int, keys: int) -> None:
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 20, "batch.size": 1 << 19}
    )
    value = b"v" * VALUE_BYTES
    for number in range(records):
        while True:
            try:
                producer.produce(TOPIC, value, key=key_of(number % keys), partition=number % PARTITIONS)
            except BufferError:
                producer.poll(0.1)
            else:
                break
    assert producer.flush(600) == 0


def is_settled(store: Store) -> bool:
    """Return whether no object has come for a moment."""
    before = len(store.objects())
    time.sleep(3)
    return before > PARTITIONS and len(store.objects()) <= before + 1


def erase(cluster: Cluster, action: str, keys: list[str], *more: str) -> Any:
    words = [action, "--topics", TOPIC, "--keys-file", "-", *more]
    return firn(cluster, *words, text="".join(f"{key}\n" for key in keys))


def firn(cluster: Cluster, *words: str, text: str = "") -> Any:
    """Return the document that a command prints; None for an order that is gone."""
    command = [str(FIRN), "erase", *words, "--bootstrap-server", cluster.bootstrap, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, input=text, timeout=600, check=False)
    if "it is gone" in done.stderr:
        return None
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def wait_for(cluster: Cluster, order: str, began: float, *, is_gone: bool) -> float:
    """Return after how many seconds the order was done, or gone."""

    def is_there() -> bool:
        found = firn(cluster, "status", order)
        return found is None or (not is_gone and found["state"] == "done")

    wait_until("the order", is_there, 3600)
    return time.monotonic() - began


def between(before: Figures, after: Figures) -> Spent:
    """Return what the nodes asked of the store between two samples."""

    def grown(name: str, calls: tuple[str, ...]) -> float:
        return sum(after.total(name, call=one) - before.total(name, call=one) for one in calls)

    return Spent(
        grown("firn_store_call_seconds_count", _GETS),
        grown("firn_store_call_seconds_count", _PUTS),
        grown("firn_store_received_bytes_total", _GETS) / MIB,
        grown("firn_store_sent_bytes_total", _PUTS) / MIB,
    )


def with_keys(store: Store, cluster: Cluster, keys: list[str]) -> list[str]:
    """Return objects and local files that have the bytes of an erased key."""
    needles = [key.encode() for key in keys]
    found = []
    for key in store.objects():
        data = b""
        with suppress(Exception):  # deleted since it was listed: boto3 has no class for it
            data = store.read(key)
        found += [key] if any(one in data for one in needles) else []
    for member in cluster.members.values():
        for path in member.data.rglob("*"):
            if path.is_file() and any(one in path.read_bytes() for one in needles):
                found.append(str(path))
    return found


if __name__ == "__main__":
    sys.exit(main())
