"""`firn produce` and `firn consume` with few rights, and with a wrong password."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from service.cli.main import main
from tests.node.conftest import NodeThread
from tests.node.test_delegation_tokens import CLOSED, secured

Start = Callable[..., NodeThread]


def test_reading_takes_no_right_on_a_group_and_refusals_are_sentences(
    start: Start, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = secured(start, **CLOSED)

    def at(listener: str) -> list[str]:
        host, port = node.node.parts.listeners.places[listener]
        return ["--bootstrap-server", f"{host}:{port}"]

    lines, login = tmp_path / "lines", tmp_path / "eve.properties"
    eve = [*at("CLIENTS"), "--command-config", str(login)]

    def log_in(password: str) -> None:
        protocol = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        login.write_text(f"{protocol}sasl.username=eve\nsasl.password={password}\n")

    def run(*words: str) -> tuple[int, bytes]:
        capsysbinary.readouterr()
        code = main(words)
        said = capsysbinary.readouterr()
        return code, said.err or said.out

    lines.write_text("a\n")
    log_in("evil")
    assert run("topic", "create", "t", *at("OPEN"))[0] == 0
    assert run("produce", "t", "--file", str(lines), *at("OPEN")) == (0, b"")
    entry = ("--allow-principal", "User:eve", "--operation", "Read", "--topic", "t")
    assert run("acl", "add", *entry, *at("OPEN"))[0] == 0
    assert run("consume", "t", "-n", "1", *eve) == (0, b"a\n")
    code, said = run("produce", "t", "--file", str(lines), *eve)
    assert (code, b"Cluster authorization failed" in said) == (1, True), said
    log_in("hunter2")
    monkeypatch.setattr("service.cli.librdkafka_client.TELL_AFTER_S", 0.3)
    for words in (("produce", "t", "--file", str(lines)), ("consume", "t")):
        code, said = run(*words, *eve)
        assert (code, b"Invalid username or password" in said) == (1, True)
        assert b"hunter2" not in said
