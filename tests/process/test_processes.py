"""`firn server` with several processes: a killed one comes back, a rolling restart loses nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from service.cli.dev_nodes import agree_on_ports
from tests.support.processes import FIRN, end, wait_until

PARTITIONS = 4


class Machine:
    """`firn server --processes 2` on one file, and what it prints. Without `quorum` it has the controller."""

    def __init__(
        self, folder: Path, node_id: int = 1, host: str = "127.0.0.1", quorum: str | None = None
    ) -> None:
        self.folder, self.out, self.log = folder, folder / "out", folder / "log"
        (first, second, controller), _ = agree_on_ports(0, 3, 0)
        first, second = sorted((first, second))
        self.node_ids = (node_id, node_id + 1000)
        self.addresses = [f"{host}:{first}", f"{host}:{second}"]
        self.quorum = quorum or f"{host}:{controller}"
        settings = {
            "firn.processes.port.step": str(second - first),
            "node.id": str(node_id),
            "listeners": f"PLAINTEXT://{self.addresses[0]}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(folder / "data"),
            "firn.disk.watermarks.enable": "false",
        }
        if quorum is None:
            settings["listeners"] += f",CONTROLLER://{self.quorum}"
        else:
            settings |= {"process.roles": "broker", "controller.quorum.bootstrap.servers": quorum}
        self.file = folder / "server.properties"
        self.file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self.start()

    def start(self) -> None:
        with self.out.open("wb") as out, self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(FIRN), "server", str(self.file), "--processes", "2"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
            )

    @property
    def bootstrap(self) -> str:
        return ",".join(self.addresses)

    @property
    def directories(self) -> tuple[Path, Path]:
        return self.folder / "data", self.folder / "data" / "processes" / "1001"

    def lines(self) -> list[str]:
        return self.out.read_text().splitlines()

    def wait_for(self, line: str, seconds: float = 60) -> None:
        wait_until(line, lambda: line in self.lines() or self.process.poll() is not None, seconds)
        assert line in self.lines(), (self.lines(), self.log.read_text()[-3000:])

    def pid_of(self, number: int) -> int:
        pid = self.process.pid
        for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            words = Path(f"/proc/{one}/cmdline").read_text().split("\0")
            if "--process" in words and words[words.index("--process") + 1] == str(number):
                return int(one)
        raise AssertionError(f"no process {number}")


@contextmanager
def machine(
    folder: Path, node_id: int = 1, host: str = "127.0.0.1", quorum: str | None = None
) -> Iterator[Machine]:
    folder.mkdir(exist_ok=True)
    running = Machine(folder, node_id, host, quorum)
    try:
        ids = ", ".join(map(str, running.node_ids))
        running.wait_for(f"ready: nodes {ids} on {','.join(running.addresses)}")
        yield running
    finally:
        end(running.process, 20)


class Producing:
    """A producer with acks=all that goes on until `stop`, and what became of its records."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: set[bytes] = set()
        self.failed: list[str] = []
        self._bootstrap = bootstrap
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self._bootstrap, "acks": "all", "linger.ms": 1, "enable.idempotence": True}
        )
        number = 0
        while not self._ends.is_set():
            producer.produce("t", b"%d" % number, partition=number % PARTITIONS, on_delivery=self._delivered)
            number += 1
            producer.poll(0.005)
        producer.flush(30)

    def _delivered(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is None:
            self.acknowledged.add(message.value())
        else:
            self.failed.append(str(error))

    def wait_for_more(self, records: int = 100) -> None:
        enough = len(self.acknowledged) + records
        wait_until(f"{records} more records", lambda: len(self.acknowledged) >= enough)

    def stop(self) -> None:
        self._ends.set()
        self._thread.join(60)


def create(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("t", PARTITIONS, 2)])["t"].result(20)


def isr_sizes(bootstrap: str) -> list[int]:
    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics("t", 10).topics["t"].partitions
    return [len(one.isrs) for one in found.values()]


