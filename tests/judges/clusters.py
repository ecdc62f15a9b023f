"""Secured clusters for judges: one controller and three brokers, all of Firn or all of Apache Kafka.

The same properties for both: nodes know each other by TLS and logins, an authorizer allows what nothing is
said about (`allow.everyone.if.no.acl.found`), and clients have a listener of each protocol.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Self

from confluent_kafka.admin import AdminClient

from tests.support.certificates import Authority
from tests.support.issuers import ALLOWED
from tests.support.kafka_tools import RUNNER
from tests.support.processes import FIRN, end, free_port, wait_until
from tests.support.quorums import FOR_FIRN, Program
from tests.support.requirements import KAFKA_LIBS

CLUSTER_ID: Final = "4L6g3nShT-eMCtK--X86sw"
CONTROLLER_ID: Final = 100
LISTENERS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""Those of clients, named after their protocols."""
ADMIN: Final = ("admin", "admin-secret")
"""Super user, and who the nodes are among themselves."""
SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_MODULES: Final = "org.apache.kafka.common.security"


@dataclass(frozen=True)
class Plan:
    """What a suite wants of its cluster, beyond what all get."""

    plain: Mapping[str, str] = field(default_factory=dict)
    """passwords of users of PLAIN"""
    scram: Sequence[tuple[str, str, str]] = ()
    """mechanism, name, password"""
    settings: Mapping[str, str] = field(default_factory=dict)
    """beside what all get; `{folder}` is the cluster's"""
    listeners: Mapping[str, str] = field(default_factory=dict)
    """protocols of listeners more, by name"""
    ports: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """of listeners that need them on fixed ones, one a broker"""
    advertised: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """ports that clients are told instead: of proxies"""
    brokers: int = 3


