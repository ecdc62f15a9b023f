"""Everything is lost but the bucket, again and again: `python -m bench.disasters [--disasters N]`

Three nodes under load: a bulk of records, chains of records that follow one from the other, and a group that
answers some of them. At a random moment all nodes are killed and all their directories deleted. `firn
restore` makes a new cluster out of the bucket, on the same addresses, and the same clients go on. Told of
each: how old the acknowledged records were that are lost, how many, whether what is back is of one moment,
and how long it took until something is served. `--story` tells one step by step (`make demo-restore`).

--many     200 of them in some minutes: a cut each second, little load, fast chains, and brokers that obey
           up to 150 ms late, as if they were far from each other. Each cut that the bucket keeps counts as
           what a loss right behind it would have brought back: its ends are those of a restore's plan, its
           records are read in the cluster that is back, of which it is a part
--no-gate  nodes whose gates hold nothing back, which must be seen: a check that finds nothing shows nothing
--compare  what `firn.remote.recover` brings back of a copy of the same bucket, beside it
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import confluent_kafka

from bench.disaster_checks import Content, committed_in, content, torn
from bench.disaster_clients import (
    BULK,
    CHAIN_PARTITIONS,
    CHAINS,
    ECHOES,
    OFFSETS,
    Bulk,
    Chain,
    Echo,
    Paused,
    is_written,
)
from bench.disaster_recover import copied, recovered_ends
from bench.tiered_cluster import tiered_cluster
from service.base.errors import ConfigError
from service.base.world import system_world
from service.inspect.restore_plan import RestorePlan
from service.inspect.restore_source import CutChoice, RestoreSource, read_source
from service.remote.stores.obstore_store import open_store
from service.remote.stores.read_only_store import ReadOnlyStore
from tests.support.clients import Admin
from tests.support.processes import FIRN, PYTHON, wait_until
from tests.support.quorums import Member
from tests.support.stores import Store, folder_store

CHAIN_TOPICS: Final = {CHAINS: CHAIN_PARTITIONS, ECHOES: CHAIN_PARTITIONS}
MANY: Final[Mapping[str, Any]] = {
    "disasters": 200, "between": 28.0, "rate": 0.2, "record_bytes": 1000, "partitions": 4,
    "interval_ms": 1000, "chain_ms": 1.0, "jitter_ms": 150.0, "hold_ms": 500,
}  # fmt: skip
_THREADS: Final = 16


class Moment(NamedTuple):
    """One cut, and where partitions end in it, by topic."""

    cut: int
    ends: Mapping[str, list[int]]

    def below(self, topic: str, found: Content) -> Content:
        """Return what of a topic this cut has: nothing if the topic was made later."""
        return found.below(self.ends.get(topic, [0] * len(found.records)))


class Back(NamedTuple):
    """One disaster, and what came of it. Times are seconds from the moment at which all was lost.

    `judged` are the cuts that were looked at, with what in each is not of one moment; the last of them is
    restored. `recovered`: ages of the bulk's records that `firn.remote.recover` would have lost, and `bulk`
    those that are lost now.
    """

    ages: list[float]
    bulk: list[float]
    recovered: list[float] | None
    judged: Mapping[int, list[str]]
    planned_s: float
    ready_s: float
    first: Mapping[str, float]


class World:
    """Cluster that is lost and comes back, with its clients."""

    def __init__(self, folder: Path, stack: ExitStack, arguments: argparse.Namespace) -> None:
        self._folder, self._arguments = folder, arguments
        self.store: Store = folder_store(folder / "bucket")
        settings = {
            "firn.cut.interval.ms": str(arguments.interval_ms),
            "firn.cut.hold.max.ms": str(arguments.hold_ms),
        }
        self.cluster = stack.enter_context(tiered_cluster(folder / "nodes", self.store, settings))
        self._cluster_id = self.cluster.plan.cluster_id
        if arguments.no_gate or arguments.jitter_ms:
            node = ["bench.cut_node", str(arguments.jitter_ms), str(int(not arguments.no_gate))]
            for member in self.cluster.members.values():
                member.firn = [str(PYTHON), "-m", *node]
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
            Chain(self.bootstrap, number, arguments.seed, arguments.chain_ms / 1000, self.paused)
            for number in range(arguments.clients)
        ]
        self.echo = Echo(self.bootstrap, "echo", self.paused)
        for client in (self.bulk, *self.chains, self.echo):
            client.start()
        stack.callback(self.paused.over.set)
        self.refused: list[str] = []
        """kept cuts that cannot be restored, and why"""
        self._seen = 0
        """the newest cut that was looked at"""
        self._known: set[str] = set()
        """what is not of one moment since an earlier disaster, and will stay so"""

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

    def has_cut(self) -> bool:
        """Return whether a cut can be restored that knows all topics."""
        try:
            with ThreadPoolExecutor(_THREADS) as pool:
                ends = _moment(self._read(pool)[1]).ends
        except ConfigError:
            return False
        return {BULK, *CHAIN_TOPICS, OFFSETS} <= ends.keys()

    def moments(self) -> list[Moment]:
        """Return the cuts that are there to be restored, the newest last; of `--many` all since the last
        disaster, else that one alone."""
        loose = self._arguments.no_gate
        with ThreadPoolExecutor(_THREADS) as pool:
            source, plan = self._read(pool)
            self.refused += source.passed_over
            found = [_moment(plan)]
            kept = source.cuts.kept if self._arguments.many and source.cuts is not None else ()
            for ref in reversed(kept):
                if self._seen < ref.cut < plan.ref.cut and ref.is_complete and (ref.is_exact or loose):
                    try:
                        found.append(_moment(self._read(pool, ref.cut)[1]))
                    except ConfigError as e:
                        self.refused.append(str(e))
        self._seen = plan.ref.cut
        return found[::-1]

    def _read(self, pool: ThreadPoolExecutor, cut: int | None = None) -> tuple[RestoreSource, RestorePlan]:
        """Return what a restore of this cut would bring back, or of the one that it would choose."""
        store = open_store(self.store.url, world=system_world(), endpoint=self.store.endpoint)
        choice = CutChoice(number=cut, allows_loose=self._arguments.no_gate or cut is not None)
        return read_source(ReadOnlyStore(store), choice, pool)

    def restore(self, say: Callable[[str], None]) -> float:
        """Take over, format and start; return the time at which apply was done."""
        where = ["--from", self.store.url, *(["--allow-loose"] if self._arguments.no_gate else [])]
        if self._arguments.story:
            say(self._firn("restore", "plan", *where))
        file = self._folder / "restored.checkpoint"
        file.unlink(missing_ok=True)
        brokers = ",".join(str(number) for number in self.cluster.members)
        said = self._firn("restore", "apply", *where, "--take-over", "--brokers", brokers, "-o", str(file))
        say(said)
        applied = time.monotonic()
        self._cluster_id = said.rpartition(" -t ")[2].split()[0]

        def make(member: Member) -> None:
            words = ["-t", self._cluster_id, "-c", str(member.properties), "--restore", str(file)]
            self._firn("format", *words, "--initial-controllers", self.cluster.plan.initial_controllers)

        members = self.cluster.members.values()
        with ThreadPoolExecutor(len(members)) as pool:
            list(pool.map(make, members))
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

    def judge(self, moments: Sequence[Moment]) -> dict[int, list[str]]:
        """Return what of each moment is not of one moment, and tell clients what of theirs is left."""
        chains = content(self.bootstrap, CHAINS, CHAIN_PARTITIONS)
        echoes = content(self.bootstrap, ECHOES, CHAIN_PARTITIONS)
        numbers = [0] * len(self.chains)
        for value in chains.values():
            client, _, number = value.partition(b":")
            numbers[int(client)] = max(numbers[int(client)], int(number) + 1)
        for chain, left in zip(self.chains, numbers, strict=True):
            chain.left = left
        self.echo.rejoins = True
        *others, newest = moments
        judged: dict[int, list[str]] = {}
        if others:
            offsets = content(self.bootstrap, OFFSETS, len(newest.ends[OFFSETS]))
            for one in others:
                committed = committed_in(one.below(OFFSETS, offsets), self.echo.group)
                of_chains, of_echoes = one.below(CHAINS, chains), one.below(ECHOES, echoes)
                judged[one.cut] = torn(of_chains, of_echoes, len(self.chains), committed)
        judged[newest.cut] = torn(chains, echoes, len(self.chains), self._committed(self.echo.group))
        new = {cut: [line for line in lines if line not in self._known] for cut, lines in judged.items()}
        self._known.update(judged[newest.cut])
        return new

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
        moments = self.moments()
        with ThreadPoolExecutor(1) as pool:
            recovering = pool.submit(self._recover) if self._arguments.compare else None
            planned = self.restore(say)
            ready = time.monotonic()
            say("restored, formatted, started")
            first = self.first_of_each(lost_at)
            recovered = None if recovering is None else recovering.result()
        self.paused.wait()
        judged = self.judge(moments)

        def ages(ends: Sequence[int]) -> list[float]:
            return [lost_at - one.at for one in self.bulk.behind(ends, lost_at)]

        bulk = ages(moments[-1].ends[BULK])
        by_recover = None if recovered is None else ages(recovered)
        self.bulk.forget(lost_at)
        chains = [lost_at - at for chain in self.chains for at in chain.give_up() if at < lost_at]
        self.paused.resume()
        return Back([*bulk, *chains], bulk, by_recover, judged, planned - lost_at, ready - lost_at, first)

    def _recover(self) -> list[int]:
        """Return where the bulk's partitions end if `firn.remote.recover` takes the bucket over."""
        folder = self._folder / "recovered"
        bucket = copied(self._folder / "bucket", folder / "bucket")
        try:
            return recovered_ends(folder, bucket, self._cluster_id, BULK, self._arguments.partitions)
        finally:
            shutil.rmtree(folder)


