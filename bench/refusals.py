"""`python -m bench.refusals [--rounds N] [--check]`: topics beside those whose objects the store refuses.

Three brokers before versitygw, with a proxy between them that refuses by key, all at once and until the end:
writes below a topic of twelve partitions, reads of a topic of eight partitions that lie in an archive class
and are asked for by eight consumers, one HEAD, and the deletion of one object; and one broker, which kept the
prefix, has no way to the store at all. Topics that are not hit are copied, read cold and expired, their
objects deleted, and orphans swept, first without that and then beside it. The table has both rates.

Store, proxy, clients and nodes share one machine, so trust ratios. `--check`: exit 1 where one is below 0.8.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote
from uuid import UUID, uuid4

import confluent_kafka

from bench import load
from service.remote.format.keys import SegmentKey, segment_key
from tests.support.clients import Admin
from tests.support.faults import Fault, FaultProxy, Seen, fault_proxy
from tests.support.processes import FIRN, wait_until
from tests.support.quorums import Cluster
from tests.support.stores import Store, new_bucket, s3_client, versitygw_binary, versitygw_server
from tests.support.tiers import EARLIEST_LOCAL, LATEST, LATEST_TIERED, offset, settle
from tests.support.wire import leader_of

LEAST: Final = 0.8
DENIED, ASLEEP, HEAD, LOCKED, COLD, FINE = "denied", "asleep", "head", "locked", "cold", "fine"
CUT = "cut"
"""a topic of the broker that has no way to the store"""
FAULTS: Final = (DENIED, ASLEEP, HEAD, LOCKED, CUT)
PARTITIONS: Final = {DENIED: 12, ASLEEP: 8, HEAD: 1, LOCKED: 1, COLD: 1, CUT: 1}
BROKERS: Final = (11, 12, 13)
ORPHANS: Final = 400
HANDED_ON_S: Final = 60
"""Within so much another broker keeps the prefix, and what is measured begins."""
TIERED: Final = {"remote_storage_enable": "true", "segment_bytes": "1048576", "local_retention_bytes": "1"}
SETTINGS: Final = {"firn.remote.object.grace.ms": "2000", "firn.remote.cache.bytes": str(8 << 20)}
BRISK: Final = {"remote.log.manager.task.interval.ms": "500", "log.retention.check.interval.ms": "500"}
_STEPS: Final = ("copied, MB/s", "read cold, MB/s", "expired and deleted, 1/s", "orphans swept, 1/s")


class Bench:
    """Brokers with cold topics, and what the store refuses of them."""

    def __init__(
        self, bootstrap: str, store: Store, proxy: FaultProxy, way: FaultProxy, megabytes: int
    ) -> None:
        """`proxy` is the way of most brokers to the store, `way` that of broker 11."""
        self.bootstrap = bootstrap
        self.store = store
        self.proxy = proxy
        self.way = way
        self.megabytes = megabytes
        self.admin = Admin(bootstrap)
        self.ids: dict[str, str] = {}
        self.read: tuple[int, int] = (0, 0)
        """bytes of a batch and batches of `COLD` that are in the store alone"""
        self._made = 0

    def create(self, name: str, partitions: int = 1, **config: str) -> None:
        before = {key.split("/")[1] for key in self.store.objects() if key.startswith("data/")}
        self._place(name, partitions, **config)
        for partition in range(partitions):
            self._until_led(name, partition)
            self._fill(name, self.megabytes if name == COLD else 3, partition)
        for partition in range(partitions):
            settle(self.bootstrap, name, partition, 120)
        after = {key.split("/")[1] for key in self.store.objects() if key.startswith("data/")}
        (self.ids[name],) = after - before

    def _place(self, name: str, partitions: int, **config: str) -> None:
        led_by = BROKERS[:1] if name == CUT else BROKERS[1:]
        placed = [[led_by[number % len(led_by)]] for number in range(partitions)]
        self.admin.place(name, placed, **{**TIERED, **config})

    def _until_led(self, name: str, partition: int) -> None:
        wait_until(f"{name}-{partition}", lambda: offset(self.bootstrap, name, partition, LATEST) == 0)

    def fill(self) -> None:
        for name, partitions in PARTITIONS.items():
            self.create(name, partitions)
        size, _ = load.fill(leader_of(self.bootstrap, COLD), COLD, 0)
        self.read = size, offset(self.bootstrap, COLD, 0, EARLIEST_LOCAL) // load.BATCH_RECORDS

    def refuse(self, what: Sequence[str]) -> None:
        """Let the store refuse requests for the topics in `what` from now on."""
        locked = min(key for key in self.store.objects() if self.ids[LOCKED] in key and key.endswith(".seg"))

        def plan(seen: Seen) -> Fault:
            path = unquote(seen.path)
            if DENIED in what and f"data/{self.ids[DENIED]}/" in path and seen.method in ("PUT", "POST"):
                return Fault.DENIED
            is_read = seen.method in ("GET", "HEAD")
            if ASLEEP in what and is_read and f"data/{self.ids[ASLEEP]}/" in path and ".seg" in path:
                return Fault.ASLEEP
            if HEAD in what and is_read and f"data/{self.ids[HEAD]}/0/HEAD" in path:
                return Fault.DENIED
            if LOCKED in what and any(key.endswith(locked) for key in seen.keys):
                return Fault.UNDELETABLE
            return Fault.PASS

        self.proxy.plan = plan
        for partition in range(PARTITIONS[DENIED]):
            self._fill(DENIED, 3, partition)
        for name in (HEAD, LOCKED):
            self._fill(name, 3)
        self.delete(LOCKED)
        if CUT in what:
            self.way.mode = Fault.REFUSE
            self._fill(CUT, 3)
            time.sleep(HANDED_ON_S)

    def delete(self, topic: str) -> None:
        """All that is in the store alone."""
        end = offset(self.bootstrap, topic, 0, EARLIEST_LOCAL)
        self.admin.client.delete_records([confluent_kafka.TopicPartition(topic, 0, end)])[
            confluent_kafka.TopicPartition(topic, 0, end)
        ].result(30)

    # What is measured, in one round: rates

    def round(self) -> tuple[float, float, float, float]:
        self._made += 1
        name = f"{FINE}-{self._made}"
        self._place(name, 1)
        self._until_led(name, 0)
        began = time.monotonic()
        size, batches = self._fill(name, self.megabytes)
        wait_until(
            f"{name} to be copied",
            lambda: offset(self.bootstrap, name, 0, LATEST_TIERED) >= (batches - 6) * load.BATCH_RECORDS,
            seconds=300,
        )
        copied = size * batches / 1e6 / (time.monotonic() - began)
        began = time.monotonic()
        total = load.fetch_all(leader_of(self.bootstrap, COLD), COLD, *self.read)
        read = total / 1e6 / (time.monotonic() - began)
        settle(self.bootstrap, name, 0, 120)
        segments = self._segments(name)
        began = time.monotonic()
        self.delete(name)
        wait_until(f"{name} to be deleted", lambda: len(self._segments(name) & segments) == 0, seconds=300)
        return copied, read, 1 / (time.monotonic() - began), self._sweep()

    def _sweep(self) -> float:
        """Orphans that `firn sweep` deletes in a second, by the brokers' way to the store."""
        assert self.store.endpoint is not None
        client, bucket = s3_client(self.store.endpoint), self.store.url.removeprefix("s3://").partition("/")
        orphans = {
            segment_key(SegmentKey(UUID(self.ids[COLD]), 0, 0, number, 0, uuid4()))
            for number in range(ORPHANS)
        }
        for key in orphans:
            client.put_object(Bucket=bucket[0], Key="/".join(filter(None, (bucket[2], key))), Body=b"?")
        # The store's times are whole seconds: an object may seem to be of the next one until that has begun.
        written = time.time()
        wait_until("the next second of the store", lambda: time.time() > written + 2)
        command = [str(FIRN), "sweep", self.store.url, "--delete", "--older-than-hours", "0"]
        began = time.monotonic()
        ended = subprocess.run(
            [*command, "--endpoint", self.proxy.endpoint],
            env={**os.environ, **self.store.env},
            capture_output=True,
            text=True,
        )
        took = time.monotonic() - began
        if left := orphans & self.store.objects().keys():
            raise AssertionError(f"{len(left)} orphans are left: {ended.stdout[-2000:]}{ended.stderr}")
        return ORPHANS / took

    def _fill(self, name: str, megabytes: int, partition: int = 0) -> tuple[int, int]:
        return load.fill(leader_of(self.bootstrap, name, partition), name, megabytes, partition)

    def _segments(self, name: str) -> set[str]:
        topic_id = self.ids.get(name)
        if topic_id is None:
            known = set(self.ids.values())
            found = {key.split("/")[1] for key in self.store.objects() if key.startswith("data/")} - known
            (topic_id,) = found
            self.ids[name] = topic_id
        return {key for key in self.store.objects() if topic_id in key and key.endswith(".seg")}


