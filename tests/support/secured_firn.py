"""A node with a listener of SASL_PLAINTEXT: alice logs in by PLAIN, bob by SCRAM, as in secured_kafka."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import FIRN, end, free_port, wait_until

_MODULES = "org.apache.kafka.common.security"
_SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")


class SecuredFirn:
    """A running node; `addresses` by listener's name."""

    def __init__(self, folder: Path, settings: Mapping[str, str], pem: Path | None = None) -> None:
        """`pem`: as `secured_kafka.make_pem` writes it; with it there is a listener of SASL_SSL, too."""
        folder.mkdir(parents=True)
        secured = ("SASL_PLAINTEXT",) if pem is None else ("SASL_PLAINTEXT", "SASL_SSL")
        ports = {name: free_port() for name in ("PLAINTEXT", *secured)}
        self.addresses = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
        self.bootstrap = self.addresses["PLAINTEXT"]
        lines = {
            "listeners": ",".join(f"{name}://{address}" for name, address in self.addresses.items()),
            "log.dirs": str(folder / "data"),
            "firn.disk.watermarks.enable": "false",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            **settings,
        }
        for listener in secured:
            jaas = f"listener.name.{listener.lower()}.{{}}.sasl.jaas.config"
            lines[jaas.format("plain")] = f'{_MODULES}.plain.PlainLoginModule required user_alice="secret";'
            for one in _SCRAM:
                lines[jaas.format(one.lower())] = f"{_MODULES}.scram.ScramLoginModule required;"
        if pem is not None:
            lines |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(pem / "both.pem")}
        config, password = folder / "server.properties", folder / "pencil"
        config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        password.write_text("pencil\n")
        users = [f"--add-scram={one}=[name=bob,password=@{password}]" for one in _SCRAM]
        command = [str(FIRN), "format", "-c", str(config), "-t", "4L6g3nShT-eMCtK--X86sw", *users]
        subprocess.run(command, check=True, capture_output=True)
        self.log_path = folder / "node.log"
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen([str(FIRN), "server", str(config)], stdout=log, stderr=log)
        wait_until("the node to serve", lambda: "ready: " in self.log_path.read_text(), 30)

    def stop(self) -> None:
        end(self.process, 30)


@contextmanager
def secured_firn(
    folder: Path, settings: Mapping[str, str] | None = None, pem: Path | None = None
) -> Iterator[SecuredFirn]:
    """Run a node on a fresh folder."""
    node = SecuredFirn(folder, settings or {}, pem)
    try:
        yield node
    finally:
        node.stop()
