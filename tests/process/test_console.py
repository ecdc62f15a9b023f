"""`firn console` as a process: access, headers for browsers, floods and path tricks."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.cli.main import main
from tests.support.console import console_of
from tests.support.processes import FIRN, child, first_line, free_port

TOKEN = "a-token-of-some-length"


def ask(
    url: str, path: str, method: str = "GET", body: str | None = None, **headers: str
) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        answer = connection.getresponse()
        return (
            answer.status,
            {k.lower(): v for k, v in answer.getheaders()},
            answer.read().decode("utf-8", "replace"),
        )
    finally:
        connection.close()


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A console of a cluster that is not there: what it refuses, it refuses before it asks anybody."""
    with console_of(
        f"127.0.0.1:{free_port()}", tmp_path_factory.mktemp("console"), "--survey-every", "0"
    ) as url:
        yield url


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    with console_of(f"127.0.0.1:{free_port()}", tmp_path, "--token-file", str(path)) as url:
        yield url


def test_every_answer_forbids_what_a_page_does_not_need(console: str) -> None:
    for path in ("/", "/topics", "/nothing", "/records/download", "/series"):
        _, headers, _ = ask(console, path)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"


def test_pages_have_no_script_or_style_of_their_own_and_nothing_from_elsewhere(console: str) -> None:
    _, _, text = ask(console, "/")
    assert " style=" not in text
    assert "<style" not in text
    assert "onclick" not in text
    assert text.count("<script") == text.count('<script src="/static/')
    assert "http://" not in text.replace("127.0.0.1", "")
    assert "https://" not in text


def test_names_of_other_machines_are_not_answered(console: str) -> None:
    assert ask(console, "/", Host="evil.example:80")[0] == 421
    assert ask(console, "/", Host="localhost")[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/%2e%2e/server.py",
        "//etc/passwd",
        "/..%2f..%2fetc/passwd",
        "/static/",
        "/topics/",
        "/%00",
    ],
)
def test_paths_lead_nowhere_else(console: str, path: str) -> None:
    status, _, text = ask(console, path)
    assert status in (400, 404)
    assert "root:" not in text
    assert "import" not in text


def test_nothing_is_written(console: str) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert ask(console, "/topics", method, "x=1")[0] == 405


def test_a_token_is_asked_for_and_wrong_ones_cost_time(locked: str) -> None:
    status, headers, text = ask(locked, "/topics")
    assert (status, headers["www-authenticate"][:6]) == (401, "Bearer")
    assert "Overview" not in text
    for path in ("/", "/events", "/series", "/records/download?topic=a"):
        assert ask(locked, path)[0] == 401
    assert ask(locked, "/", Authorization=f"Bearer {TOKEN}")[0] == 200
    tried = [ask(locked, "/", Authorization="Bearer wrong")[0] for _ in range(7)]
    assert tried == [401] * 5 + [429] * 2
    assert ask(locked, "/", Authorization=f"Bearer {TOKEN}")[0] == 429


def test_the_form_opens_a_session_that_ends(locked: str) -> None:
    form = urllib.parse.urlencode({"token": TOKEN, "to": "/bucket"})
    kind = {"Content_Type": "application/x-www-form-urlencoded"}
    status, headers, _ = ask(locked, "/login", "POST", form, **kind)
    assert (status, headers["location"]) == (303, "/bucket")
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert TOKEN not in cookie
    said = cookie.partition(";")[0]
    assert ask(locked, "/", Cookie=said)[0] == 200
    assert ask(locked, "/", Cookie=said + "0")[0] == 401
    assert ask(locked, "/logout", "POST", "", Cookie=said)[0] == 303
    assert ask(locked, "/", Cookie=said)[0] == 401


def test_a_form_of_somebody_else_is_not_taken(locked: str) -> None:
    kind = {"Content_Type": "application/x-www-form-urlencoded", "Origin": "http://evil.example"}
    assert ask(locked, "/login", "POST", f"token={TOKEN}", **kind)[0] == 400
    wanted = urllib.parse.urlencode({"token": TOKEN, "to": "//evil.example/"})
    status, headers, _ = ask(locked, "/login", "POST", wanted, Content_Type=kind["Content_Type"])
    assert (status, headers["location"]) == (303, "/")
    assert ask(locked, "/login", "POST", "x" * 10_000, Content_Type=kind["Content_Type"])[0] == 400
    for charset, form in (("nonsense", "token=x"), ("utf-16", "token"), ("utf-8", "token=\xff")):
        named = {"Content_Type": f"{kind['Content_Type']}; charset={charset}"}
        assert ask(locked, "/login", "POST", form, **named)[0] == 400


def test_others_than_this_machine_need_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["console", "--host", "0.0.0.0", "--port", "0"]) == 1
    assert "--token-file" in capsys.readouterr().err
    assert main(["console", "--token", "short"]) == 1
    assert main(["console", "--allow-changes", "--port", "0"]) == 1
    assert "whoever changes something signs in" in capsys.readouterr().err
    assert main(["console", "--price", "nothing=1"]) == 1


def test_oversized_heads_and_too_many_connections_do_not_disturb_others(console: str) -> None:
    status, _, _ = ask(console, "/" + "a" * 20_000)
    assert status == 400
    status, _, _ = ask(console, "/", X="a" * 20_000)
    assert status == 400
    host, port = console.removeprefix("http://").split(":")
    open_ones = [socket.create_connection((host, int(port)), 5) for _ in range(300)]
    try:
        assert ask(console, "/nothing")[0] == 404
    finally:
        for one in open_ones:
            one.close()


def test_the_console_ends_on_request_or_with_its_parent(tmp_path: Path) -> None:
    command = [str(FIRN), "console", "--bootstrap", "127.0.0.1:1", "--port", "0", "--until-eof"]
    with child(command, tmp_path / "log") as process:
        assert first_line(process, 30).startswith("console: http://127.0.0.1:")
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == 0
    with child(command, tmp_path / "log") as process:
        assert first_line(process, 30)
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            process.send_signal(number)
        assert process.wait(10) == 0


def test_dev_brings_it_along_and_takes_it_away(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "service.cli.main", "dev", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        assert process.stdout is not None
        url = next(line for line in process.stdout if line.startswith("console: ")).split()[1]
        deadline = time.monotonic() + 20
        while "No topics yet" not in (text := ask(url, "/topics")[2]):
            assert time.monotonic() < deadline, text
        assert "s3://firn/dev" in ask(url, "/bucket")[2]
    finally:
        process.terminate()
        process.wait(20)
        if process.stdout is not None:
            process.stdout.close()
    with pytest.raises(ConnectionRefusedError):
        ask(url, "/")
