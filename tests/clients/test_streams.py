"""Kafka Streams' word count, at least once: instances are killed, threads fail, and each word is counted."""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

import confluent_kafka
import pytest

from tests.clients.conftest import NewTopic
from tests.support.java_clients import java
from tests.support.processes import end, wait_until
from tests.support.requirements import need_kafka_apps

pytestmark = pytest.mark.java
WORDS = (
    "ice",
    "snow",
    "firn",
    "névé",
    "glacier",
    "moraine",
    "serac",
    "crevasse",
    "berg",
    "floe",
    "氷",
    "rime",
)
PARTITIONS = 4


class Instance:
    """A process of the application, of two threads."""

    def __init__(self, number: int, bootstrap: str, name: str, topics: tuple[str, str], folder: Path) -> None:
        settings = {
            "application.id": name,
            "bootstrap.servers": bootstrap,
            "num.stream.threads": 2,
            "state.dir": folder / f"state-{number}",
            "commit.interval.ms": 300,
            "consumer.session.timeout.ms": 6000,
            "consumer.heartbeat.interval.ms": 500,
            "consumer.auto.offset.reset": "earliest",
        }
        self._log = folder / f"instance-{number}.log"
        self._process: subprocess.Popen[str] = java(
            "Words", *topics, *(f"{key}={value}" for key, value in settings.items()), log=self._log
        )
        self.states: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            self.states.extend(line.strip() for line in lines)

    def wait_running(self) -> None:
        def runs() -> bool:
            assert self._process.poll() is None, self._log.read_text()[-2000:]
            return self.states[-1:] == ["RUNNING"]

        wait_until("an instance to run", runs, 60)

    def fail(self) -> None:
        """The thread that takes the next record fails, and is replaced."""
        assert self._process.stdin is not None
        self._process.stdin.write("fail\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        end(self._process, 60)
        self._reader.join(30)
        assert self._process.stdin is not None
        self._process.stdin.close()

    def failures(self) -> int:
        return self._log.read_text().count("as it was told to")


class Lines:
    """Lines of words, written to a topic as long as it is wanted; `counted` is in how many each word is."""

    def __init__(self, bootstrap: str, topic: str, seed: int = 1) -> None:
        print(f"seed {seed}")
        self.counted: Counter[str] = Counter()
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
        self._topic, self._random, self._number = topic, random.Random(seed), 0

    def write(self, count: int) -> None:
        for _ in range(count):
            words = self._random.sample(WORDS, 3)
            self.counted.update(words)
            self._producer.produce(
                self._topic, " ".join((str(self._number), *words)), partition=self._number % PARTITIONS
            )
            self._number += 1
            self._producer.poll(0)
            time.sleep(0.002)
        assert not self._producer.flush(30)


class Counts:
    """The last count of each word in a topic of one partition."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.last: dict[str, int] = {}
        self._consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False}
        )
        self._consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])

    def are(self, expected: Counter[str]) -> bool:
        for one in self._consumer.consume(1000, 0.2):
            assert one.error() is None, one.error()
            self.last[one.key().decode()] = int(one.value())
        return self.last == dict(expected)


def test_words_are_counted_over_killed_instances_and_failed_threads(
    bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    need_kafka_apps()
    topics = new_topic(PARTITIONS), new_topic(1)
    name = f"words-{os.getpid()}-{topics[0]}"
    lines, counts = Lines(bootstrap, topics[0]), Counts(bootstrap, topics[1])
    instances: list[Instance] = []

    def start() -> None:
        instances.append(Instance(len(instances), bootstrap, name, topics, tmp_path))

    try:
        start()
        start()
        lines.write(200)
        wait_until("the words to be counted", lambda: counts.are(lines.counted), 90)
        for one in instances:
            one.wait_running()
        lines.write(100)
        instances[0].kill()
        start()
        lines.write(200)
        instances[1].fail()
        lines.write(100)
        wait_until("the thread to fail", instances[1].failures)
        wait_until("all words to be counted", lambda: counts.are(lines.counted), 90)
    finally:
        for one in instances:
            one.close()
    assert counts.last == dict(lines.counted)