class SecuredCluster:
    """Running nodes, for a `with`; `bootstrap(listener)` is for clients."""

    def __init__(self, folder: Path, program: Program, plan: Plan) -> None:
        self.folder, self.program, self.plan = folder, program, plan
        folder.mkdir(parents=True)
        self.ca = Authority()
        self.ca_pem = self.ca.write(folder / "ca.pem")
        self.keys = self.ca.issue("node", kind="rsa").write(folder / "node.pem")
        self.protocols = {"INTERNAL": "SASL_SSL", **{one: one for one in LISTENERS}, **plan.listeners}
        self.ports = {
            name: list(plan.ports.get(name) or (free_port() for _ in range(plan.brokers)))
            for name in self.protocols
        }
        self._quorum = f"127.0.0.1:{free_port()}"
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def bootstrap(self, listener: str) -> str:
        ports = self.plan.advertised.get(listener, self.ports[listener])
        return ",".join(f"localhost:{port}" for port in ports)

    # -- settings

    def _common(self) -> dict[str, str]:
        name, password = ADMIN
        users = "".join(f' user_{who}="{word}"' for who, word in {name: password, **self.plan.plain}.items())
        me = f'required username="{name}" password="{password}"'
        plain = f"{_MODULES}.plain.PlainLoginModule {me}{users};"
        scram = f"{_MODULES}.scram.ScramLoginModule {me};"
        lines = {
            "controller.quorum.voters": f"{CONTROLLER_ID}@{self._quorum}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": ",".join(
                ("CONTROLLER:SASL_SSL", *(f"{name}:{how}" for name, how in self.protocols.items()))
            ),
            "sasl.enabled.mechanisms": ",".join(("PLAIN", *SCRAM)),
            "sasl.mechanism.controller.protocol": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
            "listener.name.controller.plain.sasl.jaas.config": plain,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.keys,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.ca_pem,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{name}",
            "allow.everyone.if.no.acl.found": "true",
        }
        own = {key: word.replace("{folder}", str(self.folder)) for key, word in self.plan.settings.items()}
        return lines | own | self._logins(plain, scram)

    def _logins(self, plain: str, scram: str) -> dict[str, str]:
        lines = {}
        for listener in (name.lower() for name, how in self.protocols.items() if how.startswith("SASL")):
            lines[f"listener.name.{listener}.plain.sasl.jaas.config"] = plain
            for mechanism in SCRAM:
                lines[f"listener.name.{listener}.{mechanism.lower()}.sasl.jaas.config"] = scram
        return lines

    def _controller(self) -> dict[str, str]:
        # It has none of the listeners whose logins the others name.
        lines = {
            key: value
            for key, value in self._common().items()
            if not key.startswith("listener.name.") or key.startswith("listener.name.controller.")
        }
        only = {"listener.name.controller.sasl.enabled.mechanisms": "PLAIN"}
        return lines | only | {"process.roles": "controller", "listeners": f"CONTROLLER://{self._quorum}"}

    def _broker(self, at: int) -> dict[str, str]:
        told = {name: self.plan.advertised.get(name, ports)[at] for name, ports in self.ports.items()}
        copies = str(min(3, self.plan.brokers))
        return self._common() | {
            "process.roles": "broker",
            "broker.rack": f"RACK{at + 1}",
            "inter.broker.listener.name": "INTERNAL",
            "listeners": ",".join(f"{name}://127.0.0.1:{ports[at]}" for name, ports in self.ports.items()),
            "advertised.listeners": ",".join(f"{name}://localhost:{port}" for name, port in told.items()),
            "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
            "offsets.topic.replication.factor": copies,
            "group.initial.rebalance.delay.ms": "0",
            **({} if self.program is Program.FIRN else _of_what_firn_has_not(copies)),
        }

    # -- life

    def _write(self, node_id: int, lines: Mapping[str, str]) -> Path:
        path = self.folder / f"node-{node_id}.properties"
        own = {"node.id": str(node_id), "log.dirs": str(self.folder / f"node-{node_id}")}
        every = {**lines, **own, **(FOR_FIRN if self.program is Program.FIRN else {})}
        path.write_text("".join(f"{key}={value}\n" for key, value in every.items()))
        return path

    def _run(self, tool: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        start = [str(FIRN)] if self.program is Program.FIRN else [str(RUNNER)]
        if self.program is Program.KAFKA and tool[0] == "format":
            start.append("storage")
        env = {**os.environ, "KAFKA_LIBS": str(KAFKA_LIBS), "KAFKA_HEAP": "512m", "KAFKA_LOG_LEVEL": "INFO"}
        if self.program is Program.KAFKA:  # where this is no property of the node, but one of Java
            own = self._common()
            env["JAVA_TOOL_OPTIONS"] = " ".join(f"-D{key}={own[key]}" for key in own if key == ALLOWED)
        with log.open("ab") as out:
            return subprocess.Popen(
                [*start, *tool], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env
            )

    def _format(self, node_id: int, config: Path) -> None:
        users = [(SCRAM[1], *ADMIN), *self.plan.scram] if node_id == CONTROLLER_ID else []
        options = [f"--add-scram={how}=[name={who},password={word}]" for how, who, word in users]
        log = self.folder / "format.log"
        done = self._run(["format", "-c", str(config), "-t", CLUSTER_ID, *options], log)
        assert done.wait(120) == 0, log.read_text()

    def start(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        nodes = {CONTROLLER_ID: self._controller()}
        nodes |= {at + 1: self._broker(at) for at in range(self.plan.brokers)}
        for node_id, lines in nodes.items():
            config = self._write(node_id, lines)
            self._format(node_id, config)
            self._processes[node_id] = self._run(["server", str(config)], self.log(node_id))
        said = "ready: " if self.program is Program.FIRN else "Kafka Server started"
        for node_id, process in self._processes.items():
            log = self.log(node_id)
            wait_until(
                f"node {node_id} to serve ({log})",
                partial(_has_said, process, log, said),
                180,
            )
            assert process.poll() is None, log.read_text()[-4000:]
        client = AdminClient({"bootstrap.servers": self.bootstrap("PLAINTEXT"), "log_level": 0})
        wait_until(
            "all brokers to be known",
            lambda: len(client.list_topics(timeout=30).brokers) == self.plan.brokers,
        )

    def log(self, node_id: int) -> Path:
        return self.folder / f"node-{node_id}.log"

    def complaints(self) -> list[str]:
        """Lines of Firn's logs that tell of a defect."""
        words = ("Traceback", " ERROR ", " CRITICAL ")
        lines = [line for one in self._processes for line in self.log(one).read_text().splitlines()]
        return [line for line in lines if any(word in line for word in words)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for node_id in sorted(self._processes):
            end(self._processes[node_id], 30)


def _has_said(process: subprocess.Popen[bytes], log: Path, words: str) -> bool:
    """Or has ended."""
    return process.poll() is not None or words in log.read_text(errors="replace")


def _of_what_firn_has_not(copies: str) -> dict[str, str]:
    return {
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": "1",
    }