def values_of(bootstrap: str, count: int) -> set[bytes]:
    """The values that are read until there are `count` different ones."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    consumer.assign([confluent_kafka.TopicPartition("t", number, 0) for number in range(PARTITIONS)])
    found: set[bytes] = set()
    deadline = time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline:
        found |= {one.value() for one in consumer.consume(10_000, 0.2) if one.error() is None}
    consumer.close()
    return found


@pytest.mark.thorough
def test_no_two_replicas_are_on_one_machine(tmp_path: Path) -> None:
    """As clients see it: each broker by the host that it advertises."""
    with (
        machine(tmp_path / "a") as first,
        machine(tmp_path / "b", 2, "127.0.0.2", first.quorum),
    ):
        admin = AdminClient({"bootstrap.servers": first.bootstrap})
        wait_until("four brokers", lambda: len(admin.list_topics(timeout=10).brokers) == 4)
        topics = [NewTopic("t", 12, 2), NewTopic("wide", 4, 3)]
        for created in admin.create_topics(topics).values():
            created.result(20)
        found = admin.list_topics(timeout=10)
        hosts = {one.id: one.host for one in found.brokers.values()}
        assert hosts == {1: "127.0.0.1", 1001: "127.0.0.1", 2: "127.0.0.2", 1002: "127.0.0.2"}
        for topic, replicas in (("t", 2), ("wide", 3)):
            for partition in found.topics[topic].partitions.values():
                assert len(set(partition.replicas)) == replicas
                assert {hosts[one] for one in partition.replicas} == {"127.0.0.1", "127.0.0.2"}


@pytest.mark.thorough
def test_two_processes_of_one_file(tmp_path: Path) -> None:
    with machine(tmp_path) as running:
        create(running.bootstrap)
        producing = Producing(running.bootstrap)
        try:
            producing.wait_for_more()
            os.kill(running.pid_of(2), signal.SIGKILL)
            running.wait_for("node 1001 was ended by SIGKILL; it is started again in 1 s")
            running.wait_for(f"node 1001 serves again on {running.addresses[1]}")
            producing.wait_for_more()
            before = [running.pid_of(number) for number in (1, 2)]
            running.process.send_signal(signal.SIGUSR1)
            running.wait_for("rolling restart: done", 120)
            assert not set(before) & {running.pid_of(number) for number in (1, 2)}
            assert isr_sizes(running.bootstrap) == [2] * PARTITIONS
            producing.wait_for_more()
        finally:
            producing.stop()
        assert producing.failed == []
        assert producing.acknowledged <= values_of(running.bootstrap, len(producing.acknowledged))
        said = [line for line in running.lines() if line.startswith("rolling restart: node")]
        assert said == ["rolling restart: node 1001", "rolling restart: node 1"]
        running.process.terminate()
        assert running.process.wait(30) == 0
        assert all((one / ".kafka_cleanshutdown").exists() for one in running.directories)
        assert "stops without moving its leaderships" not in running.log.read_text()
        ended = [
            line for line in running.log.read_text().splitlines() if line.endswith("stops in order: SIGTERM")
        ]
        assert [line.partition(":")[0] for line in ended[-2:]] == ["node 1001", "node 1"]


def logs_of(directory: Path) -> dict[str, tuple[int, int]]:
    """Size and inode of each file of records: another one would have been fetched again."""
    found = directory.glob("t-*/*.log")
    return {f"{one.parent.name}/{one.name}": (one.stat().st_size, one.stat().st_ino) for one in found}


@pytest.mark.thorough
def test_a_process_becomes_a_service_of_its_own_and_one_again(tmp_path: Path) -> None:
    """By moving its directory."""
    values = {b"%d" % number for number in range(100)}
    with machine(tmp_path) as running:
        create(running.bootstrap)
        producer = confluent_kafka.Producer({"bootstrap.servers": running.bootstrap, "acks": "all"})
        for value in values:
            producer.produce("t", value)
        assert producer.flush(30) == 0
    inner, outer = running.directories[1], tmp_path / "node-1001"
    logs = logs_of(inner)
    inner.rename(outer)
    own = {
        "node.id": "1001",
        "process.roles": "broker",
        "listeners": f"PLAINTEXT://{running.addresses[1]}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": running.quorum,
        "log.dirs": str(outer),
        "firn.disk.watermarks.enable": "false",
    }
    second = [word for key, value in own.items() for word in ("--set", f"{key}={value}")]
    with ExitStack() as stack:
        for words in ([str(running.file)], second):
            command = [str(FIRN), "server", *words]
            service = stack.enter_context(subprocess.Popen(command, stdin=subprocess.DEVNULL))
            stack.callback(end, service, 20)
        wait_until("all replicas in sync", lambda: isr_sizes(running.bootstrap) == [2] * PARTITIONS)
        assert values_of(running.bootstrap, len(values)) == values
    assert not inner.exists()
    assert logs_of(outer) == logs
    outer.rename(inner)
    try:
        running.start()
        running.wait_for(f"ready: nodes 1, 1001 on {running.bootstrap}")
        wait_until("all replicas in sync", lambda: isr_sizes(running.bootstrap) == [2] * PARTITIONS)
        assert values_of(running.bootstrap, len(values)) == values
    finally:
        end(running.process, 20)
    assert logs_of(inner) == logs


def test_no_process_outlives_the_first_even_when_it_is_killed(tmp_path: Path) -> None:
    with machine(tmp_path) as running:
        pids = [running.pid_of(number) for number in (1, 2)]
        running.process.kill()
        running.process.wait()
        wait_until("the nodes to end", lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
        assert all((one / ".kafka_cleanshutdown").exists() for one in running.directories)


def test_the_parent_ends_where_no_process_can_start(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    command = [str(FIRN), "server", "--processes", "2", "--set", f"log.dirs={tmp_path / 'data'}"]
    command += ["--set", "initial.broker.registration.timeout.ms=500"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert found.returncode == 1
    assert "no node could start" in found.stdout


def test_a_mistake_in_the_changed_file_stops_no_process(tmp_path: Path) -> None:
    with machine(tmp_path) as running:
        before = [running.pid_of(number) for number in (1, 2)]
        text = running.file.read_text()
        for wrong, why in (
            (
                "num.partitions=many",
                f"{running.file}:7: num.partitions: invalid value 'many': Not a number of type INT",
            ),
            ("node.id=2", "node.id: the nodes would be [2, 1002]"),
        ):
            running.file.write_text(f"{text}{wrong}\n")
            running.process.send_signal(signal.SIGUSR1)
            running.wait_for(f"rolling restart: ends here, as no node would start with these settings: {why}")
        assert before == [running.pid_of(number) for number in (1, 2)]


@pytest.mark.parametrize("command", ["server", "format"])
def test_a_mistake_in_the_file_is_told_before_anything_is_begun(tmp_path: Path, command: str) -> None:
    settings = ["--set", "firn.processes=2", "--set", "firn.processes.port.step=1"]
    more = ["-t", "MkU3OEVBNTcwNTJENDM2Qk"] if command == "format" else []
    found = subprocess.run(
        [str(FIRN), command, *settings, *more], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert found.returncode == 1
    assert "PLAINTEXT of process 2 and CONTROLLER of process 1 have port 9093" in found.stderr
    assert list(tmp_path.iterdir()) == []


def test_all_are_formatted_from_the_one_file(tmp_path: Path) -> None:
    text = "firn.processes=3\nlog.dirs=data\n"
    (tmp_path / "server.properties").write_text(text)
    command = [str(FIRN), "format", "-c", "server.properties", "-t", "MkU3OEVBNTcwNTJENDM2Qk"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    for node_id, folder in ((1, "data"), (1001, "data/processes/1001"), (2001, "data/processes/2001")):
        meta = (tmp_path / folder / "meta.properties").read_text()
        assert f"node.id={node_id}\n" in meta
        assert "cluster.id=MkU3OEVBNTcwNTJENDM2Qk\n" in meta
