"""Object stores for tests: moto and versitygw as child processes, a folder."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.processes import PYTHON, REPOSITORY, child, first_line, free_port, wait_until

ACCESS, SECRET = "firntest", "firntestsecret"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": ACCESS,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_EC2_METADATA_DISABLED": "true",
}

# The parent's end of stdin is what keeps it up: it cannot outlive the tests.
MOTO = """
import logging, sys
logging.getLogger("werkzeug").setLevel(logging.ERROR)
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print("%s:%d" % server.get_host_and_port(), flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Store:
    """Store for a node's cold tier: its URL, and the settings and environment that reach it."""

    url: str
    settings: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    endpoint: str | None = None

    @property
    def node_settings(self) -> dict[str, str]:
        return {"firn.remote.url": self.url, **self.settings}

    def objects(self) -> dict[str, int]:
        """Key below the prefix -> size."""
        if self.endpoint is None:
            root = Path(self.url.removeprefix("file://"))
            found: dict[str, int] = {}
            for folder, _, names in os.walk(root):
                for path in (Path(folder, name) for name in names):
                    with contextlib.suppress(FileNotFoundError):  # renamed or unlinked since it was listed
                        found[str(path.relative_to(root))] = path.stat().st_size
            return found
        bucket, _, prefix = self.url.removeprefix("s3://").partition("/")
        pages = (
            s3_client(self.endpoint).get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        )
        listed = [entry for page in pages for entry in page.get("Contents", ())]
        return {entry["Key"].removeprefix(prefix).lstrip("/"): entry["Size"] for entry in listed}

    def read(self, key: str) -> bytes:
        if self.endpoint is None:
            return (Path(self.url.removeprefix("file://")) / key).read_bytes()
        bucket, _, prefix = self.url.removeprefix("s3://").partition("/")
        data: bytes = s3_client(self.endpoint).get_object(Bucket=bucket, Key=f"{prefix}/{key}")["Body"].read()
        return data

    def through(self, endpoint: str) -> Store:
        """The same bucket by another way, say a proxy."""
        return Store(
            self.url, {**self.settings, "firn.remote.s3.endpoint": endpoint}, self.env, self.endpoint
        )


def folder_store(folder: Path) -> Store:
    folder.mkdir(parents=True, exist_ok=True)
    return Store(f"file://{folder}")


@cache
def s3_client(endpoint: str, attempts: int = 10) -> Any:
    """Return the client of an S3 server, for all threads: making one takes longer than most of its calls."""
    import boto3  # half a second, which tests without a store need not spend
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=ACCESS,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": attempts}),
    )


def new_bucket(endpoint: str, name: str) -> Store:
    """A fresh bucket, with a prefix in it."""
    s3_client(endpoint).create_bucket(Bucket=name)
    return Store(f"s3://{name}/log", {"firn.remote.s3.endpoint": endpoint}, CREDENTIALS, endpoint)


@contextlib.contextmanager
def moto_server(folder: Path) -> Iterator[str]:
    """moto's S3 in a process of its own; yields its URL."""
    with child([str(PYTHON), "-c", MOTO], folder / "moto.log", CREDENTIALS) as process:
        while ":" not in (line := first_line(process, 30)) or line.startswith("Starting"):
            assert line, (folder / "moto.log").read_text()
        yield f"http://{line}"


def versitygw_binary() -> Path | None:
    """The S3 gateway on a folder that `make fetch-tools` builds."""
    for path in (os.environ.get("FIRN_VERSITYGW"), REPOSITORY / ".cache" / "versitygw-v1.8.0" / "versitygw"):
        if path and Path(path).is_file():
            return Path(path)
    return None


@contextlib.contextmanager
def versitygw_server(folder: Path) -> Iterator[str]:
    """versitygw over a folder; yields its URL."""
    binary = versitygw_binary()
    assert binary is not None
    port = free_port()
    backend = folder / "versitygw"
    backend.mkdir(parents=True, exist_ok=True)
    log = folder / "versitygw.log"
    command = [str(binary), "--port", f"127.0.0.1:{port}", "--access", ACCESS, "--secret", SECRET, "--quiet"]
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*command, "posix", str(backend)], stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        wait_until(f"versitygw to listen ({log})", lambda: _listens(port))
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
