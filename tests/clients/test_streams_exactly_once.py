"""Kafka Streams' own smoke test with exactly_once_v2: instances are killed, and each result is right.

Its driver produces half a minute of records and checks the aggregates of all topologies; with
`exactly_once_v2` each must be what it computes by itself.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.clients.conftest import Broker
from tests.support.kafka_tools import RUNNER, environment
from tests.support.processes import end
from tests.support.requirements import streams_tests

pytestmark = [pytest.mark.java, pytest.mark.thorough]
TOPICS = (
    "data", "echo", "max", "min", "min-suppressed", "min-raw", "sum", "sws-raw", "sws-suppressed", "dif",
    "cnt", "avg", "tagg", "fk", "wcnt",
)  # fmt: skip


class SmokeTest:
    """A process of the smoke test: its driver (`run`) or an instance of its application (`process`)."""

    def __init__(self, folder: Path, name: str, command: str, settings: Mapping[str, object]) -> None:
        path = folder / f"{name}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self._command = [str(RUNNER), "org.apache.kafka.streams.tests.StreamsSmokeTest", str(path), command]
        self._log = folder / f"{name}.log"
        self.start()

    def start(self) -> None:
        env = {**os.environ, **environment(), "KAFKA_CLASSES": streams_tests(), "KAFKA_HEAP": "512m"}
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, env=env)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def log(self) -> str:
        return self._log.read_text(errors="replace")


def test_every_aggregate_is_right_though_instances_are_killed(broker: Broker, tmp_path: Path) -> None:
    for name in TOPICS:
        broker.admin.create(name, 5)

    def settings(number: int) -> dict[str, object]:
        return {
            "bootstrap.servers": broker.bootstrap,
            "state.dir": tmp_path / f"state-{number}",
            "processing.guarantee": "exactly_once_v2",
            "replication.factor": 1,
            "consumer.session.timeout.ms": 6000,
            "consumer.heartbeat.interval.ms": 500,
            "producer.transaction.timeout.ms": 10_000,
        }

    instances = [SmokeTest(tmp_path, f"instance-{number}", "process", settings(number)) for number in (1, 2)]
    driver = SmokeTest(tmp_path, "driver", "run", settings(0))
    try:
        for number in range(4):
            time.sleep(8)
            assert driver.process.poll() is None or number, driver.log()[-3000:]
            victim = instances[number % 2]
            assert victim.process.poll() is None, victim.log()[-3000:]
            victim.kill()
            victim.start()
        assert driver.process.wait(240) == 0, driver.log()[-3000:]
        told = driver.log()
        assert "ALL-RECORDS-DELIVERED" in told, told[-3000:]
        assert "SUCCESS" in told.splitlines()[-30:] or "\nSUCCESS\n" in told, told[-3000:]
    finally:
        for one in (driver, *instances):
            end(one.process, 30)
