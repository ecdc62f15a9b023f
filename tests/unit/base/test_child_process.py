"""The child process for background work: calls, messages, priorities, and every way in which it ends."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.base import child_process
from service.base.child_process import ChildEnded, ChildProcess, SendMessage
from service.base.errors import CorruptionError
from service.remote.stores.errors import ObjectNotFound
from tests.support.processes import wait_until

ROOT = Path(__file__).parents[3]
NICE = 3


def no_message(what: Any) -> None:
    raise AssertionError(f"a message: {what!r}")


def go_on() -> None:
    """Go on."""


def cancelled() -> None:
    raise TimeoutError("cancelled")


# -- what the child runs


def own_id(send: SendMessage) -> tuple[int, int, int]:
    return os.getpid(), os.getpriority(os.PRIO_PROCESS, 0), os.getsid(0)


def sum_of_answers(most: int, send: SendMessage) -> int:
    send("begins")
    return sum(send(number, wants_reply=True) for number in range(most))


def fails(kind: str, send: SendMessage) -> None:
    if kind == "not found":
        raise ObjectNotFound("a/key", "404")
    if kind == "not pickled":
        error = CorruptionError("with a thread")
        error.held = sys.stderr  # type: ignore[attr-defined]
        raise error
    raise CorruptionError("3 bytes, not 4")


def sends_for_ever(silent_s: float, send: SendMessage) -> None:
    send(os.getpid())
    time.sleep(silent_s)
    while True:
        send("still here", wants_reply=True)


def writes_raw(data: bytes, send: SendMessage) -> None:
    """What no frame is, as a child of another version may send it, or the beginning of one."""
    os.write(int(sys.argv[1]), data)
    time.sleep(60)


@pytest.fixture(scope="module")
def child() -> Iterator[ChildProcess]:
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", str(ROOT))
    one = ChildProcess(NICE)
    yield one
    one.close()
    patch.undo()


def ids(child: ChildProcess) -> tuple[int, int, int]:
    found: tuple[int, int, int] = child.call(own_id, on_message=no_message, on_silence=go_on)
    return found


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_one_process_of_low_priority_runs_all_calls(child: ChildProcess) -> None:
    pid, priority, session = ids(child)
    assert ids(child)[0] == pid == child.pid != os.getpid()
    assert priority == min(os.getpriority(os.PRIO_PROCESS, 0) + NICE, 19)
    assert session == os.getsid(0), "nice values count within a session"


def test_signals_without_a_use_do_not_end_it(child: ChildProcess) -> None:
    """`systemctl kill -s USR1`, meant for the process that runs the nodes, reaches all of a service."""
    pid, *_ = ids(child)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        os.kill(pid, number)
    assert ids(child)[0] == pid


def test_messages_and_questions_come_meanwhile(child: ChildProcess) -> None:
    messages: list[Any] = []

    def receive(what: Any) -> Any:
        messages.append(what)
        return None if what == "begins" else 10 * what

    assert child.call(sum_of_answers, 4, on_message=receive, on_silence=go_on) == 60
    assert messages == ["begins", 0, 1, 2, 3]


def test_errors_arrive_as_they_were_raised_and_the_child_goes_on(child: ChildProcess) -> None:
    pid, *_ = ids(child)
    with pytest.raises(CorruptionError) as damaged:
        child.call(fails, "", on_message=no_message, on_silence=go_on)
    assert str(damaged.value) == "3 bytes, not 4"
    assert "test_child_process.py" in damaged.value.__notes__[0]
    with pytest.raises(ObjectNotFound) as missing:
        child.call(fails, "not found", on_message=no_message, on_silence=go_on)
    assert str(missing.value) == "no such object: a/key: 404"
    assert missing.value.key == "a/key"
    with pytest.raises(RuntimeError, match="with a thread"):
        child.call(fails, "not pickled", on_message=no_message, on_silence=go_on)
    assert ids(child)[0] == pid


def test_an_end_within_a_call_is_its_error_and_the_next_call_starts_another(child: ChildProcess) -> None:
    def kill(what: Any) -> None:
        if isinstance(what, int):
            os.kill(what, signal.SIGKILL)

    pid, *_ = ids(child)
    with pytest.raises(ChildEnded, match="signal 9"):
        child.call(sends_for_ever, 0, on_message=kill, on_silence=go_on)
    assert is_gone(pid)
    other, *_ = ids(child)
    child.end()
    assert is_gone(other)
    assert child.pid is None
    assert ids(child)[0] not in (pid, other)


@pytest.mark.parametrize("silent_s", [0.0, 0.05])
def test_a_cancelled_call_ends_it(
    child: ChildProcess, silent_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cancelled(Exception):
        pass

    monkeypatch.setattr(child_process, "_LOOK_S", 0.01)
    pids: list[int] = []

    def receive(what: Any) -> None:
        if isinstance(what, int):
            pids.append(what)
        elif not silent_s:
            raise Cancelled

    def look() -> None:
        if silent_s and pids:
            raise Cancelled

    with pytest.raises(Cancelled):
        child.call(sends_for_ever, silent_s, on_message=receive, on_silence=look)
    assert is_gone(pids[0])


def test_a_program_that_cannot_be_started_is_an_error_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(ChildEnded, match="cannot be started"):
        ChildProcess().call(own_id, on_message=no_message, on_silence=go_on)


def test_a_pair_of_sockets_that_cannot_be_opened_is_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a node has no more descriptors: any other error would end it."""

    def no_sockets() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socketpair", no_sockets)
    with pytest.raises(ChildEnded, match="Too many open files"):
        ChildProcess().call(own_id, on_message=no_message, on_silence=go_on)


