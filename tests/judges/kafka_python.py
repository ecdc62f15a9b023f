"""kafka-python's integration files of SASL and SSL, of its source distribution on PyPI.

They start brokers themselves, by scripts of an installation of Apache Kafka: they get a folder of scripts
that start either server. What the distribution lacks of their support is here in our own words.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from tests.judges.suites import FAILED, PASSED, SKIPPED, States, Suite, run
from tests.support.processes import PYTHON, REPOSITORY
from tests.support.quorums import Program
from tests.support.requirements import KAFKA_LIBS

FILES: Final = ("test_sasl_integration.py", "test_ssl_integration.py")
_TEMPLATES: Final = {
    "kafka.properties": """process.roles=broker,controller
node.id={broker_id}
controller.quorum.bootstrap.servers={controller_bootstrap_host}:{controller_port}
controller.listener.names=CONTROLLER
listeners={transport}://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners={transport}://{host}:{port},CONTROLLER://{host}:{controller_port}
inter.broker.listener.name={transport}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
log.dirs={tmp_dir}/logs-of-the-node
num.partitions={partitions}
offsets.topic.replication.factor=1
group.initial.rebalance.delay.ms=0
{sasl_config}
{ssl_config}
{acl_config}
""",
    "kafka_server_jaas.conf": "KafkaServer {{\n  {jaas_config}\n}};\n",
    "sasl_command.conf": "security.protocol={transport}\nsasl.mechanism={sasl_mechanism}\n"
    "sasl.jaas.config={jaas_config}\n",
    "log4j.properties": "# none: tests/java has its own\n",
}


class KafkaPython(Suite):
    """Logins by PLAIN and SCRAM, administration, records there and back; TLS."""

    name = "kafka-python"
    version = "3.0.12"

    @property
    def _root(self) -> Path:
        return self.source / f"kafka_python-{self.version}"

    def fetch(self) -> None:
        if self._root.exists():
            return
        shutil.rmtree(self.source, ignore_errors=True)
        self.source.mkdir(parents=True)
        log = self.source / "build.log"
        options = ["-q", "--no-deps", "--no-build-isolation", "--no-binary", ":all:"]
        pip = [str(PYTHON), "-m", "pip", "download", *options]
        run([*pip, f"kafka-python=={self.version}"], self.source, log, must=True)
        run(["tar", "xzf", f"kafka_python-{self.version}.tar.gz"], self.source, log, must=True)
        run([PYTHON, "-m", "venv", self.source / "venv"], self.source, log, must=True)
        run(
            [
                self.source / "venv/bin/pip",
                "install",
                "-q",
                "pytest",
                "pytest-mock",
                "pytest-timeout",
                "py",
                self._root,
            ],
            self.source,
            log,
            must=True,
        )
        shutil.copy(Path(__file__).with_name("spawned_service.py"), self._root / "test" / "service.py")
        (self._root / "test" / "__init__.py").touch()
        resources = self._root / "servers" / "resources" / "default"
        resources.mkdir(parents=True)
        for name, text in _TEMPLATES.items():
            (resources / name).write_text(text)

    def judge(self, program: Program, folder: Path) -> States:
        scripts, report = folder / "kafka" / "bin", folder / "report.xml"
        scripts.mkdir(parents=True)
        for tool in ("run-class", "storage", "topics", "configs"):
            script = scripts / f"kafka-{tool}.sh"
            script.write_text(
                f'#!/bin/sh\nexec {PYTHON} -m tests.judges.as_kafka {program.value} {tool} "$@"\n'
            )
            script.chmod(0o755)
        env = {
            "KAFKA_VERSION": "4.3.1",
            "KAFKA_ROOT": str(scripts.parent),
            "PROJECT_ROOT": str(self._root),
            "PYTHONPATH": f"{self._root}:{REPOSITORY}",
            "KAFKA_LIBS": str(KAFKA_LIBS),
            "KAFKA_LOG_LEVEL": "INFO",
        }
        files = [self._root / "test" / "integration" / name for name in FILES]
        command = [str(self.source / "venv/bin/pytest"), "-q", f"--junitxml={report}", *map(str, files)]
        run(command, self._root, folder / "suite.log", env)
        return _states(report)


def _states(report: Path) -> States:
    states: States = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        name = re.sub(r".*\.", "", case.get("classname", "")) + "::" + case.get("name", "")
        is_bad = kinds & {"failure", "error"}
        states[name] = FAILED if is_bad else SKIPPED if "skipped" in kinds else PASSED
    return states
