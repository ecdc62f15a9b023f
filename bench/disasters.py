"""Everything is lost but the bucket, again and again: `python -m bench.disasters [--disasters N]`

Three nodes under load: a bulk of records, chains of records that follow one from the other, and groups that
answer each of them. At a random moment all nodes are killed and all their directories deleted. `firn restore`
makes a new cluster out of the bucket, on the same addresses, and the same clients go on. Told of each: how
old the acknowledged records were that are lost, how many, whether what is back is of one moment, and how
long it took until something is served. `--story` tells one disaster step by step (`make demo-restore`).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import confluent_kafka

from bench.disaster_clients import (
    BULK,
    CHAIN_PARTITIONS,
    CHAINS,
    ECHOES,
    Bulk,
    Chain,
    Echo,
    Paused,
    content,
    is_written,
    torn,
)
from tests.support.clients import Admin
from tests.support.processes import FIRN, wait_until
from tests.support.quorums import Cluster
from tests.support.stores import Store, folder_store

SETTINGS: Final = {
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "6",
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "100",
    "firn.cut.hold.max.ms": "100",  # nodes and clients share the cores: processes wait for 20 ms
    "remote.log.manager.task.interval.ms": "500",
    "log.retention.check.interval.ms": "1000",
}
CHAIN_TOPICS: Final = {CHAINS: CHAIN_PARTITIONS, ECHOES: CHAIN_PARTITIONS}


class Back(NamedTuple):
    """One disaster, and what came of it. Times are seconds from the moment at which all was lost."""

    oldest_lost_s: float
    lost: int
    torn: list[str]
    planned_s: float
    ready_s: float
    first: Mapping[str, float]


class World:
    """Cluster that is lost and comes back, with its clients."""

    def __init__(self, folder: Path, stack: ExitStack, arguments: argparse.Namespace) -> None:
        self._folder, self._arguments = folder, arguments
        self.store: Store = folder_store(folder / "bucket")
        (folder / "nodes").mkdir()
        settings = {**SETTINGS, **self.store.node_settings}
        self.cluster = stack.enter_context(
            Cluster(folder / "nodes", settings=settings, environ=dict(self.store.env))
        )
        for member in self.cluster.members.values():
            member.settings |= settings
        self.start()
        self.bootstrap = self.cluster.bootstrap
        admin = Admin(self.bootstrap, 3)
        tiered = {"remote_storage_enable": "true", "segment_bytes": str(arguments.segment_mb << 20)}
        admin.create(BULK, arguments.partitions, **tiered)
        for topic, partitions in CHAIN_TOPICS.items():
            admin.create(topic, partitions, **tiered)
        self.paused = Paused()
        rate = arguments.rate * 1e6
        self.bulk = Bulk(self.bootstrap, arguments.partitions, rate, arguments.record_bytes, self.paused)
        self.chains = [
            Chain(self.bootstrap, number, arguments.seed, self.paused) for number in range(arguments.clients)
        ]
        self.echoes = [Echo(self.bootstrap, f"echo-{number}", self.paused) for number in range(1)]
        for client in (self.bulk, *self.chains, *self.echoes):
            client.start()
        stack.callback(self.paused.over.set)
        self._ends: list[int] = []
        """where the bulk's partitions end in the cut that was restored"""

    def start(self) -> None:
        """Start all nodes, and wait until they serve."""
        for member in self.cluster.members.values():
            member.launch()
        for member in self.cluster.members.values():
            wait_until(f"node {member.node_id} to serve", member.has_started, 120, 0.02)

    def lose_everything(self) -> float:
        """Kill all nodes and delete their directories; return the time at which the first died."""
        at = time.monotonic()
        for member in self.cluster.members.values():
            member.kill()
        for member in self.cluster.members.values():
            for directory in member.directories:
                shutil.rmtree(directory)
        return at

    def restore(self, say: Callable[[str], None]) -> float:
        """Plan, take over, format and start; return the time at which apply was done."""
        where = ["--from", self.store.url]
        say(self._firn("restore", "plan", *where))
        plan = json.loads(self._firn("restore", "plan", "--json", *where))
        (bulk,) = (one["topic_id"] for one in plan["topics"] if one["name"] == BULK)
        ends = {one["partition"]: one["end"] for one in plan["partitions"] if one["topic_id"] == bulk}
        self._ends = [ends[number] for number in range(self._arguments.partitions)]
        file = self._folder / "restored.checkpoint"
        file.unlink(missing_ok=True)
        brokers = ",".join(str(number) for number in self.cluster.members)
        said = self._firn("restore", "apply", *where, "--take-over", "--brokers", brokers, "-o", str(file))
        say(said)
        applied = time.monotonic()
        cluster_id = said.rpartition(" -t ")[2].split()[0]
        for member in self.cluster.members.values():
            words = ["-t", cluster_id, "-c", str(member.properties), "--restore", str(file)]
            self._firn("format", *words, "--initial-controllers", self.cluster.plan.initial_controllers)
        self.start()
        return applied

    def _firn(self, *words: str) -> str:
        done = subprocess.run(
            [str(FIRN), *words], capture_output=True, text=True, env={**os.environ, **self.store.env}
        )
        if done.returncode != 0:
            raise SystemExit(
                f"firn {' '.join(words)} failed ({done.returncode}):\n{done.stdout}{done.stderr}"
            )
        return done.stdout

    def check(self, lost_at: float) -> tuple[list[float], list[str]]:
        """Compare what is back with what was acknowledged; return the ages of lost records at `lost_at`, and
        what is not of one moment. Clients are told what of theirs is left."""
        ages = []
        for partition, end in enumerate(self._ends):
            ages += [lost_at - one.at for one in self.bulk.lost(partition, end, lost_at)]
        chains = content(self.bootstrap, CHAINS, CHAIN_PARTITIONS)
        echoes = content(self.bootstrap, ECHOES, CHAIN_PARTITIONS)
        found = [torn(chains, echoes, len(self.chains), self._committed(echo.group)) for echo in self.echoes]
        numbers: list[int] = [0] * len(self.chains)
        for value in chains.values():
            client, _, number = value.partition(b":")
            numbers[int(client)] = max(numbers[int(client)], int(number) + 1)
        for chain, left in zip(self.chains, numbers, strict=True):
            ages += [lost_at - at for at in chain.acknowledged[left:] if at < lost_at]
            del chain.acknowledged[left:]
        for echo in self.echoes:
            echo.rejoins = True
        return ages, [line for lines in found for line in lines]

    def _committed(self, group: str) -> list[tuple[int, int]]:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
        try:
            places = [confluent_kafka.TopicPartition(CHAINS, one) for one in range(CHAIN_PARTITIONS)]
            return [(one.partition, one.offset) for one in consumer.committed(places, 60)]
        finally:
            consumer.close()

    def first_of_each(self, lost_at: float) -> dict[str, float]:
        """Ask the cluster that is back for one thing of each kind; return when each was done."""
        done: dict[str, float] = {}
        reader = confluent_kafka.Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": "first", "enable.auto.commit": False}
        )
        try:
            reader.assign([confluent_kafka.TopicPartition(BULK, 0, confluent_kafka.OFFSET_BEGINNING)])
            _until(lambda: (found := reader.poll(1.0)) is not None and found.error() is None)
            done["first record of the archive read"] = time.monotonic() - lost_at
            place = confluent_kafka.TopicPartition(CHAINS, 0, 0)
            _until(lambda: _is_committed(reader, place))
            done["first commit of a group"] = time.monotonic() - lost_at
        finally:
            reader.close()
        producer = confluent_kafka.Producer({"bootstrap.servers": self.bootstrap, "acks": "all"})
        last = self._arguments.partitions - 1
        _until(lambda: is_written(producer, BULK, b"first", 0))
        done["first produce, first partition"] = time.monotonic() - lost_at
        for partition in range(1, last + 1):
            _until(partial(is_written, producer, BULK, b"first", partition))
        done["first produce, last partition"] = time.monotonic() - lost_at
        return done

    def disaster(self, say: Callable[[str], None]) -> Back:
        """Lose everything, and come back."""
        lost_at = self.lose_everything()
        self.paused.pause()  # what they have under way fails, or is written to the cluster that is back
        say("all nodes are killed, all their directories deleted; the clients stay")
        planned = self.restore(say)
        ready = time.monotonic()
        say("restored, formatted, started")
        first = self.first_of_each(lost_at)
        self.paused.wait()
        ages, found = self.check(lost_at)
        self.paused.resume()
        return Back(max(ages, default=0.0), len(ages), found, planned - lost_at, ready - lost_at, first)


