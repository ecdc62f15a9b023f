"""Clients beside confluent-kafka in storms: the Java producer and kafka-python write, and others read back.

The Java producer is that of Apache Kafka's own `VerifiableProducer`, which writes 0, 1, 2 … and prints what
became of each. It gives retries up; its configuration file here sets them to the client's default again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import kafka
from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.support.clients import AioKafka, KafkaPython
from tests.support.kafka_tools import RUNNER, environment, tool
from tests.support.processes import end, wait_until
from tests.support.storms import VALUE_BYTES, Ack, Place, Written

_DEFAULTS = ("retries=2147483647", "enable.idempotence=true")
_PRODUCER = "org.apache.kafka.tools.VerifiableProducer"
_ENDED = 143
"""A Java program's status after SIGTERM, which it goes on from until all is decided."""

# kafka-python tells of each broker that is gone, and of each try again.
logging.getLogger("kafka").setLevel(logging.CRITICAL)


class _OfJava(Written):
    """One partition of those that a `JavaProducer` writes to."""

    def __init__(self, place: Place, producer: JavaProducer) -> None:
        super().__init__(place)
        self._producer = producer

    def stop(self, seconds: float) -> int:
        """Of the first partition: how many records of the producer are not decided."""
        left = self._producer.stop(seconds)
        return left if self.place[1] == 0 else 0


class JavaProducer:
    """Writes to all partitions of a topic, by its own choice; `all` is what became of it."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, per_s: int, folder: Path) -> None:
        self.all = [_OfJava((topic, index), self) for index in range(partitions)]
        self._lock = threading.Lock()
        self._is_stopping = False
        self._left: int | None = None
        self._sent = 0
        self._dropped = 0
        self._log_path = folder / f"java-{topic}.log"
        config = folder / f"java-{topic}.properties"
        config.write_text("\n".join(_DEFAULTS) + "\n")
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    RUNNER, _PRODUCER, "--bootstrap-server", bootstrap, "--topic", topic,
                    "--throughput", str(per_s), "--command-config", config,
                ],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True, env=environment(),
            )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if line.startswith("{"):
                    self._take(json.loads(line))

    def _take(self, event: Mapping[str, Any]) -> None:
        what, now_s = event["name"], time.monotonic()
        if what == "producer_send_success":
            self.all[event["partition"]].acks.append(Ack(int(event["value"]), event["offset"], now_s, now_s))
        elif what == "producer_send_error":
            if self._is_stopping and "closed" in str(event["message"]):
                self._dropped += 1  # it had not begun with that
            else:
                why = f"{event['exception']}: {event['message']}"
                self.all[0].refused.append((int(event["value"]), why))
        elif what == "tool_data":
            self._sent = event["sent"]

    def stop(self, seconds: float) -> int:
        """How many records are not decided in time; who asks again waits for the same."""
        with self._lock:
            if self._left is None:
                self._left = self._end(seconds)
            return self._left

    def _end(self, seconds: float) -> int:
        self._is_stopping = True
        if self._process.poll() is None:
            self._process.terminate()
        try:
            code = self._process.wait(max(seconds, 0.01))
        except subprocess.TimeoutExpired:
            end(self._process, 0.01)
            return 1  # or more
        self._reader.join(30)
        assert code == _ENDED, f"the Java producer left with {code}: {self._log_path.read_text()[-2000:]}"
        decided = sum(len(one.acks) + len(one.refused) for one in self.all) + self._dropped
        return self._sent - decided


class PythonWriter(Written):
    """kafka-python's producer, idempotent as it is by default, to one partition."""

    def __init__(self, bootstrap: str, place: Place, every_s: float) -> None:
        super().__init__(place)
        self._every_s = every_s
        self._over = threading.Event()
        self._undecided = 0
        self._lock = threading.Lock()
        self._producer = kafka.KafkaProducer(bootstrap_servers=bootstrap)
        assert self._producer.config["enable_idempotence"]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        topic, partition = self.place
        number = 0
        while not self._over.wait(self._every_s):
            produced_s = time.monotonic()
            with self._lock:
                self._undecided += 1
            try:
                future = self._producer.send(topic, b"%0*d" % (VALUE_BYTES, number), partition=partition)
            except kafka.errors.KafkaTimeoutError:
                with self._lock:
                    self._undecided -= 1
                continue  # it had no room for it, or knew of no partition: it was not begun with
            future.add_callback(partial(self._acked, number, produced_s))
            future.add_errback(partial(self._failed, number))
            number += 1

    def _acked(self, number: int, produced_s: float, told: Any) -> None:
        with self._lock:
            self._undecided -= 1
            self.acks.append(Ack(number, told.offset, produced_s, time.monotonic()))

    def _failed(self, number: int, error: BaseException) -> None:
        with self._lock:
            self._undecided -= 1
            self.refused.append((number, repr(error)))

    def stop(self, seconds: float) -> int:
        self._over.set()
        self._thread.join(90)
        until_s = time.monotonic() + seconds
        while self._undecided and time.monotonic() < until_s:
            time.sleep(0.05)
        left = self._undecided
        with contextlib.suppress(kafka.errors.KafkaTimeoutError):  # how many are left is told
            self._producer.close(0 if left else 5)
        return left


