"""Waits of whoever starts or commands something while the controllers are away: they are told."""

from __future__ import annotations

import logging
import socket
import threading
from pathlib import Path

import pytest

from service.base import told_waits
from service.cli.main import main
from tests.node.conftest import NodeThread
from tests.support.processes import free_port, wait_until


def test_a_broker_without_controllers_says_whom_it_waits_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(told_waits, "PAUSES_S", (0.05, 60.0))
    port = free_port()
    node = NodeThread(
        tmp_path,
        process_roles="broker",
        node_id="2",
        controller_quorum_voters=f"1@127.0.0.1:{port}",
        controller_listener_names="CONTROLLER",
    )
    node._thread.start()
    try:
        wait_until("the line", lambda: f"127.0.0.1:{port}" in caplog.text and "waiting for" in caplog.text)
    finally:
        wait_until("its loop", lambda: hasattr(node, "_supervisor"))
        node.stop()


def test_a_command_that_waits_for_an_answer_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(told_waits, "PAUSES_S", (0.05, 60.0))
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"127.0.0.1:{silent.getsockname()[1]}"

        def hang_up() -> None:
            accepted, _ = silent.accept()
            while "waiting" not in "".join(said):
                said.append(capsys.readouterr().err)
            accepted.close()

        server = threading.Thread(target=hang_up)
        server.start()
        assert main(["topic", "create", "t", "--bootstrap-server", place]) == 1
        server.join()
    assert "".join(said) == f"firn topic: still waiting for {place}\n"
