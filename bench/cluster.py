"""Three nodes that are one cluster: `python -m bench.cluster [start idle failover catch-up] [--kafka]`

start      from nothing to all three ready
idle       processor and memory of each, with 100 partitions and nobody asking
failover   the active controller is killed, `--kills` times, under 50 topic changes a second
catch-up   100,000 partitions: how long a controller and a broker with empty disks take until they know them

With `--kafka` Apache Kafka does the same, but for the last.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from kio.schema.errors import ErrorCode

from bench.figures import SIDES, Figures, add_json_option, write_asked
from bench.measures import Measured
from bench.parts import parts_of
from bench.peers import Cpu, kafka_is_here, rss_mb
from service.cli.dev_nodes import agree_on_ports
from service.client.blocking_client import BlockingClient
from service.metadata.features import cluster_features
from service.wire.api import ApiKey, request_module
from tests.support.changes import Changes
from tests.support.processes import FIRN, first_line, wait_until
from tests.support.quorums import Cluster, Program

IDLE_S = 20.0
SETTLE_S = 5.0
PARTITIONS = 100_000
IN_A_TOPIC = 1_000
_TURN = re.compile(r"(?:a turn of the loop took|, the longest) (\d+) ms: ")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__.partition("\n")[0])
    known = {"start": _start, "idle": _idle, "failover": _failover, "catch-up": _catch_up}
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(known))
    parser.add_argument("--kafka", action="store_true", help="Apache Kafka, too")
    parser.add_argument("--kills", type=int, default=20)
    add_json_option(parser)
    arguments = parser.parse_args()
    figures = Figures()
    programs = [Program.FIRN]
    if arguments.kafka:
        if not kafka_is_here():
            parser.error("Apache Kafka is not here: make fetch-tools")
        programs.append(Program.KAFKA)
    for part in parts_of(parser, arguments.parts, list(known)):
        for program in programs[:1] if part == "catch-up" else programs:
            with tempfile.TemporaryDirectory(prefix="firn-cluster-") as name:
                figures.tell(SIDES[program], known[part](Path(name), program, arguments))
    write_asked(arguments, figures)
    return 0


def _cluster(folder: Path, program: Program) -> Cluster:
    return Cluster(folder, programs=dict.fromkeys((1, 2, 3), program))


def _start(folder: Path, program: Program, _: argparse.Namespace) -> list[Measured]:
    with _cluster(folder, program) as cluster:
        begun = time.monotonic()
        cluster.start(seconds=120)
        return [Measured("three nodes, from formatted to ready", "s", 4.0, time.monotonic() - begun)]


def _idle(folder: Path, program: Program, _: argparse.Namespace) -> list[Measured]:
    with _cluster(folder, program) as cluster:
        cluster.start(seconds=120)
        with _client(cluster.members[1].bootstrap) as client:
            _create(client, "idle", 100)
        time.sleep(SETTLE_S)
        found = []
        pids = [member.process.pid for member in cluster.members.values() if member.process is not None]
        meters = [Cpu(pid) for pid in pids]
        for meter in meters:
            meter.__enter__()
        time.sleep(IDLE_S)
        for number, (pid, meter) in enumerate(zip(pids, meters, strict=True), start=1):
            meter.__exit__()
            share = 100 * meter.all / meter.wall
            found.append(Measured(f"node {number}, 100 partitions, of a core", "%", 2.0, share))
            found.append(Measured(f"node {number}, memory", "MB", None, rss_mb(pid)))
        return found


def _failover(folder: Path, program: Program, arguments: argparse.Namespace) -> list[Measured]:
    with _cluster(folder, program) as cluster:
        cluster.start(seconds=120)
        places = [(one.node_id, one.bootstrap) for one in cluster.members.values()]
        waits = []
        with Changes(places, 50, 1) as changes:
            for number in range(arguments.kills):
                time.sleep(1.0)
                leader = _leader(cluster)
                cluster.members[leader].kill()
                waits.append(changes.wait_for_next(time.monotonic(), 120))
                print(f"kill {number + 1}: {waits[-1]:.2f} s", file=sys.stderr, flush=True)
                cluster.members[leader].start(120)
        waits.sort()
        what = f"until the next answered change, {len(waits)} kills"
        return [
            Measured(f"{what}, median", "s", 1.0, waits[len(waits) // 2]),
            Measured(f"{what}, worst", "s", 2.5, waits[-1]),
        ]


def _leader(cluster: Cluster) -> int:
    module = request_module(ApiKey.DESCRIBE_QUORUM)
    topic = module.TopicData(
        topic_name="__cluster_metadata", partitions=(module.PartitionData(partition_index=0),)
    )
    found: list[int] = []

    def look() -> bool:
        with _client(cluster.members[1].bootstrap) as client:
            answer = client.request(ApiKey.DESCRIBE_QUORUM, module.DescribeQuorumRequest(topics=(topic,)))
        if answer.error_code == ErrorCode.none and answer.topics[0].partitions[0].leader_id > 0:
            found.append(answer.topics[0].partitions[0].leader_id)
        return bool(found)

    wait_until("a leader", look, 60)
    return found[0]


# -- catching up


def _catch_up(folder: Path, program: Program, arguments: argparse.Namespace) -> list[Measured]:
    """Broker 9 is a few requests of this process: its 100,000 partitions lie nowhere."""
    (broker_port,), ports = agree_on_ports(0, 1, 2)
    first, second = ports
    quorum = f"controller.quorum.bootstrap.servers=127.0.0.1:{first}"
    with _node(folder, 1, "controller", first, quorum, "--standalone") as (took, log):
        with _fake_broker(9, first), _client(f"127.0.0.1:{first}") as client:
            begun = time.monotonic()
            for number in range(PARTITIONS // IN_A_TOPIC):
                _create(client, f"wide-{number}", IN_A_TOPIC, broker_id=9)
            made = Measured(f"{PARTITIONS} partitions created", "s", None, time.monotonic() - begun)
            found = [made, *_resident("active controller", log)]
            with _node(folder, 2, "controller", second, quorum, "--no-initial-controllers") as (took, log):
                begun = time.monotonic()
                wait_until("the new controller to know them", lambda: _topics(log) >= 100, 120, 0.1)
                what = "a controller with an empty disk knows them"
                found.append(Measured(what, "s", 15.0, took + time.monotonic() - begun))
                found += _resident("new controller", log)
            with _node(folder, 3, "broker", broker_port, quorum, None) as (took, log):
                found.append(Measured("a broker with an empty disk is unfenced", "s", 15.0, took))
                found += _resident("new broker", log)
        return found


class _Log:
    """Log file, process id and HTTP port of a node's process."""

    def __init__(self, path: Path, pid: int, http: int) -> None:
        self.path, self.pid, self.http = path, pid, http


