"""Copies by transactions while everything dies: `python -m bench.exactly_once [--records N] [--seconds S]`

Three nodes, and three workers that copy a topic by transactions. A worker is killed at random now and then,
nodes in turn, `--kills` times. Each input is then looked for in the output: once, from the leaders, from each
node and, where they are Firn's, from the bucket after local retention, and by Spark, which reads the bucket
and, behind what has been sealed, the brokers (`make spark`; without it, `--without-spark`). `--program kafka`
judges the script; `--worker java` takes Kafka's TransactionalMessageCopier, which speaks version 2.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import confluent_kafka

from bench.peers import kafka_is_here
from tests.support.clients import Admin
from tests.support.isolation import COMMITTED, values
from tests.support.kafka_tools import RUNNER, environment
from tests.support.processes import wait_until
from tests.support.quorums import Cluster, Program
from tests.support.stores import folder_store
from tests.support.tiers import settle

INPUT, OUTPUT, GROUP = "eos-input", "eos-output", "eos-group"
PARTITIONS = 6
SETTINGS = {
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.num.partitions": "6",
    "transaction.state.log.min.isr": "2",
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "100",
}
TIERED = {"remote.log.manager.task.interval.ms": "500", "log.retention.check.interval.ms": "500"}


class Workers:
    """So many workers, each started again whenever it has ended; one is killed at random now and then."""

    def __init__(
        self, folder: Path, bootstrap: str, count: int, kind: str, every_s: float, seed: int
    ) -> None:
        self._folder, self._bootstrap, self._kind = folder, bootstrap, kind
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * count
        self._random, self._every_s = random.Random(seed), every_s
        self._over = threading.Event()
        self.kills = self.starts = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _command(self, number: int) -> list[str]:
        if self._kind == "java":
            return [
                str(RUNNER), "org.apache.kafka.tools.TransactionalMessageCopier",
                "--broker-list", self._bootstrap, "--input-topic", INPUT, "--input-partition", "-1",
                "--output-topic", OUTPUT, "--consumer-group", GROUP, "--transaction-size", "500",
                "--transactional-id", f"eos-{number}", "--group-mode", "--use-group-metadata",
                "--transaction-timeout", "20000",
            ]  # fmt: skip
        names = (f"eos-{number}", INPUT, OUTPUT, GROUP)
        return [sys.executable, "-m", "tests.support.copying_worker", self._bootstrap, *names]

    def _watch(self) -> None:
        kill_at = time.monotonic() + self._every_s
        while not self._over.wait(0.1):
            for number, process in enumerate(self._processes):
                if process is None or process.poll() is not None:
                    with (self._folder / f"worker-{number}.log").open("ab") as log:
                        self._processes[number] = subprocess.Popen(
                            self._command(number), stdout=log, stderr=log, env=environment()
                        )
                    self.starts += 1
            if time.monotonic() > kill_at:
                victim = self._random.choice(self._processes)
                assert victim is not None
                victim.kill()
                victim.wait()
                self.kills += 1
                kill_at = time.monotonic() + self._every_s * (0.5 + self._random.random())

    def spare(self) -> None:
        """Kill none from now on."""
        self._every_s = 1e9

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        for process in self._processes:
            if process is not None:
                process.kill()
                process.wait()


def feed(bootstrap: str, records: int, seconds: float) -> None:
    """Number the inputs, in partitions by turns, over so many seconds."""
    began = time.monotonic()
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "message.timeout.ms": 600_000,
        }
    )
    for number in range(records):
        while True:
            try:
                producer.produce(INPUT, b"%d" % number, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 100 == 0:
            producer.poll(0)
            time.sleep(max(began + seconds * number / records - time.monotonic(), 0))
    assert not producer.flush(600), "inputs are left over"


def lag(bootstrap: str, records: int) -> int:
    """Inputs that no committed offset has passed."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    try:
        places = [confluent_kafka.TopicPartition(INPUT, number) for number in range(PARTITIONS)]
        passed: int = sum(max(one.offset, 0) for one in consumer.committed(places, 30))
        return records - passed
    except confluent_kafka.KafkaException:
        return records
    finally:
        consumer.close()


def outputs(bootstrap: str, at: str | None = None) -> Counter[bytes]:
    """The values of the output as a read_committed consumer sees them, from leaders or from one node."""
    found: Counter[bytes] = Counter()
    for number in range(PARTITIONS):
        found.update(values(bootstrap, OUTPUT, COMMITTED, partition=number, at=at))
    return found


def judged(found: Counter[bytes], records: int) -> str:
    twice = sum(count - 1 for count in found.values())
    missing = records - sum(1 for number in range(records) if b"%d" % number in found)
    strange = sum(1 for value in found if not value.isdigit() or int(value) >= records)
    return "each once" if not (twice or missing or strange) else f"{missing=} {twice=} {strange=}"