def test_an_answer_that_cannot_be_read_ends_the_child_and_not_the_node(
    child: ChildProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "_END_S", 0.1)
    with pytest.raises(ChildEnded, match="no frame: UnpicklingError"):
        child.call(writes_raw, b"\0\0\0\3abc", on_message=no_message, on_silence=go_on)
    assert child.pid is None


@pytest.mark.parametrize("data", [b"\0\0", b"\xff\xff\xff\xffabc"])
def test_a_call_is_cancelled_within_a_frame_too(
    child: ChildProcess, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "_LOOK_S", 0.2)
    monkeypatch.setattr(child_process, "_END_S", 0.1)
    pid, *_ = ids(child)
    with pytest.raises(TimeoutError, match="cancelled"):
        child.call(writes_raw, data, on_message=no_message, on_silence=cancelled)
    assert is_gone(pid)


def test_a_call_that_the_child_does_not_take_is_cancelled(
    child: ChildProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "_LOOK_S", 0.01)
    monkeypatch.setattr(child_process, "_END_S", 0.1)
    pid, *_ = ids(child)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(TimeoutError, match="cancelled"):
        child.call(writes_raw, bytes(4 << 20), on_message=no_message, on_silence=cancelled)
    assert is_gone(pid)


def test_the_working_directory_has_no_say_in_what_the_child_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "service").mkdir()
    (tmp_path / "service" / "__init__.py").write_text("raise SystemExit('of the working directory')")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    one = ChildProcess(NICE)
    try:
        assert ids(one)[0] == one.pid
    finally:
        one.close()


def test_a_sandbox_that_refuses_priorities_does_not_end_the_child(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`SystemCallFilter=~@resources` of infra's units does."""
    (tmp_path / "sitecustomize.py").write_text(
        "import errno, os\ndef nice(by):\n    raise PermissionError(errno.EPERM, 'refused')\nos.nice = nice\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    one = ChildProcess(NICE)
    try:
        assert ids(one)[1] == os.getpriority(os.PRIO_PROCESS, 0)
    finally:
        one.close()


def test_a_child_ends_with_a_node_that_was_killed() -> None:
    program = (
        "from service.base.child_process import ChildProcess\n"
        "from tests.unit.base.test_child_process import go_on, sends_for_ever\n"
        "def show(what):\n"
        "    print(what, flush=True)\n"
        "ChildProcess().call(sends_for_ever, 0, on_message=show, on_silence=go_on)\n"
    )
    command = [sys.executable, "-c", program]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environ) as node:
        assert node.stdout is not None
        pid = int(node.stdout.readline())
        node.kill()
    wait_until("the child of a killed node to end", lambda: is_gone(pid), 20)
