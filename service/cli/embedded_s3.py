"""moto's S3 server as a process of its own: `python -m service.cli.embedded_s3 BUCKET`.

It listens on a free port of 127.0.0.1, creates the bucket, prints the endpoint as its only line, and ends at
the end of its standard input, so it never outlives its parent. Objects live in memory and in unnamed
temporary files.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
import sys
from types import TracebackType

from service.base.errors import ConfigError, StorageError
from service.base.extras import install_extra

# moto accepts any credentials; these keep real ones from being sent to it
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "firn-dev",
    "AWS_SECRET_ACCESS_KEY": "firn-dev",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
FOREIGN = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")


class EmbeddedS3:
    """Process of the server. Entering the context starts it, without waiting until it serves."""

    def __init__(self, bucket: str) -> None:
        self.bucket = bucket
        self._endpoint = ""
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> EmbeddedS3:
        if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
            raise ConfigError(f"the embedded S3 needs moto: {install_extra('dev')}")
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "service.cli.embedded_s3", self.bucket],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
            start_new_session=True,  # Ctrl-C is for the node; this ends after it
        )
        return self

    @property
    def endpoint(self) -> str:
        """Endpoint; waits until the server serves. Raises `StorageError` if it does not start."""
        if not self._endpoint:
            assert self._process is not None
            assert self._process.stdout is not None
            self._endpoint = self._process.stdout.readline().strip()
            if not self._endpoint:
                raise StorageError(f"the embedded S3 did not start (exit code {self._process.wait()})")
        return self._endpoint

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def environment() -> dict[str, str]:
    """Return this process's environment with the embedded server's credentials in place of others."""
    kept = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    return {**kept, **CREDENTIALS}


def _serve(bucket: str) -> None:
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=bucket)
    print(endpoint, flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    _serve(sys.argv[1])