def _moment(plan: RestorePlan) -> Moment:
    ends = {one.name: [0] * one.partitions for one in plan.topics}
    names = {one.topic_id: one.name for one in plan.topics}
    for one in plan.partitions.values():
        ends[names[one.topic_id]][one.partition] = one.end
    return Moment(plan.ref.cut, ends)


def _until(is_done: Callable[[], bool]) -> None:
    wait_until("the cluster to answer", is_done, 300, 0.05)


def _is_committed(consumer: confluent_kafka.Consumer, place: confluent_kafka.TopicPartition) -> bool:
    try:
        consumer.commit(offsets=[place], asynchronous=False)
    except confluent_kafka.KafkaException:
        return False
    return True


def run(world: World, arguments: argparse.Namespace) -> bool:
    """Have so many disasters; return whether all that came back was of one moment, or, of nodes without
    gates, whether something was not."""
    chance, backs = random.Random(arguments.seed), list[Back]()
    judged: dict[int, list[str]] = {}
    wait_until("a cut with all topics", world.has_cut, 300, 1.0)
    began = time.monotonic()
    # Of `--many` each cut counts; else each disaster, also one that came before there was another cut.
    while len(judged if arguments.many else backs) < arguments.disasters:
        time.sleep(arguments.between * (0.5 + chance.random()))
        acknowledged = sum(len(chain.acknowledged) for chain in world.chains)
        back = world.disaster(print if arguments.story else lambda _: None)
        backs.append(back)
        judged |= back.judged
        _tell(len(backs), back, acknowledged)
    worst = [max(back.ages, default=0.0) for back in backs]
    print(f"oldest record lost: median {median(worst):.1f} s, at most {max(worst):.1f} s (bars 20 and 60)")
    if arguments.compare:
        worst = [max(back.recovered or (), default=0.0) for back in backs]
        print(f"by firn.remote.recover: median {median(worst):.1f} s, at most {max(worst):.1f} s")
    count = sum(map(bool, judged.values()))
    took = (time.monotonic() - began) / 60
    print(f"torn: {count} of {len(judged)}, {len(backs)} of them restored, in {took:.1f} minutes")
    for line in world.refused:
        print(f"not restored: {line}")
    return bool(count) is arguments.no_gate and not world.refused


