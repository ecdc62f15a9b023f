"""Writes ``answers.txt.gz``: what Apache Kafka 4.3.1's transaction coordinator answered, request by request.

    python -m tests.golden.transactions.capture_answers FOLDER

FOLDER is a new one, in which the nodes run: one that coordinates, and one that leads the topic ``stuck`` and
sleeps by then, so that a transaction with that topic never gets all its markers. Each sequence has an id of
its own, a level of ``transaction.version`` and perhaps a first record; after each answer the id is described
once its transaction has no marker outstanding. Producer ids are written as 1000, 1001 … in the order in which
they were given.
"""

import gzip
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode

from service.records.batch import CompressionType
from service.records.builder import BatchBuilder
from service.transactions.metadata import TransactionMetadata
from service.transactions.records import encode_key, encode_value
from service.transactions.states import TransactionState
from service.wire import api
from service.wire.schema import millis
from tests.support.kafka_node import CLUSTER_ID, KafkaNode
from tests.support.kafka_tools import RUNNER
from tests.support.processes import free_port, wait_until
from tests.support.wire import RawConnection, decode_response, encode_request, produce_request, schema

HERE = Path(__file__).parent
GROUP = "a-group"
PLACES = {"a0": ("a", 0), "a1": ("a", 1), "b0": ("b", 0), "s0": ("stuck", 0)}
NAMES = {place: name for name, place in PLACES.items()}
FIRST_ID, PREVIOUS_ID = 7777, 6666
Ask = tuple[Any, ...]


def real_ids(number: int) -> tuple[int, int]:
    """A producer id and the one before it, which nobody else has."""
    return 10_000_000 + 2 * number, 10_000_001 + 2 * number


class Asked:
    """One id at the coordinator; requests are tuples: name, version, arguments."""

    def __init__(self, connection: RawConnection, name: str, number: int = 0) -> None:
        """`number`: of the producer ids that stand for `FIRST_ID` and `PREVIOUS_ID`."""
        self.connection, self.name = connection, name
        first, previous = real_ids(number)
        self.known: dict[int, int] = {-1: -1, 0: 0, first: FIRST_ID, previous: PREVIOUS_ID}
        self.real = {value: key for key, value in self.known.items()}

    def given(self, producer_id: int) -> int:
        if producer_id not in self.known or producer_id == 0:
            fresh = 1000 + len(self.known) - 4
            self.known[producer_id], self.real[fresh] = fresh, producer_id
        return self.known[producer_id]

    def ask(self, ask: Ask) -> list[Any]:
        """The answer; while Kafka gets a block of producer ids it answers that it is loading."""
        while (answer := self._ask(ask))[0] == "coordinator_load_in_progress":
            time.sleep(0.01)
        return answer

    def _ask(self, ask: Ask) -> list[Any]:
        kind, version, *more = ask
        producer = {
            "producer_id": self.real.get(more[0], more[0]),
            "producer_epoch": more[1],
        }
        if kind == "init":
            given = producer if version >= 3 else {}
            request = schema(22, version).InitProducerIdRequest(
                transactional_id=self.name, transaction_timeout=timedelta(milliseconds=more[2]), **given
            )
            answer = self.connection.call(request)
            return [answer.error_code.name, self.given(answer.producer_id), answer.producer_epoch]
        if kind == "end":
            request = schema(26, version).EndTxnRequest(
                transactional_id=self.name, committed=more[2] == "commit", **producer
            )
            answer = self.connection.call(request)
            got = getattr(answer, "producer_id", -1), getattr(answer, "producer_epoch", -1)
            return [answer.error_code.name, self.given(got[0]), got[1]]
        if kind == "offsets":
            request = schema(25, version).AddOffsetsToTxnRequest(
                transactional_id=self.name, group_id=GROUP, **producer
            )
            return [self.connection.call(request).error_code.name]
        return self._add(kind, version, more, producer)

    def _add(self, kind: str, version: int, more: list[Any], producer: dict[str, int]) -> list[Any]:
        module = schema(24, version)
        wanted: dict[str, list[int]] = {}
        for name in more[2].split(","):
            topic, index = PLACES[name]
            wanted.setdefault(topic, []).append(index)
        topics = tuple(
            module.AddPartitionsToTxnTopic(name=topic, partitions=tuple(indexes))
            for topic, indexes in wanted.items()
        )
        if version < 4:
            request = module.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.name,
                v3_and_below_producer_id=producer["producer_id"],
                v3_and_below_producer_epoch=producer["producer_epoch"],
                v3_and_below_topics=topics,
            )
            results = self.connection.call(request).results_by_topic_v3_and_below
        else:
            one = module.AddPartitionsToTxnTransaction(
                transactional_id=self.name, verify_only=kind == "verify", topics=topics, **producer
            )
            request = module.AddPartitionsToTxnRequest(transactions=(one,))
            answer = self.connection.call(request)
            if answer.error_code != ErrorCode.none:
                return [answer.error_code.name] * len(more[2].split(","))
            results = answer.results_by_transaction[0].topic_results
        codes = {
            NAMES[topic.name, one.partition_index]: one.partition_error_code.name
            for topic in results
            for one in topic.results_by_partition
        }
        return [codes[name] for name in more[2].split(",")]

    def see(self) -> list[Any]:
        """Describe the id, once no marker that may come is outstanding."""
        request = schema(65, 0).DescribeTransactionsRequest(transactional_ids=(self.name,))
        deadline = time.monotonic() + 20
        while True:
            (state,) = described(self.connection, request).transaction_states
            if state.error_code != ErrorCode.none:
                return [state.error_code.name]
            places = sorted(NAMES.get((t.topic, p), "o") for t in state.topics for p in t.partitions)
            if not state.transaction_state.startswith("Prepare") or "s0" in places:
                break
            assert time.monotonic() < deadline, state
            time.sleep(0.002)
        if state.transaction_state.startswith("Prepare"):
            time.sleep(0.02)  # the other markers are written meanwhile
            places = ["s0"]
        return [
            state.transaction_state,
            self.given(state.producer_id),
            state.producer_epoch,
            millis(state.transaction_timeout),
            ",".join(places) or "-",
        ]


