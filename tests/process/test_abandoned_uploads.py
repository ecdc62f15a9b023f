"""The node's side of ending abandoned uploads, with real child processes; the other is in tests/contract."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from service.base.errors import StorageError
from service.config.settings import BrokerConfig
from service.node.cold_tier import _uploads_child
from service.node.multipart_cleanup import UploadsChild
from tests.support.processes import REPOSITORY, wait_until
from tests.support.stores import CREDENTIALS

URL = "s3://bucket/prefix"


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


async def everything(keys: Sequence[str]) -> Sequence[str]:
    return keys


def script(text: str) -> UploadsChild:
    """A child of another kind: `text` is what it runs."""
    return UploadsChild(URL, None, None, command=(sys.executable, "-c", text))


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_store_that_is_not_there_is_a_storage_error() -> None:
    child = UploadsChild(URL, "http://127.0.0.1:9", "us-east-1")
    with pytest.raises(StorageError, match=r"127\.0\.0\.1:9"):
        asyncio.run(child(0, everything))


def test_a_url_that_is_none_is_said_in_one_line() -> None:
    with pytest.raises(StorageError, match="not the URL of an S3 bucket") as e:
        asyncio.run(UploadsChild("s3:///prefix", None, None)(0, everything))
    assert "Traceback" not in str(e.value)


def test_a_store_that_hangs_costs_the_time_limit_and_leaves_no_process(tmp_path: Path) -> None:
    text = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    child = UploadsChild(URL, None, None, time_limit_s=1.0, command=(sys.executable, "-c", text))
    with pytest.raises(StorageError, match="no answer within 1 s"):
        asyncio.run(child(0, everything))
    assert not is_there(int((tmp_path / "pid").read_text()))


def test_a_node_that_stops_takes_the_child_along() -> None:
    """The store accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"

        async def scenario() -> tuple[list[int], list[int]]:
            before = children()
            task = asyncio.create_task(UploadsChild(URL, endpoint, "us-east-1")(0, everything))
            await asyncio.to_thread(silent.accept)  # the child has asked
            running = sorted(set(children()) - set(before))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return running, [pid for pid in running if is_there(pid)]

        running, left = asyncio.run(scenario())
    assert len(running) == 1
    assert left == []


def children() -> list[int]:
    lists = Path("/proc/self/task").glob("*/children")
    return [int(pid) for one in lists for pid in one.read_text().split()]


def test_a_child_whose_node_was_killed_aborts_nothing_and_ends(tmp_path: Path) -> None:
    """The pipe that the answer would come through ends with the node."""
    stub = (
        "import sys\n"
        "from service.remote.stores import abandoned_uploads as module\n"
        "class Uploads:\n"
        "    def older_than(self, age_ms): return [module.UnfinishedUpload('a', 'b', 1)]\n"
        f"    def abort(self, uploads): open({str(tmp_path / 'aborted')!r}, 'w').write(str(list(uploads)))\n"
        "module.open_uploads = lambda *arguments: Uploads()\n"
        "sys.exit(module.main())\n"
    )
    node = subprocess.Popen(
        [sys.executable, "-c", NODE, stub],
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    with node:
        assert node.stdout is not None
        pid = int(node.stdout.readline())
        node.kill()
    wait_until("the child to end", lambda: not is_there(pid))
    assert (tmp_path / "aborted").read_text() == "[]"


NODE = """
import asyncio, os, sys
from pathlib import Path
from service.node.multipart_cleanup import UploadsChild

async def choose(keys):
    [pid] = [pid for one in Path("/proc/self/task").glob("*/children") for pid in one.read_text().split()]
    print(pid, flush=True)
    while True:
        pass

command = (sys.executable, "-c", sys.argv[1])
asyncio.run(UploadsChild("s3://bucket", None, None, command=command)(0, choose))
"""


@pytest.mark.parametrize(
    "text",
    [
        "print('hello')",
        "print('[1]')",
        "print('{}')",
        "pass",
        "print('{\"keys\": []}')",
        "raise SystemExit(3)",
    ],
)
def test_a_child_that_talks_nonsense_is_a_storage_error(text: str) -> None:
    with pytest.raises(StorageError, match="abandoned uploads"):
        asyncio.run(script(text)(0, everything))


def test_a_child_that_cannot_be_started_is_a_storage_error() -> None:
    child = UploadsChild(URL, None, None, command=("/no/such/program",))
    with pytest.raises(StorageError, match="cannot start"):
        asyncio.run(child(0, everything))


def test_credentials_are_never_arguments() -> None:
    text = (
        "import json, os, sys; print(json.dumps({'keys': sys.argv})); sys.stdin.readline();"
        "print(json.dumps({'aborted': int(os.environ['AWS_SECRET_ACCESS_KEY'] == %r)}))"
    )
    secret = CREDENTIALS["AWS_SECRET_ACCESS_KEY"]
    seen: list[str] = []

    async def choose(arguments: Sequence[str]) -> list[str]:
        seen.extend(arguments)
        return []

    assert asyncio.run(script(text % secret)(5, choose)) == 1
    assert seen == ["-c", URL, "--older-than-ms", "5"]


@pytest.mark.parametrize(
    ("url", "has_child"), [("s3://bucket/p", True), ("file:///tmp/p", False), ("gs://bucket/p", False)]
)
def test_only_s3_has_uploads_to_look_for(url: str, has_child: bool) -> None:
    config = BrokerConfig.from_properties({"log.dirs": "/tmp/nowhere", "firn.remote.url": url})
    assert (_uploads_child(config) is not None) == has_child


def test_the_node_does_not_load_boto3() -> None:
    text = "import sys, service.node.cold_tier; print(sorted({'boto3', 'botocore'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