@contextlib.contextmanager
def consumers(bootstrap: str) -> Iterator[None]:
    """One of each partition that is asleep, from its beginning on."""
    ends = threading.Event()

    def consume(partition: int) -> None:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "asleep", "enable.auto.commit": False}
        )
        consumer.assign([confluent_kafka.TopicPartition(ASLEEP, partition, 0)])
        while not ends.is_set():
            consumer.poll(0.2)
        consumer.close()

    threads = [threading.Thread(target=consume, args=(one,)) for one in range(PARTITIONS[ASLEEP])]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ends.set()
        for thread in threads:
            thread.join()


def best(rounds: int, measure: Callable[[], tuple[float, ...]]) -> list[float]:
    """The best of each: what else this machine does only takes away."""
    return [max(one) for one in zip(*(measure() for _ in range(rounds)), strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.refusals", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--megabytes", type=int, default=40, help="of each topic that is measured (40)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the best counts (3)")
    parser.add_argument("--check", action="store_true", help=f"exit 1 where a ratio is below {LEAST}")
    parser.add_argument("--faults", default=",".join(FAULTS), help=f"of {','.join(FAULTS)}; default: all")
    arguments = parser.parse_args()
    faults = arguments.faults.split(",")
    if unknown := set(faults) - {*FAULTS}:
        parser.error(f"no such faults: {', '.join(sorted(unknown))}")
    if versitygw_binary() is None:
        parser.error("versitygw is not here: make fetch-tools")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="firn-bench-")))
        endpoint = stack.enter_context(versitygw_server(folder))
        store = new_bucket(endpoint, f"bench-{random.randrange(1 << 30)}")
        proxy, way = (stack.enter_context(fault_proxy(endpoint)) for _ in range(2))
        cluster = stack.enter_context(Cluster.apart(folder, (1,), BROKERS, {**BRISK, **SETTINGS}))
        for node_id, member in cluster.members.items():
            through = store.through((way if node_id == BROKERS[0] else proxy).endpoint)
            member.settings |= through.node_settings
            member.environ = through.env
        cluster.start()
        bench = Bench(cluster.bootstrap, store, proxy, way, arguments.megabytes)
        bench.fill()
        alone = best(arguments.rounds, bench.round)
        bench.refuse(faults)
        before = proxy.failed
        with consumers(cluster.bootstrap):
            beside = best(arguments.rounds, bench.round)
        refused = proxy.failed - before
    print(f"{'':<26}{'alone':>10}{'refusals':>10}{'ratio':>8}")
    for what, one, other in zip(_STEPS, alone, beside, strict=True):
        print(f"{what:<26}{one:>10.2f}{other:>10.2f}{other / one:>8.2f}")
    print(f"{refused} requests were refused meanwhile")
    is_right = all(other >= LEAST * one for one, other in zip(alone, beside, strict=True))
    return 0 if is_right or not arguments.check else 1


if __name__ == "__main__":
    sys.exit(main())
