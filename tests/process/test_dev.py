"""`firn dev`: a node and an embedded S3 that come and go together and leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from service.cli.main import main
from tests.support.processes import REPOSITORY, end, wait_until


@contextmanager
def dev(
    folder: Path, *options: str, until: str = "ready"
) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """The process once it has said the word `until`, and what it printed; with no console but to wait for."""
    without = () if until == "console" else ("--no-console",)
    process = subprocess.Popen(
        [sys.executable, "-m", "service.cli.main", "dev", "--port", "0", *without, *options],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    try:
        said: dict[str, str] = {}
        assert process.stdout is not None
        for line in process.stdout:
            word, _, rest = line.strip().partition(": ")
            said[word] = rest
            if word == until:
                break
        yield process, said
    finally:
        end(process)
        if process.stdout is not None:
            process.stdout.close()


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_with_its_s3_and_its_data(tmp_path: Path, number: signal.Signals) -> None:
    with dev(tmp_path) as (process, said):
        (s3,) = children(process.pid)
        assert said["bucket"] == "s3://firn/dev"
        assert Path(said["data"]).is_relative_to(tmp_path)
        process.send_signal(number)
        assert process.wait(20) == 0
        assert not is_alive(s3)
    assert list(tmp_path.iterdir()) == []


def test_its_s3_and_console_do_not_outlive_it_even_when_it_is_killed(tmp_path: Path) -> None:
    with dev(tmp_path, until="console") as (process, said):
        assert said["console"].startswith("http://127.0.0.1:")
        started = children(process.pid)
        assert len(started) == 2
        process.kill()
        process.wait()
        wait_until("the embedded S3 and the console to end", lambda: not any(map(is_alive, started)))


def test_the_tools_look_into_its_bucket_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    with dev(tmp_path, "--dir", str(data), "--set", "num.partitions=2") as (_, said):
        for pair in said["to look into the bucket"].split()[1:]:
            monkeypatch.setenv(*pair.split("=", 1))
        there = ("--bootstrap-server", said["ready"].rpartition(" ")[2])
        assert main(["topic", "create", "t", "--config", "remote.storage.enable=true", *there]) == 0
        capsys.readouterr()
        assert main(["tiers", "t", "--json", *there]) == 0
        tiers = json.loads(capsys.readouterr().out)
        assert [p["cold_objects"] for p in tiers["partitions"]] == [0, 0]
        assert (tiers["url"], tiers["problem"]) == ("s3://firn/dev", None)
        assert main(["dump", "--json", "s3://firn/dev/cluster.json"]) == 0
        assert json.loads(capsys.readouterr().out)["cluster_id"]
        assert main(["dump", "s3://firn/dev/nothing"]) == 1
        assert capsys.readouterr().err == "firn dump: s3://firn/dev/nothing: no such object\n"
        assert main(["fsck", "s3://firn/dev"]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "clean"
    assert (data / "meta.properties").exists()