def described(connection: RawConnection, request: Any) -> Any:
    """kio refuses a start time of -1, so Firn reads this answer."""
    connection.send_frame(encode_request(request, 77))
    return api.decode_response(65, 0, connection.receive_frame())[1]


def asks_about(pid: int, epoch: int) -> Iterator[Ask]:
    """Everything that may be asked of an id with this producer."""
    for version in (1, 5):
        yield "init", version, -1, -1, 60000
    ahead = min(epoch + 1, 32767)
    for given in ((pid, epoch), (pid, epoch - 1), (pid, epoch - 2), (pid, ahead), (pid + 7, epoch)):
        yield "init", 3, *given, 60000
        yield "init", 5, *given, 61000
    yield "init", 5, PREVIOUS_ID, 32766, 60000
    for given in ((pid, epoch), (pid, epoch - 1), (pid, ahead), (pid + 7, epoch)):
        yield "add", 1, *given, "a0"
        yield "add", 3, *given, "a0,b0"
        yield "add", 5, *given, "a0"
        yield "add", 4, *given, "b0,a1"
        yield "verify", 4, *given, "a0"
        yield "verify", 5, *given, "a0,b0"
        yield "offsets", 1, *given
        yield "offsets", 4, *given
        for result in ("commit", "abort"):
            for version in (1, 2, 4, 5):
                yield "end", version, *given, result
    for result in ("commit", "abort"):
        yield "end", 5, PREVIOUS_ID, 32766, result
        yield "end", 5, pid, 32766, result
        yield "end", 5, pid, 32767, result


