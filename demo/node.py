"""A node on a free port with an S3 beside it, gone with everything they made when the context is left.

What `firn dev` is, but in two processes that end one by one: the archive outlives its node here.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from service.cli.dev import BUCKET, BUCKET_URL, DEV_SETTINGS
from service.cli.embedded_s3 import EmbeddedS3

COMMAND = (sys.executable, "-m", "service.cli.main", "server", "--log-level", "warning")
CACHE_BYTES = 32 << 20
"""A third of the data: what is read twice comes from S3 twice."""


@dataclass(frozen=True, slots=True)
class Dev:
    """Where things are."""

    bootstrap: str
    s3_endpoint: str
    bucket: str
    process: subprocess.Popen[str]
    http: str

    def stop_node(self) -> None:
        """End the node and leave the S3 as it is."""
        _end(self.process)


@contextmanager
def node_with_s3() -> Iterator[Dev]:
    """Start an S3 and a node; both end with the context, however it is left."""
    with (
        tempfile.TemporaryFile("w+", prefix="firn-demo-log-") as log,
        tempfile.TemporaryDirectory(prefix="firn-demo-") as folder,
        EmbeddedS3(BUCKET) as s3,
    ):
        settings = {
            **DEV_SETTINGS,
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": folder,
            "firn.http.listener": "127.0.0.1:0",
            "firn.remote.url": BUCKET_URL,
            "firn.remote.s3.endpoint": s3.endpoint,
            "firn.remote.cache.bytes": str(CACHE_BYTES),
        }
        options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        process = subprocess.Popen([*COMMAND, *options], stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            yield Dev(
                _wait_for(process, "ready"), s3.endpoint, BUCKET_URL, process, _wait_for(process, "http")
            )
        except BaseException:
            log.seek(0)
            if text := log.read()[-4000:]:
                print(f"--- the node's log\n{text}---", file=sys.stderr)
            raise
        finally:
            _end(process)


def _wait_for(process: subprocess.Popen[str], what: str) -> str:
    """The address in the line that the node begins with `what`."""
    assert process.stdout is not None
    for line in process.stdout:
        word, _, rest = line.strip().partition(": ")
        if word == what:
            return rest.rpartition(" ")[2]
    raise SystemExit(f"the node did not start (exit code {process.wait()})")


@contextmanager
def console(dev: Dev) -> Iterator[str]:
    """The console of the demo's node; yields its address."""
    command = [
        sys.executable, "-m", "service.cli.main", "console", "--bootstrap", dev.bootstrap, "--port", "0",
        "--metrics", f"1={dev.http}", "--survey-every", "15", "--log-level", "error",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield _wait_for(process, "console")
    finally:
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