# -- reading back

Reader = Callable[[str, Place, int], list[int]]
"""(bootstrap, place, end) -> the numbers of all records of a partition"""


def _with_aiokafka(bootstrap: str, place: Place, end: int) -> list[int]:
    return [int(one.value or b"-1") for one in AioKafka().read(bootstrap, *place, 0, end)]


def _with_kafka_python(bootstrap: str, place: Place, end: int) -> list[int]:
    return [int(one.value or b"-1") for one in KafkaPython().read(bootstrap, *place, 0, end)]


def _with_java(bootstrap: str, place: Place, end: int) -> list[int]:
    topic, partition = place
    said = tool(
        "console-consumer", "--bootstrap-server", bootstrap, "--topic", topic, "--partition", str(partition),
        "--offset", "earliest", "--max-messages", str(end), "--timeout-ms", "30000", seconds=120,
    )  # fmt: skip
    return [int(line) for line in said.splitlines()]


READERS: Mapping[str, Reader] = {
    "aiokafka": _with_aiokafka,
    "kafka-python": _with_kafka_python,
    "Java": _with_java,
}


def check_others_read(bootstrap: str, written: Written, name: str) -> int:
    """Check that this client reads the same as `Writers.check_read`; return the number of records."""
    expected = [ack.number for ack in sorted(written.acks, key=lambda one: one.offset)]
    found = READERS[name](bootstrap, written.place, len(expected)) if expected else []
    assert found == expected, f"{written.place} as {name} reads it: {len(found)} of {len(expected)}"
    return len(found)


_BROKERS_GONE = (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT)


class Watcher:
    """Reads partitions from their starts while the storm goes on: what it has seen must stay so."""

    def __init__(self, bootstrap: str, places: list[Place]) -> None:
        self.seen: dict[Place, dict[int, int]] = {place: {} for place in places}
        self.wrong: list[str] = []
        self._over = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "watcher",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "log_level": 2,
                "error_cb": lambda error: None,  # that brokers die is no news
            }
        )
        self._consumer.assign([TopicPartition(*place, 0) for place in places])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            for one in self._consumer.consume(1000, 0.2):
                error, place = one.error(), (one.topic() or "", one.partition() or 0)
                if error is not None:
                    if not error.retriable() and error.code() not in _BROKERS_GONE:
                        self.wrong.append(f"{place}: {error}")
                    continue
                seen, offset = self.seen[place], one.offset() or 0
                if seen and offset != len(seen):
                    self.wrong.append(f"{place}: at {offset} after {len(seen) - 1}")
                seen[offset] = int(one.value() or b"-1")

    def check(self, written: list[Written], seconds: float = 60) -> int:
        """All that was acknowledged comes in time, at its place, and nothing else came; how many records."""
        ours = [one for one in written if one.place in self.seen]
        wait_until(
            "the watcher to have seen all",
            lambda: self.wrong or all(len(self.seen[one.place]) >= len(one.acks) for one in ours),
            seconds,
        )
        self.close()
        assert not self.wrong, self.wrong[:5]
        for one in ours:
            acked = {ack.offset: ack.number for ack in one.acks}
            seen = self.seen[one.place]
            other = {at: (number, acked.get(at)) for at, number in seen.items() if acked.get(at) != number}
            assert not other, f"{one.place}: seen, and acknowledged as: {list(other.items())[:5]}"
        return sum(map(len, self.seen.values()))

    def close(self) -> None:
        if not self._over.is_set():
            self._over.set()
            self._thread.join(30)
            self._consumer.close()
