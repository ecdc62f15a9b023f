"""`firn server` as a process of its own: what it loads, what it says, how it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from tests.support.clients import Admin
from tests.support.processes import REPOSITORY, end, first_line, free_port
from tests.support.wire import RawConnection, decode_response, encode_request, produce_request, schema


@contextmanager
def server(folder: Path, port: int, *python: str) -> Iterator[subprocess.Popen[str]]:
    """The process, started in `folder`; its stderr goes to `folder/stderr`."""
    folder.mkdir(exist_ok=True)
    settings = ("--set", f"listeners=PLAINTEXT://127.0.0.1:{port}", "--set", "log.dirs=data")
    with (folder / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, *python, "-m", "service.cli.main", "server", *settings],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    try:
        yield process
    finally:
        end(process)
        if process.stdout is not None:
            process.stdout.close()


def test_a_server_loads_no_test_library(tmp_path: Path) -> None:
    port = free_port()
    with server(tmp_path, port, "-X", "importtime") as process:
        assert first_line(process, 60).startswith("ready: ")
        Admin(f"127.0.0.1:{port}").create("t", 1)
    loaded = {line.rpartition("|")[2].strip() for line in (tmp_path / "stderr").read_text().splitlines()}
    assert "kio.static.primitive" in loaded
    assert "hypothesis" not in loaded
    assert not (tmp_path / ".hypothesis").exists()


def test_an_address_in_use_is_said_in_one_line(tmp_path: Path) -> None:
    port = free_port()
    with server(tmp_path / "one", port) as first:
        assert first_line(first, 60).startswith("ready: ")
        with server(tmp_path / "two", port) as second:
            assert second.wait(60) == 1
    (line,) = (
        line for line in (tmp_path / "two" / "stderr").read_text().splitlines() if " INFO " not in line
    )
    assert line.endswith(f"node 1: listeners: PLAINTEXT://127.0.0.1:{port}: Address already in use")


def test_a_fetch_that_waits_does_not_delay_the_end(tmp_path: Path) -> None:
    port = free_port()
    with server(tmp_path, port) as process:
        assert first_line(process, 60).startswith("ready: ")
        Admin(f"127.0.0.1:{port}").create("t", 1)
        module = schema(1, 12)
        part = module.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        request = module.FetchRequest(
            max_wait=timedelta(minutes=5),
            min_bytes=1,
            topics=(module.FetchTopic(topic="t", partitions=(part,)),),
            forgotten_topics_data=(),
        )
        with RawConnection(f"127.0.0.1:{port}", 60) as waiting, RawConnection(f"127.0.0.1:{port}") as other:
            waiting.send_frame(encode_request(request))
            # Whoever is answered later came in later.
            other.call(schema(18, 0).ApiVersionsRequest())
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert waiting.is_closed_by_peer(60)
            closed_s = time.monotonic() - began
            assert process.wait(60) == 0
    assert closed_s < 4, "it waited for the fetch"


def test_more_signals_while_it_ends_change_nothing(tmp_path: Path) -> None:
    """Until the process is gone: the interpreter that ends, too, must not be killed by one."""
    port = free_port()
    with server(tmp_path, port) as process:
        assert first_line(process, 60).startswith("ready: ")
        Admin(f"127.0.0.1:{port}").create("t", 10)
        until_s = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < until_s:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGHUP)
            time.sleep(0.0005)
        assert process.wait(1) == 0


def test_a_hangup_stops_it_in_order_and_user_signals_do_not_stop_it(tmp_path: Path) -> None:
    port = free_port()
    with server(tmp_path, port) as process:
        assert first_line(process, 60).startswith("ready: ")
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            process.send_signal(number)
        Admin(f"127.0.0.1:{port}").create("t", 1)
        assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()
        process.send_signal(signal.SIGHUP)
        assert process.wait(60) == 0
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    log = (tmp_path / "stderr").read_text()
    assert re.search(r"Z INFO service.node.process: firn 0\.1\.0 \(commit \S+, kernels \w+\), Python ", log)
    assert f"not default: listeners=PLAINTEXT://127.0.0.1:{port}, log.dirs={tmp_path}/data\n" in log
    assert f"node 1 serves on PLAINTEXT://127.0.0.1:{port}\n" in log
    assert "SIGUSR1 has no use here, ignoring it\n" in log
    assert "SIGUSR2 has no use here, ignoring it\n" in log
    assert "node 1 stops in order: SIGHUP\n" in log


def test_names_from_the_wire_cannot_forge_lines_of_the_log(tmp_path: Path) -> None:
    forged = "2026-01-01 00:00:00,000 CRITICAL service.node.node: node 1 is on fire"
    name = f"t\n{forged}\x1b[2J" + "x" * 10_000
    port = free_port()
    with server(tmp_path, port) as process:
        assert first_line(process, 60).startswith("ready: ")
        with RawConnection(f"127.0.0.1:{port}", 60) as connection:
            request = produce_request(name, 0, b"nothing")
            connection.send_frame(encode_request(request, client_id=name))
            assert decode_response(request, connection.receive_frame()).responses[0].name == name
            # Makes no sense, and says so under the client id of the request before.
            connection.send_frame(b"\x00\x00\x00\x09" + b"\xff" * 20)
            assert connection.is_closed_by_peer(60)
    lines = (tmp_path / "stderr").read_text().splitlines()
    assert [line for line in lines if "Produce of 127.0.0.1" in line and r"t\n2026" in line]
    assert [line for line in lines if "closed 127.0.0.1" in line]
    assert forged not in lines
    assert all(line.isprintable() and len(line) < 2000 for line in lines)
