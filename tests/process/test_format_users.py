"""Users that a directory is formatted with, by either tool, can log in at either server."""

from __future__ import annotations

import base64
import hashlib
import secrets
import subprocess
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from service.base.errors import ConfigError
from service.client.blocking_client import BlockingClient
from service.client.security import Credentials, Security
from service.metadata.features import cluster_features
from tests.support.kafka_tools import RUNNER, tool
from tests.support.processes import FIRN, child, free_port, wait_until
from tests.support.quorums import Program
from tests.support.requirements import KAFKA_LIBS

pytestmark = pytest.mark.java
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
SALT = b"a salt of sixteen"
USERS = {
    "bob": ("SCRAM-SHA-256", "pencil", "password=pencil"),
    "carol": ("SCRAM-SHA-512", "Stift =", 'password="Stift ="'),
    "dave": (
        "SCRAM-SHA-512",
        "stylo",
        f"salt={base64.b64encode(SALT).decode()},iterations=8192,saltedpassword="
        + base64.b64encode(hashlib.pbkdf2_hmac("sha512", b"stylo", SALT, 8192)).decode(),
    ),
}
OPTIONS = [f"--add-scram={how}=[name={name},{words}]" for name, (how, _, words) in USERS.items()]


class Config:
    """A `server.properties` of a node of both roles, for either server."""

    def __init__(self, folder: Path) -> None:
        self.port, controller = free_port(), free_port()
        module = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        lines = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{free_port()},SASL_PLAINTEXT://127.0.0.1:{self.port},"
            f"CONTROLLER://127.0.0.1:{controller}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,"
            "SASL_PLAINTEXT:SASL_PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": module,
            "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": module,
            "log.dirs": str(folder / "data"),
        }
        self.path, self.log = folder / "server.properties", folder / "log"
        self.path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))

    def served_by(self, program: Program) -> AbstractContextManager[Any]:
        command = [str(RUNNER), "server", str(self.path)]
        if program is Program.FIRN:
            command = [str(FIRN), "server", str(self.path), "--set", "firn.disk.watermarks.enable=false"]
        return child(command, self.log, {"KAFKA_LIBS": str(KAFKA_LIBS)})


def log_in(port: int, name: str, password: str) -> None:
    login = Credentials(USERS[name][0], name, password, secrets.token_urlsafe)
    BlockingClient("127.0.0.1", port, security=Security(None, login), timeout_s=10).close()


def answers(port: int, name: str) -> bool:
    """Whether that user's login is taken: a node may listen before it knows its users."""
    try:
        log_in(port, name, USERS[name][1])
    except (ConfigError, OSError):
        return False
    return True


@pytest.mark.parametrize(
    ("formatted_by", "run_by"), [(Program.KAFKA, Program.FIRN), (Program.FIRN, Program.KAFKA)]
)
def test_users_of_a_directory_log_in_at_the_other_server(
    tmp_path: Path, formatted_by: Program, run_by: Program
) -> None:
    config = Config(tmp_path)
    again = ("format", "-t", CLUSTER_ID, "-c", str(config.path), *OPTIONS)
    if formatted_by is Program.KAFKA:
        tool("storage", *again)
    else:
        # a feature of ours is none that Kafka's nodes support: they would refuse themselves
        own = [one.name for one in cluster_features() if one.name.startswith("firn.")]
        subprocess.run([FIRN, *again, *(f"--feature={name}=0" for name in own)], check=True)
    with config.served_by(run_by):
        for name in USERS:
            wait_until(f"{name} to be let in", partial(answers, config.port, name), 60, 0.5)
            with pytest.raises(ConfigError, match=f"refuses the login of {name}"):
                log_in(config.port, name, "wrong")
