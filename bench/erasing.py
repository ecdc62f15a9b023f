"""Price of an erasure: `python -m bench.erasing`, by default 2 GB with 100,000 keys, of which 10 are erased

Three nodes with three replicas over a bucket behind an S3 gateway; every key has as many records, all over
the topic. Printed: seconds until the order is done and gone, bytes that nodes read from the bucket and wrote
to it meanwhile, beside those of the topic, and before that the same for copying a part of the topic to a new
one without the keys, which is the only way elsewhere. At the end every object and every local file is
searched for the keys' bytes, and a consumer and Spark compare all other records with what was sent, at their
offsets. Exit code 1 where something has a key, or lacks a record. Without Spark (`make spark`) its part is
left out, and said so.

Small: `python -m bench.erasing --mb 50 --keys 1000 --erase 2 --segment-mb 1 --copy-mb 10 --grace-s 5`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from bench.spark_session import spark_session
from bench.tiered_cluster import summed_figures, tiered_cluster
from service.console.figures import Figures
from tests.support.clients import Admin
from tests.support.processes import FIRN, wait_until
from tests.support.quorums import Cluster
from tests.support.replicas import wait_in_sync
from tests.support.stores import CREDENTIALS, Store, new_bucket, versitygw_binary, versitygw_server

TOPIC: Final = "people"
COPY: Final = "people-copied"
PARTITIONS: Final = 6
VALUE_BYTES: Final = 1_000
MIB: Final = 1 << 20
_PUTS: Final = ("put", "put_stream", "put_if_absent", "put_if_match")
_GETS: Final = ("get", "get_range", "get_suffix", "get_tagged", "head")
_PATIENCE_S: Final = 600


class Spent(NamedTuple):
    """Requests and bytes of all nodes together."""

    gets: float
    puts: float
    read_mb: float
    written_mb: float

    def times(self, topic_mb: float) -> str:
        moved = self.read_mb + self.written_mb
        return (
            f"{self.read_mb:.0f} MB read and {self.written_mb:.0f} MB written, "
            f"{moved / max(topic_mb, 1e-9):.2f} x its {topic_mb:.0f} MB"
        )


def main() -> int:
    """Run the bench; return the exit code."""
    args = _arguments()
    if versitygw_binary() is None:
        print("bench.erasing: versitygw is not there (make fetch-tools)", file=sys.stderr)
        return 2
    os.environ.update(CREDENTIALS)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="firn-erasing-")))
        endpoint = stack.enter_context(versitygw_server(folder))
        store = new_bucket(endpoint, "erasing")
        settings = {
            "firn.remote.object.grace.ms": str(args.grace_s * 1000),
            "log.segment.delete.delay.ms": "1000",
            "firn.cut.interval.ms": str(min(10_000, args.grace_s * 1000)),
            "firn.merge.enable": "false",
        }
        cluster = stack.enter_context(tiered_cluster(folder / "nodes", store, settings))
        cluster.start()
        return run(args, cluster, store, endpoint, folder)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mb", type=int, default=2048, help="size of the topic (default: 2048)")
    parser.add_argument("--keys", type=int, default=100_000, help="different keys (default: 100000)")
    parser.add_argument("--erase", type=int, default=10, help="keys to erase (default: 10)")
    parser.add_argument("--segment-mb", type=int, default=16, help="size of a segment (default: 16)")
    parser.add_argument("--copy-mb", type=int, default=256, help="copy so much to a new topic (default: 256)")
    parser.add_argument("--grace-s", type=int, default=30, help="firn.remote.object.grace.ms (default: 30 s)")
    return parser.parse_args()


def run(args: argparse.Namespace, cluster: Cluster, store: Store, endpoint: str, folder: Path) -> int:
    """Fill a topic, erase keys, and print what it took."""
    keys = [key_of(number * max(args.keys // args.erase, 1)) for number in range(args.erase)]
    records = args.mb * MIB // VALUE_BYTES // PARTITIONS * PARTITIONS
    create(cluster, TOPIC, args.segment_mb)
    began = time.monotonic()
    fill(cluster, records, args.keys)
    wait_until("segments in the bucket", lambda: is_settled(store), _PATIENCE_S)
    topic_mb = segment_bytes(store) / MIB
    print(
        f"{topic_mb:.0f} MB in {segment_count(store)} objects after {time.monotonic() - began:.0f} s, "
        f"{records} records, {args.keys} keys, {args.erase} to erase"
    )
    copied(args, cluster, store, keys, topic_mb)  # first, while no cache of a node has what it reads
    held = len(with_keys(store, cluster, keys))
    assert held, "else the search at the end shows nothing"
    before, began = summed_figures(cluster), time.monotonic()
    order = erase(cluster, "start", keys, "--execute")["id"]
    done_s = wait_for(cluster, order, began, is_gone=False)
    erased = between(before, summed_figures(cluster))
    gone_s = wait_for(cluster, order, began, is_gone=True)
    print(f"done after {done_s:.1f} s, gone after {gone_s:.1f} s (the grace is {args.grace_s} s)")
    print(f"erasing: {erased.times(topic_mb)}; {erased.gets:.0f} reads, {erased.puts:.0f} writes")
    left = with_keys(store, cluster, keys)
    for one in left[:10]:
        print(f"has bytes of a key: {one}")
    print(f"objects and files with bytes of the keys: {held} before, {len(left)} after")
    wrong = consumed(cluster, records, args.keys, keys)
    wrong += read_by_spark(cluster, store, endpoint, folder, records, args.keys, keys)
    return 1 if left or wrong else 0


def create(cluster: Cluster, topic: str, segment_mb: int) -> None:
    Admin(cluster.bootstrap).replicate(
        topic, PARTITIONS, 3, min_insync_replicas="2", remote_storage_enable="true",
        segment_bytes=str(segment_mb * MIB), local_retention_bytes="1",
    )  # fmt: skip
    wait_in_sync(cluster, topic)


def key_of(number: int) -> str:
    return f"person-{number:09d}-of-the-bench"


def fill(cluster: Cluster, records: int, keys: int) -> None:
    """Send record n of key n modulo `keys` to partition n modulo their number, as its n-th there."""
    producer = sender(cluster)
    names = [key_of(number) for number in range(keys)]
    value = b"v" * VALUE_BYTES
    for number in range(records):
        send(producer, TOPIC, names[number % keys], value, number % PARTITIONS)
    assert producer.flush(_PATIENCE_S) == 0


def sender(cluster: Cluster) -> Producer:
    return Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "batch.size": 1 << 19,
        }
    )


def send(producer: Producer, topic: str, key: str | bytes, value: bytes, partition: int) -> None:
    while True:
        try:
            producer.produce(topic, value, key=key, partition=partition)
        except BufferError:
            producer.poll(0.1)
        else:
            return


def segment_count(store: Store) -> int:
    return sum(key.endswith(".seg") for key in store.objects())


def segment_bytes(store: Store) -> int:
    return sum(size for key, size in store.objects().items() if key.endswith(".seg"))


def is_settled(store: Store) -> bool:
    """Return whether no segment has come for a moment."""
    before = segment_count(store)
    time.sleep(5)
    return before >= PARTITIONS and segment_count(store) == before


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

    wait_until("the order", is_there, _PATIENCE_S)
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
    found, unread = [], []
    for key in store.objects():
        try:
            found += [key] if any(one in store.read(key) for one in needles) else []
        except Exception:  # deleted since it was listed: boto3 has no class for it
            unread.append(key)
    assert not {*unread} & {*store.objects()}, "an object was not read"
    for member in cluster.members.values():
        for path in member.data.rglob("*"):
            if path.is_file() and any(one in path.read_bytes() for one in needles):
                found.append(str(path))
    return found


def consumed(cluster: Cluster, records: int, keys: int, erased: list[str]) -> int:
    """Compare what a consumer reads with what was sent; return the number of wrong records."""
    names, gone = [key_of(number).encode() for number in range(keys)], {key.encode() for key in erased}
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap, "group.id": "bench", "enable.partition.eof": True,
            "enable.auto.commit": False, "check.crcs": True,
        }
    )  # fmt: skip
    found = wrong = ended = 0
    try:
        consumer.assign([TopicPartition(TOPIC, one, OFFSET_BEGINNING) for one in range(PARTITIONS)])
        until = time.monotonic() + _PATIENCE_S
        while ended < PARTITIONS and time.monotonic() < until:
            for one in consumer.consume(10_000, 1.0):
                if one.error() is not None:
                    ended += 1
                    continue
                key = one.key()
                found += 1
                sent = names[(one.offset() * PARTITIONS + one.partition()) % keys]
                wrong += key != sent or key in gone or len(one.value()) != VALUE_BYTES
    finally:
        consumer.close()
    lacks = kept_records(records, keys, erased) - found
    print(f"a consumer: {found} records, {lacks} of those that stay are missing, {wrong} are wrong")
    return wrong + abs(lacks)


def kept_records(records: int, keys: int, erased: list[str]) -> int:
    """Return how many of the records stay."""
    gone = {*erased}
    return sum(key_of(number % keys) not in gone for number in range(records))


def read_by_spark(
    cluster: Cluster, store: Store, endpoint: str, folder: Path, records: int, keys: int, erased: list[str]
) -> int:
    """Compare what Spark reads, archive and tail, with what was sent; return the number of wrong records."""
    if find_spec("pyspark") is None:
        print("Spark: left out, as pyspark is not here (make spark)")
        return 0
    with spark_session(folder, memory="1g") as spark:
        reader = spark.read.format("firn").options(url=store.url, subscribe=TOPIC, endpoint=endpoint)
        reader = reader.option("bootstrap.servers", cluster.bootstrap)
        sent = f"format_string('person-%09d-of-the-bench', (offset * {PARTITIONS} + partition) % {keys})"
        gone = ", ".join(f"'{key}'" for key in erased)
        text = "cast(key as string)"
        checked = reader.load().selectExpr(f"not ({text} <=> {sent}) or {text} in ({gone}) as is_wrong")
        row = checked.selectExpr("count(*) as found", "count_if(is_wrong) as wrong").first()
    lacks: int = kept_records(records, keys, erased) - row["found"]
    print(f"Spark: {row['found']} records, {lacks} of those that stay are missing, {row['wrong']} are wrong")
    wrong: int = row["wrong"]
    return wrong + abs(lacks)


def copied(
    args: argparse.Namespace, cluster: Cluster, store: Store, keys: list[str], topic_mb: float
) -> None:
    """Copy a part of the topic to a new one, without the keys, and print what that took."""
    create(cluster, COPY, args.segment_mb)
    known, part = segment_count(store), min(args.copy_mb, args.mb)
    each = part * MIB // VALUE_BYTES // PARTITIONS
    gone = {key.encode() for key in keys}
    before, began = summed_figures(cluster), time.monotonic()
    producer = sender(cluster)
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "copy", "enable.auto.commit": False}
    )
    ended: set[int] = set()
    try:
        consumer.assign([TopicPartition(TOPIC, one, OFFSET_BEGINNING) for one in range(PARTITIONS)])
        while len(ended) < PARTITIONS and time.monotonic() - began < _PATIENCE_S:
            for one in consumer.consume(10_000, 1.0):
                if one.error() is not None or one.partition() in ended:
                    continue
                if one.key() not in gone:
                    send(producer, COPY, one.key(), one.value(), one.partition())
                if one.offset() + 1 >= each:
                    ended.add(one.partition())
                    consumer.pause([TopicPartition(TOPIC, one.partition())])
            producer.poll(0)
    finally:
        consumer.close()
    assert producer.flush(_PATIENCE_S) == 0
    took_s = time.monotonic() - began
    wait_until("the copy's segments in the bucket", lambda: segment_count(store) > known, _PATIENCE_S)
    wait_until("all of them", lambda: is_settled(store), _PATIENCE_S)
    spent = between(before, summed_figures(cluster))
    print(
        f"copying a part of it to a new topic: {spent.times(part)}, and thrice to disks; {took_s:.1f} s, so "
        f"{took_s * topic_mb / part:.0f} s for all of it, where consumers have other offsets"
    )


if __name__ == "__main__":
    sys.exit(main())
