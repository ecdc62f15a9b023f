"""`firn dev`: a node and an embedded S3 that come and go together and leave nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from service.cli.main import main
from tests.support.clients import Admin, Confluent, by_partition, make_rows
from tests.support.processes import REPOSITORY, end, wait_until


@contextmanager
def dev(
    folder: Path, *options: str, until: str = "ready"
) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """The process once it has said the word `until`, and what it printed; with no console but to wait for."""
    without = () if until == "console" else ("--no-console",)
    # where pytest shows it if the test fails
    process = subprocess.Popen(
        [sys.executable, "-m", "service.cli.main", "dev", "--port", "0", *without, *options],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
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


def nodes(pid: int) -> dict[int, int]:
    """Of `firn dev --nodes`: by node id the process, as its command line tells it."""
    found = {}
    for one in children(pid):
        words = Path(f"/proc/{one}/cmdline").read_text().split("\0")
        ids = [word.partition("=")[2] for word in words if word.startswith("node.id=")]
        if ids:
            found[int(ids[0])] = one
    return found


def group(pid: int) -> list[int]:
    return [pid, *(one for child in children(pid) for one in group(child))]


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_firn_dev_ends_with_its_s3_and_its_data(tmp_path: Path, number: signal.Signals) -> None:
    with dev(tmp_path) as (process, said):
        (s3,) = children(process.pid)
        assert said["bucket"] == "s3://firn/dev"
        assert Path(said["data"]).is_relative_to(tmp_path)
        process.send_signal(number)
        assert process.wait(20) == 0
        assert not is_alive(s3)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
@pytest.mark.parametrize("options", [(), ("--nodes", "3")], ids=["one-node", "three-nodes"])
@pytest.mark.timeout(180)
def test_a_closed_terminal_ends_firn_dev_and_its_data(tmp_path: Path, options: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "service.cli.main", "dev", "--port", "0", *options]
    place, status = tmp_path / "tmp", tmp_path / "status"
    place.mkdir()
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(REPOSITORY)
        os.environ["TMPDIR"] = str(place)
        # As a shell does, it tells the process group again that the terminal is gone.
        script = f"trap 'kill -HUP $!' HUP; {shlex.join(command)} & wait; wait $!; echo $? > {status}"
        os.execvp("bash", ["bash", "-c", script])
    try:
        said = b""
        while b"console: " not in said:
            said += os.read(terminal, 1 << 16)
        started = group(child)
        assert len(list(place.iterdir())) == 1
    finally:
        os.close(terminal)
    os.waitpid(child, 0)
    wait_until("all of them to end", lambda: not any(map(is_alive, started)))
    assert status.read_text() == "0\n"
    assert list(place.iterdir()) == []


def test_s3_and_console_end_with_a_killed_firn_dev(tmp_path: Path) -> None:
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
        for pair in said["to read the bucket"].split()[1:]:
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


@pytest.mark.parametrize("controllers", [3, 1])
@pytest.mark.timeout(180)
def test_three_nodes_are_one_cluster_and_end_together(tmp_path: Path, controllers: int) -> None:
    with dev(tmp_path, "--nodes", "3", "--controllers", str(controllers)) as (process, said):
        assert said["ready"].startswith("nodes 1, 2, 3 on ")
        places = said["ready"].rpartition(" ")[2]
        assert len(set(places.split(","))) == 3
        Admin(places).create("t", 6)
        rows = make_rows(60, 6)
        Confluent().produce(places, "t", rows)
        for partition, expected in by_partition(rows).items():
            found = Confluent().read(places, "t", partition, 0, len(expected))
            assert [one.value for one in found] == [one.value for one in expected]
        started = group(process.pid)
        assert set(nodes(process.pid)) == {1, 2, 3}
        process.terminate()
        began = time.monotonic()
        assert process.wait(60) == 0
        print(f"ended after {time.monotonic() - began:.1f} s")
        wait_until("all of them to end", lambda: not any(map(is_alive, started)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("count", ["1", pytest.param("3", marks=pytest.mark.thorough)])
@pytest.mark.timeout(180)
def test_a_secured_one_lets_in_whom_its_files_name_and_tells_no_secret(tmp_path: Path, count: str) -> None:
    data = tmp_path / "data"
    with dev(tmp_path, "--secure", "--nodes", count, "--dir", str(data), until="console") as (process, said):
        places = said["ready"].rpartition(" ")[2]
        files = {
            user: dict(
                line.split("=", 1) for line in Path(said[f"{user}, for librdkafka"]).read_text().splitlines()
            )
            for user in ("admin", "alice")
        }
        clients = {user: AdminClient({**lines, "bootstrap.servers": places}) for user, lines in files.items()}
        clients["admin"].create_topics([NewTopic("t", 3, int(count))])["t"].result(30)
        assert "t" not in clients["alice"].list_topics(timeout=20).topics
        words = shlex.split(said["to let alice use it"].replace("flights", "t"))
        assert main(words[1:]) == 0
        wait_until("alice to be let in", lambda: "t" in clients["alice"].list_topics(timeout=20).topics)
        with pytest.raises(KafkaException):
            AdminClient({"bootstrap.servers": places}).list_topics(timeout=2)
        with urlopen(said["console"], timeout=30) as answer:
            assert answer.status == 200
        secrets = [lines["sasl.password"] for lines in files.values()]
        for pid in group(process.pid):
            told = Path(f"/proc/{pid}/cmdline").read_text() + Path(f"/proc/{pid}/environ").read_text()
            assert not [one for one in secrets if one in told]


@pytest.mark.timeout(180)
def test_a_node_that_dies_is_named_the_others_go_on_and_the_console_shows_it(tmp_path: Path) -> None:
    with dev(tmp_path, "--nodes", "3", until="console") as (process, said):
        places = said["ready"].rpartition(" ")[2].split(",")
        assert process.stdout is not None
        started = group(process.pid)

        def watched() -> int:
            with urlopen(said["console"], timeout=30) as answer:
                found = re.search(r"metrics of (\d)", answer.read().decode())
            return int(found[1]) if found else 0

        wait_until("the console to show all", lambda: watched() == 3, 60, every=0.5)
        os.kill(nodes(process.pid)[2], signal.SIGKILL)
        line = next(line for line in process.stdout if "ended" in line)
        assert line == "node 2 was ended by SIGKILL; nodes 1, 3 continue\n"
        wait_until("the console to show it", lambda: watched() == 2, 60, every=0.5)
        rest = f"{places[0]},{places[2]}"
        wait_until("a topic to be made", lambda: create(rest, "t"), 60, every=0.5)
        process.kill()
        process.wait()
        wait_until("all of them to end", lambda: not any(map(is_alive, started)), 60)


def create(bootstrap: str, topic: str) -> bool:
    """Whether the topic is there now."""
    admin = Admin(bootstrap)
    with contextlib.suppress(KafkaException, TimeoutError):
        admin.create(topic)
    return topic in admin.topics()
