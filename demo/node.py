"""`firn dev` as a child process on a free port, gone with everything it made when the context is left."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

COMMAND = (sys.executable, "-m", "service.cli.main", "dev", "--port", "0", "--log-level", "warning")
CACHE_BYTES = 32 << 20
"""A third of the data: what is read twice comes from S3 twice."""


class Dev(NamedTuple):
    """Where things are, as `firn dev` printed it."""

    bootstrap: str
    s3_endpoint: str
    bucket: str


@contextmanager
def firn_dev() -> Iterator[Dev]:
    """Start a node with its embedded S3; both end with the context, however it is left."""
    with tempfile.TemporaryFile("w+", prefix="firn-demo-log-") as log:
        process = subprocess.Popen(
            [*COMMAND, "--set", f"firn.remote.cache.bytes={CACHE_BYTES}"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            yield _wait_until_ready(process)
        except BaseException:
            log.seek(0)
            if text := log.read()[-4000:]:
                print(f"--- the node's log\n{text}---", file=sys.stderr)
            raise
        finally:
            _end(process)


def _wait_until_ready(process: subprocess.Popen[str]) -> Dev:
    assert process.stdout is not None
    said: dict[str, str] = {}
    for line in process.stdout:
        word, _, rest = line.strip().partition(": ")
        said[word] = rest
        if word == "ready":
            return Dev(rest.rpartition(" ")[2], said["s3"], said["bucket"])
    raise SystemExit(f"firn dev did not start (exit code {process.wait()})")


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
