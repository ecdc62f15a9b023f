"""Kafka Connect's distributed workers, and MirrorMaker 2, as child processes."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.kafka_tools import RUNNER, environment
from tests.support.processes import end, free_port, wait_until

_STRING = "org.apache.kafka.connect.storage.StringConverter"


class App:
    """A Java program with a file of settings."""

    def __init__(self, main: str, settings: Mapping[str, object], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "log"
        path = folder / "properties"
        path.write_text("".join(f"{key} = {value}\n" for key, value in settings.items()))
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [RUNNER, main, path],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment(), "KAFKA_HEAP": "384m"},
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        end(self._process, 30)

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]


class Worker(App):
    """One worker of a Connect cluster, which its group's name makes."""

    def __init__(self, bootstrap: str, group: str, replicas: int, folder: Path, **more: object) -> None:
        """`more` are settings, with `_` for `.`."""
        self.port = free_port()
        self.id = f"127.0.0.1:{self.port}"
        stores = ("offset", "config", "status")
        super().__init__(
            "org.apache.kafka.connect.cli.ConnectDistributed",
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "key.converter": _STRING,
                "value.converter": _STRING,
                "listeners": f"http://{self.id}",
                "rest.advertised.host.name": "127.0.0.1",
                "plugin.discovery": "service_load",
                "offset.flush.interval.ms": 500,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 500,
                # how long a worker that is gone is waited for, before others have its tasks
                "scheduled.rebalance.max.delay.ms": 1000,
                "offset.storage.partitions": 2,
                "status.storage.partitions": 2,
                **{f"{one}.storage.topic": f"{group}-{one}" for one in stores},
                **{f"{one}.storage.replication.factor": replicas for one in stores},
                **{key.replace("_", "."): value for key, value in more.items()},
            },
            folder,
        )

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the answer of its REST interface; None for none or an error, as in a rebalance."""
        request = urllib.request.Request(
            f"http://{self.id}/{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return json.load(answer)
        except OSError:  # an HTTPError, too
            return None

    def wait_up(self) -> None:
        def is_up() -> bool:
            assert self.is_running, self.log()
            return self.ask("connectors") is not None

        wait_until("a Connect worker to serve", is_up, 90, 0.3)

    def runs(self, connector: str) -> str:
        """The worker that runs the connector's only task; "" while there is none."""
        status = self.ask(f"connectors/{connector}/status") or {"tasks": []}
        running = [one["worker_id"] for one in status["tasks"] if one["state"] == "RUNNING"]
        return running[0] if len(running) == 1 else ""


class MirrorMaker(App):
    """MirrorMaker 2 between clusters `a` and `b`, both ways."""

    def __init__(self, a: str, b: str, topics: str, groups: str, folder: Path) -> None:
        internal = ("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic")
        stores = ("offset.storage", "config.storage", "status.storage")
        super().__init__(
            "org.apache.kafka.connect.mirror.MirrorMaker",
            {
                "clusters": "a, b",
                "a.bootstrap.servers": a,
                "b.bootstrap.servers": b,
                "a->b.enabled": "true",
                "b->a.enabled": "true",
                "topics": topics,
                "groups": groups,
                "replication.factor": 1,
                **{f"{one}.replication.factor": 1 for one in (*internal, *stores)},
                "tasks.max": 2,
                "plugin.discovery": "service_load",
                "sync.group.offsets.enabled": "true",
                "refresh.topics.interval.seconds": 2,
                "refresh.groups.interval.seconds": 2,
                "sync.topic.configs.interval.seconds": 2,
                "sync.group.offsets.interval.seconds": 1,
                "emit.checkpoints.interval.seconds": 1,
                "offset.flush.interval.ms": 500,
                "offset.lag.max": 0,
                "dedicated.mode.enable.internal.rest": "false",
            },
            folder,
        )
