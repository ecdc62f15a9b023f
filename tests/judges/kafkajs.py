"""kafkajs' tests of logins, TLS and ACLs: of a checkout that is here already, as npm's package has no tests.

`KAFKAJS` names it, with its test dependencies installed. Addresses and users are those its helpers have.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

from tests.judges.clusters import Plan, SecuredCluster
from tests.judges.suites import FAILED, PASSED, SKIPPED, States, Suite, run
from tests.support.quorums import Program

FILES: Final = (
    "src/admin/__tests__/(createAcls|describeAcls|deleteAcls|connection)",
    "src/broker/__tests__/(createAcls|describeAcls|deleteAcls|connect|disconnect|reauthenticate)",
    "src/consumer/__tests__/connection",
    "src/producer/index",
    "src/network/connection",
    "src/cluster/__tests__/connectionPoolBuilder",
    "src/broker/saslAuthenticator",
)
_PLAN: Final = Plan(
    plain={"test": "testtest", "bob": "bobbob", "alice": "alicealice"},
    scram=(
        ("SCRAM-SHA-256", "testscram", "testtestscram=256"),
        ("SCRAM-SHA-512", "testscram", "testtestscram=512"),
    ),
    ports={
        "PLAINTEXT": (9092, 9095, 9098),
        "SSL": (9093, 9096, 9099),
        "SASL_SSL": (9094, 9097, 9100),
    },
    settings={"num.partitions": "2", "default.replication.factor": "2"},
)


class KafkaJs(Suite):
    """Connections of each kind, and administration of ACLs by users who may and may not."""

    name = "kafkajs"
    version = "2.2.4"
    differs: Mapping[str, str] = {
        "src/producer/index.spec.js: Producer transactions": "transactions are not served",
    }
    is_asked_for = True

    @property
    def source(self) -> Path:
        return Path(os.environ["KAFKAJS"])

    def fetch(self) -> None:
        """Look whether it is here."""
        assert (self.source / "node_modules" / ".bin" / "jest").exists(), f"no jest in {self.source}"

    def judge(self, program: Program, folder: Path) -> States:
        with SecuredCluster(folder / "cluster", program, _PLAN).start() as cluster:
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap("PLAINTEXT")})
            for made in admin.create_topics([NewTopic("test-topic-already-exists", 2, 1)]).values():
                made.result(30)
            report = folder / "report.json"
            env = {"KAFKA_VERSION": "2.4", "NODE_ENV": "test", "KAFKAJS_DEBUG_PROTOCOL_BUFFERS": "1"}
            jest = ["node_modules/.bin/jest", "--ci", "--runInBand", "--forceExit", "--no-watchman"]
            pattern = "|".join(FILES)
            options = [
                "--reporters=default",
                "--json",
                f"--outputFile={report}",
                f"--testPathPattern={pattern}",
            ]
            run([*jest, *options], self.source, folder / "suite.log", env)
        return _states(json.loads(report.read_text()), self.source)


def _states(told: Mapping[str, list[dict[str, object]]], source: Path) -> States:
    words = {"passed": PASSED, "failed": FAILED}
    states: States = {}
    for each in told["testResults"]:
        path = str(each["name"]).removeprefix(f"{source.resolve()}/")
        for case in each["assertionResults"]:  # type: ignore[attr-defined]
            states[f"{path}: {case['fullName']}"] = words.get(case["status"], SKIPPED)
    return states
