"""Secrets of a `firn server` process: brought by config providers, in nothing that it prints or writes."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from pathlib import Path

from service.client.blocking_client import BlockingClient
from service.wire.api import ApiKey, request_module
from tests.support.processes import REPOSITORY, end, first_line, free_port

SECRET = "geheim-4711"
PROVIDERS = """
config.providers=file,dir,env
config.providers.file.class=org.apache.kafka.common.config.provider.FileConfigProvider
config.providers.dir.class=org.apache.kafka.common.config.provider.DirectoryConfigProvider
config.providers.env.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider
config.providers.env.param.allowlist.pattern=FIRN_.*
ssl.key.password=${file:%(folder)s/secrets.properties:key}
delegation.token.secret.key=${file:%(folder)s/secrets.properties:key}
ssl.keystore.key=${dir:%(folder)s:key.pem}
listener.name.plaintext.plain.sasl.jaas.config=x.PlainLoginModule required password="${env:FIRN_PASSWORD}";
broker.rack=${env:FIRN_RACK}
"""


def started(folder: Path, **settings: str) -> subprocess.Popen[str]:
    """Start a server in `folder` that takes its secrets from there; it prints into `folder/printed`."""
    (folder / "secrets.properties").write_text(f"key={SECRET}\n")
    (folder / "key.pem").write_text(SECRET)
    text = PROVIDERS % {"folder": folder} + "".join(f"{key}={value}\n" for key, value in settings.items())
    (folder / "server.properties").write_text(text)
    with (folder / "printed").open("w") as printed:
        return subprocess.Popen(
            [sys.executable, "-m", "service.cli.main", "server", "server.properties", "--log-level", "debug"],
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": str(REPOSITORY),
                "FIRN_PASSWORD": SECRET,
                "FIRN_RACK": "rack-7",
            },
            stdout=subprocess.PIPE,
            stderr=printed,
            text=True,
        )


def described(port: int) -> str:
    module = request_module(ApiKey.DESCRIBE_CONFIGS)
    node = module.DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
    with BlockingClient("127.0.0.1", port, timeout_s=20) as client:
        answer = client.request(
            ApiKey.DESCRIBE_CONFIGS, module.DescribeConfigsRequest(resources=(node,), include_synonyms=True)
        )
    (result,) = answer.results
    assert {one.name: one.value for one in result.configs}["broker.rack"] == "rack-7"
    assert sum(one.is_sensitive and one.config_source == 4 for one in result.configs) == 4
    return repr(answer)


def test_a_server_tells_its_secrets_to_nobody(tmp_path: Path) -> None:
    port, http = free_port(), free_port()
    process = started(
        tmp_path,
        **{
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "log.dirs": str(tmp_path / "data"),
            "firn.http.listener": f"127.0.0.1:{http}",
        },
    )
    try:
        told = [first_line(process, 60)]
        assert told[0].startswith("ready: ")
        told.append(described(port))
        for path in ("metrics", "readyz", "version", "turns"):
            with urllib.request.urlopen(f"http://127.0.0.1:{http}/{path}", timeout=20) as answer:
                told.append(answer.read().decode())
        told.append(Path(f"/proc/{process.pid}/cmdline").read_text())
    finally:
        end(process)
        assert process.stdout is not None
        process.stdout.close()
    told.append((tmp_path / "printed").read_text())
    assert "ssl.key.password" in told[-1]  # the complaint that no listener has a use for it
    assert not [text for text in told if SECRET in text]
    assert not [path for path in (tmp_path / "data").rglob("*") if path.is_file() and _has(path)]


def test_a_start_that_fails_tells_no_secret(tmp_path: Path) -> None:
    process = started(
        tmp_path,
        **{"log.dirs": str(tmp_path / "data"), "num.partitions": "many", "ssl.keystore.pasword": SECRET},
    )
    assert process.wait(60) == 1
    assert process.stdout is not None
    process.stdout.close()
    printed = (tmp_path / "printed").read_text()
    assert "ssl.keystore.pasword: unknown configuration key; did you mean 'ssl.keystore.password'?" in printed
    assert "num.partitions" in printed
    assert SECRET not in printed


def _has(path: Path) -> bool:
    return SECRET.encode() in path.read_bytes()