def by_spark(url: str, bootstrap: str) -> Counter[bytes]:
    """Output values as Spark reads them: sealed segments from the bucket, the rest from brokers."""
    import pyspark_firn

    spark = pyspark_firn.session(master="local[2]")
    try:
        frame = (
            spark.read.format("firn")
            .option("url", url)
            .option("bootstrap.servers", bootstrap)
            .option("subscribe", OUTPUT)
            .option("isolationLevel", "read_committed")
            .load()
        )
        counted = frame.groupBy("value").count().collect()
        return Counter({bytes(row["value"]): row["count"] for row in counted})
    finally:
        spark.stop()


def run(folder: Path, arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yield what was looked at, and what came of it."""
    program = Program(arguments.program)
    is_ours = program is Program.FIRN
    with ExitStack() as stack:
        settings, env = {**SETTINGS}, dict[str, str]()
        if is_ours:
            store = folder_store(folder / "bucket")
            settings |= {**TIERED, **store.node_settings}
            env = dict(store.env)
        (folder / "nodes").mkdir()
        programs = dict.fromkeys((1, 2, 3), program)
        cluster = stack.enter_context(
            Cluster(folder / "nodes", settings=settings, programs=programs, environ=env)
        )
        for member in cluster.members.values():
            member.settings |= settings
        for member in cluster.members.values():
            member.launch()
        for member in cluster.members.values():
            wait_until("a node to serve", member.has_started, 120)
        bootstrap = cluster.bootstrap
        admin = Admin(bootstrap, 3)
        tiered = {"remote_storage_enable": "true", "segment_ms": "5000"} if is_ours else {}
        admin.create(INPUT, PARTITIONS)
        admin.create(OUTPUT, PARTITIONS, **tiered)
        feeder = threading.Thread(target=feed, args=(bootstrap, arguments.records, arguments.seconds))
        feeder.start()
        began = time.monotonic()
        every_s = arguments.worker_every
        workers = Workers(folder, bootstrap, 3, arguments.worker, every_s, arguments.seed)
        try:
            for number in range(arguments.kills):
                time.sleep(
                    max(
                        began + arguments.seconds * (number + 1) / (arguments.kills + 1) - time.monotonic(), 0
                    )
                )
                member = cluster.members[number % 3 + 1]
                member.kill()
                time.sleep(arguments.down)
                member.launch()
                wait_until("a killed node to serve", member.has_started, 120)
                print(
                    f"node {member.node_id} was killed, lag {lag(bootstrap, arguments.records)}",
                    file=sys.stderr,
                )
            feeder.join()
            workers.spare()
            wait_until("all inputs to be copied", lambda: lag(bootstrap, arguments.records) == 0, 900, 1.0)
            took = time.monotonic() - began
        finally:
            workers.close()
        yield "inputs", f"{arguments.records}"
        yield "seconds", f"{took:.0f}"
        yield (
            "kills of nodes, of workers, starts of workers",
            f"{arguments.kills}, {workers.kills}, {workers.starts}",
        )
        records = arguments.records
        wait_until("the last markers", lambda: sum(outputs(bootstrap).values()) >= records, 60, 1.0)
        yield "from the leaders", judged(outputs(bootstrap), records)
        for member in cluster.members.values():
            yield f"from node {member.node_id}", judged(outputs(bootstrap, member.bootstrap), records)
        if is_ours:
            admin.alter(OUTPUT, local_retention_bytes="1")
            for number in range(PARTITIONS):
                settle(bootstrap, OUTPUT, number, 300)
            yield "from the bucket, after local retention", judged(outputs(bootstrap), records)
            if not arguments.without_spark:
                yield "from the bucket and brokers, by Spark", judged(by_spark(store.url, bootstrap), records)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.exactly_once", description=__doc__)
    parser.add_argument("--program", choices=[one.value for one in Program], default="firn")
    parser.add_argument("--worker", choices=("confluent", "java"), default="confluent")
    parser.add_argument("--records", type=int, default=1_000_000, help="inputs (default: 1000000)")
    parser.add_argument("--seconds", type=float, default=300, help="over which nodes die (default: 300)")
    parser.add_argument("--kills", type=int, default=10, help="of nodes, in turn (default: 10)")
    parser.add_argument("--down", type=float, default=3, help="seconds for which a node is down (default: 3)")
    parser.add_argument("--worker-every", type=float, default=10, help="seconds between kills of workers")
    parser.add_argument("--without-spark", action="store_true", help="leave Spark out of the readers")
    parser.add_argument("--seed", type=int, default=1, help="of which worker dies when (default: 1)")
    arguments = parser.parse_args()
    if (arguments.program == "kafka" or arguments.worker == "java") and not kafka_is_here():
        parser.error("Apache Kafka is not here: make fetch-tools")
    if arguments.program == "firn" and not arguments.without_spark and find_spec("pyspark") is None:
        parser.error("PySpark is not here: make spark, or --without-spark")
    failed = False
    with tempfile.TemporaryDirectory(prefix="firn-exactly-once-") as name:
        for what, told in run(Path(name), arguments):
            failed |= what.startswith("from") and told != "each once"
            print(f"{what:<48}{told}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
