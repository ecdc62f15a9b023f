"""`localstack/up`: from nothing to a record that is archived within a minute; `down` leaves nothing."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
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
def test_from_nothing_to_an_archived_record(
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
    assert "something listens" in done.stderr
    assert "Traceback" not in done.stderr
    assert "nothing of it is up" in call("down", folder).stderr


def test_a_node_that_does_not_start_takes_the_rest_along(folder: Path) -> None:
    done = call("up", folder, "--moto", *FREE_PORTS, "--set", "log.segmnt.bytes=1")
    assert done.returncode == 1
    assert "did you mean 'log.segment.bytes'?" in done.stderr
    assert "nothing of it is up" in call("down", folder).stderr


def test_what_has_died_is_started_anew(folder: Path) -> None:
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