def _resident(who: str, log: _Log) -> list[Measured]:
    turns = [int(one) for one in _TURN.findall(log.path.read_text())]
    return [
        Measured(f"{who}, memory", "MB", 400.0, rss_mb(log.pid)),
        Measured(f"{who}, longest turn of the loop over 50 ms, else 0", "ms", 50.0, max(turns, default=0)),
    ]


def _topics(log: _Log) -> int:
    from urllib.request import urlopen

    with urlopen(f"http://127.0.0.1:{log.http}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    (line,) = [one for one in text.splitlines() if one.startswith("firn_metadata_topics ")]
    return int(float(line.rpartition(" ")[2]))


@contextmanager
def _node(
    folder: Path, node_id: int, role: str, port: int, quorum: str, formatted: str | None
) -> Iterator[tuple[float, _Log]]:
    """A node of that role, how long it took to be ready (s), and its log. `formatted`: how, or not at all."""
    (http,), _ports = agree_on_ports(0, 1, 0)
    name = "CONTROLLER" if role == "controller" else "PLAINTEXT"
    settings = {
        "node.id": str(node_id),
        "process.roles": role,
        "listeners": f"{name}://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(folder / f"node-{node_id}"),
        "firn.http.listener": f"127.0.0.1:{http}",
    }
    options = [
        word for one in (quorum, *(f"{k}={v}" for k, v in settings.items())) for word in ("--set", one)
    ]
    if formatted is not None:
        command = [str(FIRN), "format", "-t", "4L6g3nShT-eMCtK--X86sw", formatted, *options]
        subprocess.run(command, check=True, capture_output=True)
    path = folder / f"node-{node_id}.log"
    with path.open("ab") as log:
        begun = time.monotonic()
        process = subprocess.Popen(
            [str(FIRN), "server", *options], stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert first_line(process, 120).startswith("ready: "), path.read_text()[-2000:]
        yield time.monotonic() - begun, _Log(path, process.pid, http)
    finally:
        process.kill()
        process.wait()


@contextmanager
def _fake_broker(broker_id: int, controller: int) -> Iterator[None]:
    """Registered and unfenced for as long as this lasts, and no more than that."""
    registration = request_module(ApiKey.BROKER_REGISTRATION)
    beats = request_module(ApiKey.BROKER_HEARTBEAT)
    (port,), _ports = agree_on_ports(0, 1, 0)
    over = threading.Event()
    with _client(f"127.0.0.1:{controller}") as client:
        described = client.request(
            ApiKey.DESCRIBE_CLUSTER,
            request_module(ApiKey.DESCRIBE_CLUSTER).DescribeClusterRequest(
                include_cluster_authorized_operations=False, endpoint_type=2, include_fenced_brokers=False
            ),
        )
        answer = client.request(
            ApiKey.BROKER_REGISTRATION,
            registration.BrokerRegistrationRequest(
                broker_id=broker_id,
                cluster_id=described.cluster_id,
                incarnation_id=uuid4(),
                listeners=(
                    registration.Listener(name="PLAINTEXT", host="127.0.0.1", port=port, security_protocol=0),
                ),
                features=tuple(
                    registration.Feature(
                        name=one.name,
                        min_supported_version=one.min_level,
                        max_supported_version=one.max_level,
                    )
                    for one in cluster_features()
                ),
                rack=None,
                log_dirs=(uuid4(),),
            ),
        )
        assert answer.error_code == ErrorCode.none, answer

        def beat() -> Any:
            return client.request(
                ApiKey.BROKER_HEARTBEAT,
                beats.BrokerHeartbeatRequest(
                    broker_id=broker_id,
                    broker_epoch=answer.broker_epoch,
                    current_metadata_offset=1 << 40,
                    want_fence=False,
                    want_shut_down=False,
                    offline_log_dirs=(),
                ),
            )

        wait_until("the broker to be unfenced", lambda: not beat().is_fenced, 20)

        def go_on() -> None:
            while not over.wait(1.0):
                beat()

        beating = threading.Thread(target=go_on, daemon=True)
        beating.start()
        try:
            yield
        finally:
            over.set()
            beating.join()


def _create(client: BlockingClient, name: str, partitions: int, broker_id: int | None = None) -> None:
    module = request_module(ApiKey.CREATE_TOPICS)
    assignments = tuple(
        module.CreatableReplicaAssignment(partition_index=index, broker_ids=(broker_id,))
        for index in range(0 if broker_id is None else partitions)
    )
    topic = module.CreatableTopic(
        name=name,
        num_partitions=partitions if broker_id is None else -1,
        replication_factor=1 if broker_id is None else -1,
        assignments=assignments,
        configs=(),
    )
    request = module.CreateTopicsRequest(topics=(topic,), timeout=timedelta(seconds=60))
    made = client.request(ApiKey.CREATE_TOPICS, request).topics[0]
    assert made.error_code == ErrorCode.none, made


def _client(place: str) -> BlockingClient:
    host, _, port = place.rpartition(":")
    return BlockingClient(host, int(port), "bench", timeout_s=120)


Part = Callable[[Path, Program, argparse.Namespace], list[Measured]]

if __name__ == "__main__":
    sys.exit(main())
