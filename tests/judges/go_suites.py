"""Suites of Go modules: franz-go's kgo over TLS, and sarama's functional tests behind toxiproxy."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.judges.clusters import ADMIN, SCRAM, Plan, SecuredCluster
from tests.judges.suites import FAILED, PASSED, SKIPPED, States, Suite, run
from tests.support.processes import end, free_port, wait_until
from tests.support.quorums import Program

_ENDED: Final = re.compile(r"^\s*--- (PASS|FAIL|SKIP): (\S+) \(", re.MULTILINE)
_WORDS: Final = {"PASS": PASSED, "FAIL": FAILED, "SKIP": SKIPPED}
_MODULES: Final = {"GOFLAGS": "-mod=mod -buildvcs=false"}


class GoSuite(Suite):
    """Tests of a package of a Go module, compiled once."""

    module: str
    package: str
    tags = ""
    skipped = ""
    """expression of the names of tests that cannot run so"""

    @property
    def binary(self) -> Path:
        return self.source / "suite.test"

    def fetch(self) -> None:
        if self.binary.exists():
            return
        self.source.mkdir(parents=True, exist_ok=True)
        log = self.source / "build.log"
        (self.source / "go.mod").write_text("module judges\ngo 1.25\n")
        run(["go", "get", "-t", f"{self.package}@{self.version}"], self.source, log, _MODULES, must=True)
        tags = ["-tags", self.tags] if self.tags else []
        run(
            ["go", "test", "-c", *tags, "-o", self.binary, self.package],
            self.source,
            log,
            _MODULES,
            must=True,
        )

    def folder_of_package(self) -> Path:
        """Where the tests' own data are."""
        told = subprocess.run(
            ["go", "list", "-f", "{{.Dir}}", self.package],
            cwd=self.source, check=True, capture_output=True, text=True,
        )  # fmt: skip
        return Path(told.stdout.strip())

    def ask(self, program: Program, folder: Path, env: Mapping[str, str], minutes: int) -> States:
        """Run all tests; one that ended twice is as it ended last."""
        log = folder / "suite.log"
        options = ["-test.v", "-test.parallel", "4", "-test.timeout", f"{minutes}m"]
        # What cannot pass against Firn would wait for minutes.
        names = [self.skipped, *(self.differs if program is Program.FIRN else ())]
        if any(names):
            options += ["-test.skip", "|".join(name for name in names if name)]
        run([self.binary, *options], self.folder_of_package(), log, env, seconds=60 * minutes + 60)
        text = log.read_text(errors="replace")
        states = {name: _WORDS[how] for how, name in _ENDED.findall(text)}
        for name in re.findall(r"^=== RUN\s+(\S+)$", text, re.MULTILINE):
            states.setdefault(name, FAILED)
        return states


class FranzGo(GoSuite):
    """kgo's tests, all connections of which are TLS with certificates, and its logins by SCRAM."""

    name = "franz-go"
    version = "v1.22.3"
    package = "github.com/twmb/franz-go/pkg/kgo"
    # It has a dialer of its own, which the client refuses beside TLS, and uses what it was not given.
    skipped = "^TestIssue769$"
    differs: Mapping[str, str] = {
        "TestTxnEtl": "transactions are not served",
        "TestShareGroup": "share groups are not served",
    }

    def judge(self, program: Program, folder: Path) -> States:
        plan = Plan(scram=((SCRAM[0], *ADMIN),), settings={"listener.name.ssl.ssl.client.auth": "required"})
        with SecuredCluster(folder / "cluster", program, plan).start() as cluster:
            client = cluster.ca.issue("client", hosts=())
            (folder / "client.pem").write_text(client.chain_pem)
            (folder / "client.key").write_text(client.key_pem())
            own = f"cert:{folder / 'client.pem'},key:{folder / 'client.key'}"
            env = {
                "KGO_SEEDS": cluster.bootstrap("SSL"),
                "KGO_TEST_TLS": f"ca:{cluster.ca_pem},{own}",
                "KGO_TEST_SCRAM": ":".join(ADMIN),
                "KGO_TEST_SCRAM_SEEDS": cluster.bootstrap("SASL_PLAINTEXT"),
                "KGO_TEST_RECORDS": "50000",
                "KGO_LOG_LEVEL": "none",
            }
            return self.ask(program, folder, env, 30)


_PROXIED: Final = range(29091, 29096)


class Sarama(GoSuite):
    """Functional tests on five brokers, each behind a proxy; they know neither TLS nor logins.

    So the cluster is secured below them: nodes among themselves, and the authorizer.
    """

    name = "sarama"
    version = "v1.61.1"
    package = "github.com/IBM/sarama"
    tags = "functional"
    proxy = "github.com/Shopify/toxiproxy/v2/cmd/server@v2.5.0"

    def fetch(self) -> None:
        super().fetch()
        if not (self.source / "server").exists():
            env = {"GOBIN": str(self.source)}
            run(["go", "install", self.proxy], self.source, self.source / "build.log", env, must=True)

    def judge(self, program: Program, folder: Path) -> States:
        plan = Plan(
            brokers=5,
            advertised={"PLAINTEXT": list(_PROXIED)},
            settings={"auto.create.topics.enable": "false", "default.replication.factor": "2"},
        )
        with SecuredCluster(folder / "cluster", program, plan) as cluster, self._proxies(cluster) as address:
            cluster.start()
            return self.ask(program, folder, {"TOXIPROXY_ADDR": address, "KAFKA_VERSION": "4.3.1"}, 20)

    @contextmanager
    def _proxies(self, cluster: SecuredCluster) -> Iterator[str]:
        port = free_port()
        address = f"http://127.0.0.1:{port}"
        with (cluster.folder / "proxy.log").open("ab") as log:
            process = subprocess.Popen(
                [self.source / "server", "-host", "127.0.0.1", "-port", str(port)], stdout=log, stderr=log
            )
        try:
            wait_until("the proxy to answer", lambda: _answers(f"{address}/version"))
            routes = [
                {"name": f"kafka{at}", "listen": f"127.0.0.1:{told}", "upstream": f"127.0.0.1:{real}"}
                for at, (told, real) in enumerate(zip(_PROXIED, cluster.ports["PLAINTEXT"], strict=True), 1)
            ]
            _answers(f"{address}/populate", json.dumps(routes).encode())
            yield address
        finally:
            end(process)


def _answers(url: str, body: bytes | None = None) -> bool:
    try:
        with urllib.request.urlopen(url, body, timeout=5):
            return True
    except OSError:
        return False