def _tell(number: int, back: Back, acknowledged: int) -> None:
    found = [line for lines in back.judged.values() for line in lines[:1]]
    cuts = f"{len(back.judged)} cuts, " if len(back.judged) > 1 else ""
    told = cuts + (f"{len(found)} TORN: {found[-1]}" if found else "one moment")
    oldest = max(back.ages, default=0.0)
    print(
        f"{number:>3}  lost {len(back.ages):>7,} acknowledged, the oldest {oldest:5.1f} s old"
        f"   planned and applied {back.planned_s:5.1f} s   ready {back.ready_s:5.1f} s"
        f"   chains {acknowledged:,}   {told}",
        flush=True,
    )
    for what, seconds in back.first.items():
        print(f"     {what:<36}{seconds:6.1f} s", flush=True)
    if back.recovered is not None:
        for what, ages in (("firn restore", back.bulk), ("firn.remote.recover", back.recovered)):
            oldest = max(ages, default=0.0)
            print(
                f"     of the bulk, by {what:<20}{len(ages):>8,} lost, the oldest {oldest:5.1f} s old",
                flush=True,
            )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.disasters",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--disasters", type=int, default=20, help="(default: 20; of --many: 200)")
    parser.add_argument("--between", type=float, default=20, help="mean seconds between them (default: 20)")
    parser.add_argument("--rate", type=float, default=20, help="MB/s of the bulk (default: 20)")
    parser.add_argument("--record-bytes", type=int, default=10_000, help="of the bulk (default: 10000)")
    parser.add_argument("--partitions", type=int, default=200, help="of the bulk (default: 200)")
    parser.add_argument("--segment-mb", type=int, default=16, help="segment.bytes, in MiB (default: 16)")
    parser.add_argument("--clients", type=int, default=16, help="chains (default: 16)")
    parser.add_argument("--interval-ms", type=int, default=10_000, help="between cuts (default: 10000)")
    parser.add_argument(
        "--hold-ms",
        type=int,
        default=20,
        help="firn.cut.hold.max.ms (default: 20; of --many: 500)",
    )
    parser.add_argument("--chain-ms", type=float, default=10, help="a chain's pause (default: 10)")
    parser.add_argument(
        "--jitter-ms",
        type=float,
        default=0,
        help="how late brokers obey in a cut (default: 0; of --many: 150)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of when (default: 1)")
    parser.add_argument("--story", action="store_true", help="tell each step")
    parser.add_argument("--many", action="store_true", help="small ones: each cut that is kept counts")
    parser.add_argument("--no-gate", action="store_true", help="gates hold nothing back: torn is awaited")
    parser.add_argument("--compare", action="store_true", help="with what firn.remote.recover brings back")
    if parser.parse_known_args()[0].many:
        parser.set_defaults(**MANY)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # nodes end and folders go
    with tempfile.TemporaryDirectory(prefix="firn-disasters-") as name, ExitStack() as stack:
        return 0 if run(World(Path(name), stack, arguments), arguments) else 1


if __name__ == "__main__":
    sys.exit(main())