PATHS: dict[str, list[Ask]] = {
    "new": [],
    "empty": [("init", 5, -1, -1, 60000)],
    "again": [("init", 5, -1, -1, 60000), ("init", 5, 1000, 0, 60000)],
    "ongoing": [("init", 5, -1, -1, 60000), ("add", 3, 1000, 0, "a0")],
    "ongoing-2": [("init", 5, -1, -1, 60000), ("add", 5, 1000, 0, "a0")],
    "committed": [("init", 5, -1, -1, 60000), ("add", 3, 1000, 0, "a0"), ("end", 3, 1000, 0, "commit")],
    "aborted": [("init", 5, -1, -1, 60000), ("add", 3, 1000, 0, "a0"), ("end", 3, 1000, 0, "abort")],
    "committed-2": [("init", 5, -1, -1, 60000), ("add", 5, 1000, 0, "a0"), ("end", 5, 1000, 0, "commit")],
    "aborted-2": [("init", 5, -1, -1, 60000), ("add", 5, 1000, 0, "a0"), ("end", 5, 1000, 0, "abort")],
    "fenced": [("init", 5, -1, -1, 60000), ("add", 3, 1000, 0, "a0"), ("init", 5, -1, -1, 60000)],
    "committing": [("init", 5, -1, -1, 60000), ("add", 3, 1000, 0, "s0,a0"), ("end", 3, 1000, 0, "commit")],
    "aborting": [("init", 5, -1, -1, 60000), ("add", 3, 1000, 0, "s0"), ("end", 3, 1000, 0, "abort")],
    "committing-2": [("init", 5, -1, -1, 60000), ("add", 5, 1000, 0, "s0"), ("end", 5, 1000, 0, "commit")],
    "fencing": [("init", 5, -1, -1, 60000), ("add", 3, 1000, 0, "s0"), ("init", 5, -1, -1, 60000)],
}


def starts() -> list[TransactionMetadata]:
    """First records near the last epoch."""
    found = []
    for epoch in (32765, 32766, 32767):
        for state in (0, 1, 4, 5):
            client = 2 if state in (1, 4) else 0
            found.append(
                TransactionMetadata(
                    FIRST_ID, epoch, 900_000, TransactionState(state),
                    frozenset({("a", 0)}) if state == 1 else frozenset(),
                    start_ms=-1 if state == 0 else time.time_ns() // 1_000_000,
                    updated_ms=time.time_ns() // 1_000_000,
                    previous_producer_id=FIRST_ID, client_version=client,
                )
            )  # fmt: skip
    found += [
        TransactionMetadata(
            FIRST_ID, 0, 900_000, TransactionState(state), start_ms=1,
            updated_ms=time.time_ns() // 1_000_000, previous_producer_id=PREVIOUS_ID, client_version=2,
        )
        for state in (4, 5)
    ]  # fmt: skip
    return found


def walk(asked: Asked, draw: random.Random, steps: int) -> Iterator[tuple[Ask, list[Any], list[Any]]]:
    """Ask for something that makes sense, mostly."""
    pid = epoch = -1
    earlier: list[tuple[int, int]] = [(-1, -1)]
    for _ in range(steps):
        given = draw.choices(
            ((pid, epoch), (pid, epoch - 1), draw.choice(earlier), (pid, epoch + 1), (pid + 7, epoch)),
            (12, 3, 2, 1, 1),
        )[0]
        kind = draw.choices(("init", "add", "offsets", "end", "verify"), (4, 7, 2, 8, 1))[0]
        if pid == -1:
            kind = "init"
        ask: Ask
        if kind == "init":
            given = draw.choice((given, (-1, -1)))
            version = draw.randint(0, 5)
            if version < 3 or -1 in given or given[1] < -1:
                given = (-1, -1)
            ask = (kind, version, *given, draw.choice((60000, 60000, 50000, 0, 900001)))
        elif kind == "add":
            ask = (kind, draw.randint(0, 5), *given, draw.choice(("a0", "a0", "a1", "a0,b0", "b0")))
        elif kind == "verify":
            ask = (kind, draw.randint(4, 5), *given, draw.choice(("a0", "a0,b0")))
        elif kind == "offsets":
            ask = (kind, draw.randint(0, 4), *given)
        else:
            ask = (kind, draw.randint(0, 5), *given, draw.choice(("commit", "abort")))
        answer = asked.ask(ask)
        seen = asked.see()
        yield ask, answer, seen
        if len(seen) > 1 and (pid, epoch) != (seen[1], seen[2]):
            pid, epoch = seen[1], seen[2]
            earlier.append((pid, epoch))


