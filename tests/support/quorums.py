"""Clusters of several real nodes on free ports: laid out and formatted by Firn, each run by either server."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path

from service.base.world import system_world
from service.cli.dev_nodes import DevNode, Plan, agree_on_ports, format_nodes, lay_out
from service.metadata.features import CATALOG_VERSION
from tests.support.kafka_tools import RUNNER
from tests.support.processes import FIRN, end, first_line, wait_until
from tests.support.requirements import KAFKA_LIBS


class Program(Enum):
    """Whose server runs a node."""

    FIRN = "firn"
    KAFKA = "kafka"


FOR_FIRN = {"firn.disk.watermarks.enable": "false"}
FOR_KAFKA = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "share.coordinator.state.topic.replication.factor": "1",
}


class Member:
    """One node of a cluster, on a folder and ports that stay the same over restarts."""

    def __init__(self, node: DevNode, folder: Path, program: Program) -> None:
        self.node_id, self.is_controller = node.node_id, node.is_controller
        self.program = program
        self.folder = folder
        self.data = Path(node.settings["log.dirs"])
        self.bootstrap = node.settings["listeners"].partition(",")[0].partition("://")[2]
        self.settings = {**node.settings, **(FOR_FIRN if program is Program.FIRN else FOR_KAFKA)}
        self.process: subprocess.Popen[str] | None = None
        self.log_path = folder / f"node-{node.node_id}.log"

    def start(self, seconds: float = 60) -> Member:
        """Returns once the node serves: it may need others for that."""
        properties = self.folder / f"node-{self.node_id}.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        own = f"node.id={self.node_id}"
        command = [str(FIRN), "server", str(properties), "--set", own]
        if self.program is Program.KAFKA:
            command = [str(RUNNER), "server", str(properties), "--override", own]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if self.program is Program.FIRN else log,
                stderr=log,
                text=True,
                env={
                    **os.environ,
                    "KAFKA_LIBS": str(KAFKA_LIBS),
                    "KAFKA_HEAP": "512m",
                    "KAFKA_LOG_LEVEL": "INFO",
                },
            )
        if self.program is Program.FIRN:
            line = first_line(self.process, seconds)
            assert line.startswith("ready: "), f"{line!r}; {self.log()}"
        else:
            wait_until(f"{own} to serve; {self.log()}", self._has_started, seconds)
        return self

    def _has_started(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log()
        return "Kafka Server started" in self.log_path.read_text(errors="replace").rpartition("\n\n")[2]

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self._close_pipe()

    def stop(self, seconds: float = 60) -> None:
        """SIGTERM, and SIGKILL where that does not do."""
        if self.process is not None:
            end(self.process, seconds)
            self._close_pipe()

    def _close_pipe(self) -> None:
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()
        with self.log_path.open("a") as log:
            log.write("\n\n")  # what follows is the next run's

    def log(self, lines: int = 40) -> str:
        text = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        return "its log ends:\n" + "\n".join(text.splitlines()[-lines:])


class Cluster:
    """Nodes that are one cluster: the first `controllers` are controllers, too. For a `with`, which ends all.

    `programs`: whose server runs which node; Firn's where nothing is said.
    """

    def __init__(
        self,
        folder: Path,
        nodes: int = 3,
        controllers: int = 3,
        settings: Mapping[str, str] | None = None,
        programs: Mapping[int, Program] | None = None,
    ) -> None:
        world, chosen = system_world(), programs or {}
        ports = agree_on_ports(0, nodes, controllers)
        self.plan: Plan = lay_out(nodes, controllers, ports, folder, world, settings or {})
        # a feature of ours is none that Kafka's nodes support: they would refuse themselves
        format_nodes(self.plan, world, {CATALOG_VERSION: 0} if Program.KAFKA in chosen.values() else {})
        self.members = {
            node.node_id: Member(node, folder, chosen.get(node.node_id, Program.FIRN))
            for node in self.plan.nodes
        }

    @property
    def bootstrap(self) -> str:
        return ",".join(member.bootstrap for member in self.members.values())

    @property
    def bootstrap_controllers(self) -> str:
        return self.plan.nodes[0].settings["controller.quorum.bootstrap.servers"]

    def start(self, node_ids: Iterable[int] | None = None, seconds: float = 60) -> Cluster:
        """All of them, or those: at once, as none may be ready before a majority is there."""
        chosen = [self.members[node_id] for node_id in (self.members if node_ids is None else node_ids)]
        with ThreadPoolExecutor(len(chosen)) as pool:
            for started in [pool.submit(member.start, seconds) for member in chosen]:
                started.result()
        return self

    def stop(self) -> None:
        """Pure brokers first, while there are controllers to move their leaderships."""
        for is_controller in (False, True):
            chosen = [one for one in self.members.values() if one.is_controller is is_controller]
            if chosen:
                with ThreadPoolExecutor(len(chosen)) as pool:
                    list(pool.map(Member.stop, chosen))

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members.values():
            if member.process is not None and member.process.poll() is None:
                member.kill()
