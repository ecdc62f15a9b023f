"""`localstack/up`: from nothing to a record that is archived within a minute; `down` leaves nothing."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.clients import Confluent, Row
from tests.support.processes import REPOSITORY, wait_until
from tests.support.requirements import need_localstack
from tests.support.stores import Store
from tests.support.tiers import LATEST_TIERED, offset

LIMIT_S = 60
FREE_PORTS = ("--s3-port", "0", "--port", "0", "--http-port", "0")


def call(name: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "FIRN_"))
    }
    return subprocess.run(
        [REPOSITORY / "localstack" / name, "--dir", str(folder), *options],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "cloud"
    done = call("down", tmp_path / "cloud")
    assert done.returncode == 0, done.stderr


def exports(text: str) -> dict[str, str]:
    """What a shell would export of it."""
    pairs = (shlex.split(line)[1].partition("=") for line in text.splitlines())
    return {name: value for name, _, value in pairs}


def archived(folder: Path, *options: str) -> tuple[float, dict[str, str]]:
    """Bring everything up, produce a record and wait until it is in the bucket: the seconds it took."""
    began = time.monotonic()
    done = call("up", folder, *FREE_PORTS, *options)
    assert done.returncode == 0, done.stderr
    said = exports(done.stdout)
    bootstrap = said["FIRN_BOOTSTRAP"]
    command = [
        sys.executable,
        "-m",
        "service.cli.main",
        "topic",
        "create",
        "first",
        "--bootstrap-server",
        bootstrap,
    ]
    configs = ("remote.storage.enable=true", "internal.segment.bytes=1000", "retention.ms=-1")
    tiered = [word for config in configs for word in ("--config", config)]
    subprocess.run([*command, *tiered], cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL)
    rows = [Row(0, 1_700_000_000_000 + n, None, bytes(400)) for n in range(5)]
    for row in rows:
        Confluent().produce(bootstrap, "first", [row])
    wait_until(
        "the first record to be archived",
        lambda: offset(bootstrap, "first", 0, LATEST_TIERED) >= 0,
        seconds=LIMIT_S - (time.monotonic() - began),
    )
    return time.monotonic() - began, said


def look_into(said: dict[str, str]) -> Store:
    return Store(said["FIRN_URL"], endpoint=said["AWS_ENDPOINT_URL"])


@pytest.mark.parametrize("server", ["moto", "localstack"])
def test_a_local_cloud_archives_a_record_from_scratch(
    folder: Path, server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if server == "localstack":
        need_localstack()
    seconds, said = archived(folder, *(["--moto"] if server == "moto" else []))
    with capsys.disabled():
        print(f"\nlocalstack/up with {server}: a record produced and archived after {seconds:.1f} s")
    assert any(key.endswith(".seg") for key in look_into(said).objects())
    again = call("up", folder)
    assert again.returncode == 0
    assert "it is up already" in again.stderr
    assert exports(again.stdout) == said
    down = call("down", folder)
    assert "ended: the node, " in down.stderr
    assert {path.name for path in folder.iterdir()} == {"node.log", "s3.log"}


def test_a_port_that_is_taken_is_said_and_nothing_stays(folder: Path, moto_endpoint: str) -> None:
    port = moto_endpoint.rpartition(":")[2]
    done = call("up", folder, "--moto", "--s3-port", port)
    assert done.returncode == 1
    assert f"127.0.0.1 port {port}: Address already in use" in done.stderr
    assert "--s3-port" in done.stderr
    assert "Traceback" not in done.stderr
    assert "nothing of it is up" in call("down", folder).stderr


@pytest.mark.parametrize("option", ["--port", "--http-port"])
def test_a_port_of_the_node_that_is_taken_is_said_before_anything_starts(folder: Path, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:  # takes connections and says nothing
        port = str(taken.getsockname()[1])
        done = call("up", folder, "--moto", *FREE_PORTS, option, port)
    assert done.returncode == 1
    assert f"127.0.0.1 port {port}: Address already in use" in done.stderr
    assert "nothing of it is up" in call("down", folder).stderr


def killed_while_it_waits(*arguments: str) -> int:
    """`up` or `run`, killed between the start of its server and the server's first answer; its process id."""
    code = (
        "import os, sys; from localstack import cloud; "
        "cloud.wait_for = lambda *_: (print(os.getpid(), flush=True), os.kill(os.getpid(), 9)); "
        "cloud.main(sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == -9, done.stderr
    return int(done.stdout)


def test_up_that_was_killed_leaves_nothing_that_down_does_not_know(folder: Path) -> None:
    killed_while_it_waits("up", "--dir", str(folder), "--moto", *FREE_PORTS)
    assert "ended: moto" in call("down", folder).stderr
    assert "nothing of it is up" in call("down", folder).stderr


def test_a_run_that_was_killed_is_ended_by_the_next(folder: Path) -> None:
    killed_while_it_waits("run", "--dir", str(folder), "--moto", "true")
    (left,) = folder.glob("run-*")
    assert call("run", folder, "--moto", "true").returncode == 0
    assert not left.exists()
    killed_while_it_waits("run", "--dir", str(folder), "--moto", "true")
    assert "ended: moto" in call("down", folder).stderr


def test_two_at_a_time_bring_one_up(folder: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: call("up", folder, "--moto", *FREE_PORTS), range(2)))
    assert [done.returncode for done in both] == [0, 0], both
    assert exports(both[0].stdout) == exports(both[1].stdout)
    assert sum("it is up already" in done.stderr for done in both) == 1


def test_a_node_that_does_not_start_takes_the_rest_along(folder: Path) -> None:
    done = call("up", folder, "--moto", *FREE_PORTS, "--set", "log.segmnt.bytes=1")
    assert done.returncode == 1
    assert "did you mean 'log.segment.bytes'?" in done.stderr
    assert "nothing of it is up" in call("down", folder).stderr


def test_a_dead_process_of_the_local_cloud_is_restarted(folder: Path) -> None:
    said = exports(call("up", folder, "--moto", *FREE_PORTS).stdout)
    node = json.loads((folder / "state.json").read_text())["processes"][1]["pid"]
    os.kill(node, 9)
    again = exports(call("up", folder, "--moto", *FREE_PORTS).stdout)
    assert again["FIRN_BOOTSTRAP"] != said["FIRN_BOOTSTRAP"]
    wait_until("the new node to claim the new bucket", look_into(again).objects)


def test_a_command_runs_with_a_server_up_and_its_exit_code_is_kept(tmp_path: Path) -> None:
    code = (
        "import os, sys, urllib.request; "
        "urllib.request.urlopen(os.environ['FIRN_LOCALSTACK'] + '/moto-api/'); sys.exit(7)"
    )
    done = call("run", tmp_path / "cloud", "--moto", sys.executable, "-c", code)
    assert done.returncode == 7, done.stderr
    assert not list((tmp_path / "cloud").iterdir())