def _until(is_done: Callable[[], bool]) -> None:
    wait_until("the cluster to answer", is_done, 300, 0.05)


def _is_committed(consumer: confluent_kafka.Consumer, place: confluent_kafka.TopicPartition) -> bool:
    try:
        consumer.commit(offsets=[place], asynchronous=False)
    except confluent_kafka.KafkaException:
        return False
    return True


def run(world: World, arguments: argparse.Namespace) -> bool:
    """Have so many disasters; return whether all that came back was of one moment."""
    chance, backs = random.Random(arguments.seed), list[Back]()
    wait_until("the first cut", lambda: "CUT" in world.store.objects(), 120, 0.5)
    for number in range(1, arguments.disasters + 1):
        time.sleep(arguments.between * (0.5 + chance.random()))
        acknowledged = sum(len(chain.acknowledged) for chain in world.chains)
        back = world.disaster(print if arguments.story else lambda _: None)
        backs.append(back)
        print(
            f"{number:>3}  lost {back.lost:>7,} acknowledged, the oldest {back.oldest_lost_s:5.1f} s old"
            f"   planned and applied {back.planned_s:5.1f} s   ready {back.ready_s:5.1f} s"
            f"   chains {acknowledged:,}   " + ("one moment" if not back.torn else "TORN: " + back.torn[0]),
            flush=True,
        )
        for what, seconds in back.first.items():
            print(f"     {what:<36}{seconds:6.1f} s", flush=True)
    ages = [back.oldest_lost_s for back in backs]
    print(f"oldest record lost: median {median(ages):.1f} s, at most {max(ages):.1f} s (bars 20 and 60)")
    torn_ones = sum(bool(back.torn) for back in backs)
    print(f"torn: {torn_ones} of {len(backs)}")
    return torn_ones == 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.disasters", description=__doc__)
    parser.add_argument("--disasters", type=int, default=20, help="(default: 20)")
    parser.add_argument("--between", type=float, default=45, help="mean seconds between them (default: 45)")
    parser.add_argument("--rate", type=float, default=20, help="MB/s of the bulk (default: 20)")
    parser.add_argument("--record-bytes", type=int, default=10_000, help="of the bulk (default: 10000)")
    parser.add_argument("--partitions", type=int, default=200, help="of the bulk (default: 200)")
    parser.add_argument("--segment-mb", type=int, default=16, help="segment.bytes, in MiB (default: 16)")
    parser.add_argument("--clients", type=int, default=16, help="chains (default: 16)")
    parser.add_argument("--seed", type=int, default=1, help="of when (default: 1)")
    parser.add_argument("--story", action="store_true", help="tell each step")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="firn-disasters-") as name, ExitStack() as stack:
        return 0 if run(World(Path(name), stack, arguments), arguments) else 1


if __name__ == "__main__":
    sys.exit(main())
