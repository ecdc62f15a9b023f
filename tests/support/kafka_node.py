"""Apache Kafka's own broker as a child process: one KRaft node of both roles."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.kafka_tools import RUNNER
from tests.support.processes import end, free_port, wait_until
from tests.support.requirements import KAFKA_LIBS

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"


class KafkaNode:
    """Apache Kafka 4.3.1 on a fresh folder; its logs lie in `data`. `stop()` ends it cleanly, `kill()` is
    `kill -9`."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        *,
        heap: str = "1g",
        secured: Sequence[str] = (),
    ) -> None:
        """`secured` are protocols (``SASL_SSL``) that get a listener each, of that name: see `addresses`."""
        folder.mkdir(parents=True)
        self.addresses = {name: f"127.0.0.1:{free_port()}" for name in secured}
        port, controller = free_port(), free_port()
        self.bootstrap = f"127.0.0.1:{port}"
        self.data = folder / "data"
        lines = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": _listeners(self.addresses, port) + f",CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": _listeners(self.addresses, port),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": ",".join(
                ("CONTROLLER:PLAINTEXT", "PLAINTEXT:PLAINTEXT", *(f"{name}:{name}" for name in secured))
            ),
            "log.dirs": str(self.data),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            **(settings or {}),
        }
        config = folder / "server.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        self._env = {**os.environ, "KAFKA_HEAP": heap, "KAFKA_LIBS": str(KAFKA_LIBS)}
        self._config, self._port = config, port
        command = [str(RUNNER), "storage", "format", "-t", CLUSTER_ID, "-c", str(config)]
        subprocess.run(command, check=True, capture_output=True, env=self._env)
        self.start()

    def start(self, seconds: float = 60) -> None:
        """Again, after `stop()` or `kill()`: on the same folder and port."""
        command = [str(RUNNER), "server", str(self._config)]
        started = time.monotonic()
        with self._config.with_name("server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=self._env)
        self.pid = self._process.pid
        wait_until("Apache Kafka to listen", lambda: _listens(self._port), seconds)
        self.seconds_to_ready = time.monotonic() - started

    def stop(self, seconds: float = 30) -> None:
        end(self._process, seconds)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def _listeners(addresses: Mapping[str, str], port: int) -> str:
    more = (f"{name}://{address}" for name, address in addresses.items())
    return ",".join((f"PLAINTEXT://127.0.0.1:{port}", *more))


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