def set_level(connection: RawConnection, level: int) -> None:
    module = schema(57, 1)
    update = module.FeatureUpdateKey(feature="transaction.version", max_version_level=level, upgrade_type=1)
    down = module.FeatureUpdateKey(feature="transaction.version", max_version_level=level, upgrade_type=2)
    for one in (update, down):
        answer = connection.call(
            module.UpdateFeaturesRequest(
                timeout=timedelta(seconds=10), feature_updates=(one,), validate_only=False
            )
        )
        code = answer.results[0].error_code if answer.results else answer.error_code
        if code == ErrorCode.none:
            return
    raise SystemExit(f"{level}: {answer}")


def create(connection: RawConnection, name: str, replicas: dict[int, int]) -> None:
    module = schema(19, 7)
    topic = module.CreatableTopic(
        name=name, num_partitions=-1, replication_factor=-1, configs=(),
        assignments=tuple(
            module.CreatableReplicaAssignment(partition_index=index, broker_ids=(broker,))
            for index, broker in replicas.items()
        ),
    )  # fmt: skip
    request = module.CreateTopicsRequest(topics=(topic,), timeout=timedelta(seconds=10), validate_only=False)
    answer = connection.call(request)
    assert answer.topics[0].error_code == ErrorCode.none, answer


class Lines:
    """Sequences as they are written."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.count = 0

    def begin(self, level: int, start: bytes) -> None:
        self.count += 1
        self.lines.append(f"# {level} {start.hex() or '-'}\n")

    def play(self, one: Asked, asks: Iterable[Ask]) -> None:
        """Ask, until Kafka finds at level 0 that it cannot write what a client of TV2 wants: its coordinator
        takes the id for pending from then on."""
        for ask in asks:
            answer = one.ask(ask)
            self.step(ask, answer, one.see())
            if answer[0] == "unsupported_version":
                break

    def step(self, ask: Ask, answer: list[Any], seen: list[Any]) -> None:
        parts = (" ".join(str(part) for part in one) for one in (ask, answer, seen))
        self.lines.append(" | ".join(parts) + "\n")


def second_broker(folder: Path, node: KafkaNode) -> subprocess.Popen[bytes]:
    """A broker beside the first one."""
    config = folder / "second.properties"
    voters = next(
        line for line in node._config.read_text().splitlines() if line.startswith("controller.quorum.voters")
    )
    config.write_text(
        f"process.roles=broker\nnode.id=2\n{voters}\nlisteners=PLAINTEXT://127.0.0.1:{free_port()}\n"
        "controller.listener.names=CONTROLLER\ninter.broker.listener.name=PLAINTEXT\n"
        f"listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
        f"log.dirs={folder / 'data2'}\n"
    )
    command = [str(RUNNER), "storage", "format", "-t", CLUSTER_ID, "-c", str(config)]
    subprocess.run(command, check=True, capture_output=True, env=node._env)
    log = (folder / "second.log").open("ab")
    return subprocess.Popen([str(RUNNER), "server", str(config)], stdout=log, stderr=log, env=node._env)


SETTINGS = {
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.min.isr": "1",
    "offsets.topic.num.partitions": "1",
    "broker.session.timeout.ms": "3600000",
    "group.initial.rebalance.delay.ms": "0",
}


def main() -> None:
    folder = Path(sys.argv[1])
    node = KafkaNode(folder, SETTINGS, heap="700m")
    second = None
    try:
        connection = RawConnection(node.bootstrap, timeout=60)
        find_coordinators(connection)
        create(connection, "a", {0: 1, 1: 1})
        create(connection, "b", {0: 1})
        second = second_broker(folder, node)
        wait_until("the second broker", lambda: _created(connection), 90, 1)
        crafted = craft(connection)
        node.stop()
        node.start()
        connection = RawConnection(node.bootstrap, timeout=60)
        wait_until("the coordinator", lambda: _loaded(connection), 60)
        time.sleep(5)
        second.send_signal(signal.SIGSTOP)
        files, draw = Lines(), random.Random(36)
        for level in (0, 1, 2):
            set_level(connection, level)
            time.sleep(1)
            ask_on_paths(connection, files, level)
            ask_of_crafted(connection, files, level, crafted)
            ask_at_random(connection, files, level, draw)
            print(level, files.count, flush=True)
        text = "".join(files.lines).encode()
        (HERE / "answers.txt.gz").write_bytes(gzip.compress(text, mtime=0))
    finally:
        if second is not None and second.poll() is None:
            second.kill()
            second.wait()
        node.stop()


def find_coordinators(connection: RawConnection) -> None:
    """Have the internal topics made while there is one broker."""
    for kind, key in ((1, "s"), (0, GROUP)):
        request = schema(10, 4).FindCoordinatorRequest(key_type=kind, coordinator_keys=(key,))
        wait_until("a coordinator", partial(_has_coordinator, connection, request), 60)


def some(level: int, asks: Iterable[Ask], step: int) -> list[Ask]:
    """At level 1, which differs from 0 in the records alone, a part is enough."""
    return list(asks)[:: step if level == 1 else 1]


def craft(connection: RawConnection) -> dict[str, bytes]:
    """Write first records, each for an id of its own; return their values as the tests have them."""
    crafted: dict[str, bytes] = {}
    values: list[tuple[bytes, bytes]] = []
    for level in (0, 1, 2):
        for n, one in enumerate(starts()):
            for m in range(len(some(level, asks_about(FIRST_ID, one.producer_epoch), 7))):
                name, version = f"c{level}-{n}-{m}", 0 if level == 0 else 1
                real = dict(zip((FIRST_ID, PREVIOUS_ID), real_ids(len(values)), strict=True))
                own = one._replace(
                    producer_id=real[FIRST_ID], previous_producer_id=real[one.previous_producer_id]
                )
                crafted[name] = encode_value(one, version)
                values.append((encode_key(name), encode_value(own, version)))
    for at in range(0, len(values), 500):
        _produce_as_admin(connection, _batch(values[at : at + 500]))
    return crafted


def ask_on_paths(connection: RawConnection, files: Lines, level: int) -> None:
    for path, asks in PATHS.items():
        if level == 0 and path.endswith("-2"):
            continue
        pid, epoch = 1000, 0
        probe = Asked(connection, f"p{level}-{path}")
        for ask in asks:
            probe.ask(ask)
            _, pid, epoch, *_ = probe.see()
        for m, last in enumerate(some(level, asks_about(pid, epoch), 3)):
            files.begin(level, b"")
            files.play(Asked(connection, f"q{level}-{path}-{m}"), (*asks, last, last))


def ask_of_crafted(connection: RawConnection, files: Lines, level: int, crafted: dict[str, bytes]) -> None:
    names = list(crafted)
    for n, start in enumerate(starts()):
        for m, last in enumerate(some(level, asks_about(FIRST_ID, start.producer_epoch), 7)):
            name = f"c{level}-{n}-{m}"
            files.begin(level, crafted[name])
            files.play(Asked(connection, name, names.index(name)), (last, last))


def ask_at_random(connection: RawConnection, files: Lines, level: int, draw: random.Random) -> None:
    for n in range(20 if level == 1 else 60):
        files.begin(level, b"")
        for step in walk(Asked(connection, f"w{level}-{n}"), draw, 12):
            files.step(*step)
            if step[1][0] == "unsupported_version":
                break


def _has_coordinator(connection: RawConnection, request: Any) -> bool:
    return bool(connection.call(request).coordinators[0].error_code == ErrorCode.none)


def _created(connection: RawConnection) -> bool:
    try:
        create(connection, "stuck", {0: 2})
    except AssertionError:
        return False
    return True


def _loaded(connection: RawConnection) -> bool:
    request = schema(65, 0).DescribeTransactionsRequest(transactional_ids=("c0-0-0",))
    return bool(described(connection, request).transaction_states[0].error_code == ErrorCode.none)


def _batch(rows: list[tuple[bytes, bytes]]) -> bytes:
    builder = BatchBuilder(0, CompressionType.NONE)
    builder.add_all(time.time_ns() // 1_000_000, rows)
    return bytes(builder.build())


def _produce_as_admin(connection: RawConnection, records: bytes) -> None:
    request = produce_request("__transaction_state", 0, records)
    connection.send_frame(encode_request(request, 99, "__admin_client"))
    answer = decode_response(request, connection.receive_frame())
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.none, answer


if __name__ == "__main__":
    main()
