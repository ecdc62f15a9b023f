"""Child processes of `firn dev` and `firn.processes`: programs that misbehave, and nodes that do not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from service.cli.dev_nodes import DevNode, agree_on_ports
from service.cli.node_processes import Child
from tests.support.processes import REPOSITORY, end, wait_until

GOOD = """
import signal, sys, threading, os
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
def watch():
    while os.read(0, 99): pass
    os._exit(7)
threading.Thread(target=watch, daemon=True).start()
print("starting", file=sys.stderr, flush=True)
print("ready: node ID on 127.0.0.1:ID", flush=True)
while True: signal.pause()
"""
DEAF = GOOD.replace("lambda *_: sys.exit(0)", "lambda *_: None")
FAILING = "import sys; print('no', file=sys.stderr); sys.exit(3)"
LATE = "import time; time.sleep(1)\n" + GOOD
CHATTY = GOOD.replace(
    "while True: signal.pause()",
    "import time\nwhile True:\n    print('x' * 999, file=sys.stderr)\n    time.sleep(.001)",
)
SLOW_TO_END = GOOD.replace(
    "lambda *_: sys.exit(0)",
    "lambda *_: (__import__('time').sleep(.7), print('ended', flush=True), sys.exit(0))",
)


def program(node_id: int, text: str, is_controller: bool = True) -> Child:
    command = (sys.executable, "-c", textwrap.dedent(text).replace("ID", str(node_id)), f"node.id={node_id}")
    return Child(node_id, command, is_controller)


class Running:
    """A supervisor in a process of its own, and what it says."""

    def __init__(
        self, children: Sequence[Child], folder: Path, patience_s: float, is_supervised: bool, before: str
    ) -> None:
        self.log = folder / "log"
        self.out = folder / "out"
        plain = [tuple(child) for child in children]
        code = (
            f"{before}\nimport sys; from service.cli.node_processes import Child, run_nodes\n"
            f"sys.exit(run_nodes([Child(*one) for one in {plain!r}], patience_s={patience_s}, "
            f"is_supervised={is_supervised}))"
        )
        with self.out.open("wb") as out, self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code], cwd=REPOSITORY, stdout=out, stderr=log
            )

    def lines(self) -> list[str]:
        return self.out.read_text().splitlines()

    def wait_for(self, line: str) -> None:
        wait_until(line, lambda: line in self.lines())

    def node(self, node_id: int) -> int:
        """The process of a node, known by its command line."""
        (found,) = (pid for pid in self.children() if f"node.id={node_id}" in command_line(pid))
        return found

    def children(self) -> list[int]:
        pid = self.process.pid
        words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(word) for word in words]


def command_line(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextmanager
def running(
    children: Sequence[Child],
    folder: Path,
    patience_s: float = 20,
    *,
    is_supervised: bool = False,
    before: str = "",
) -> Iterator[Running]:
    """Run a supervisor; `before` is what its process does first."""
    supervisor = Running(children, folder, patience_s, is_supervised, before)
    started: list[int] = []
    try:
        yield supervisor
        started = supervisor.children() if supervisor.process.poll() is None else []
    finally:
        end(supervisor.process)
        wait_until("the children to end", lambda: not any(map(is_alive, started)))


READY = "ready: nodes 1, 2, 3 on 127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_nodes_are_ready_together_and_end_together(tmp_path: Path, number: signal.Signals) -> None:
    with running([program(1, GOOD), program(2, LATE), program(3, GOOD)], tmp_path) as supervisor:
        supervisor.wait_for(READY)
        started = supervisor.children()
        assert len(started) == 3
        supervisor.process.send_signal(number)
        assert supervisor.process.wait(10) == 0
        assert not any(map(is_alive, started))
    assert supervisor.lines() == [READY]
    assert sorted(supervisor.log.read_text().splitlines()) == [f"node {i}: starting" for i in (1, 2, 3)]


def test_one_that_is_killed_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    with running([program(i, GOOD) for i in (1, 2, 3)], tmp_path) as supervisor:
        supervisor.wait_for(READY)
        os.kill(supervisor.node(2), signal.SIGKILL)
        supervisor.wait_for("node 2 was ended by SIGKILL; nodes 1, 3 continue")
        assert len(supervisor.children()) == 2
        supervisor.process.terminate()
        assert supervisor.process.wait(10) == 0


def test_one_that_cannot_start_is_named_and_the_others_are_ready(tmp_path: Path) -> None:
    with running([program(1, GOOD), program(2, FAILING), program(3, GOOD)], tmp_path) as supervisor:
        supervisor.wait_for("node 2 ended with status 3; nodes 1, 3 continue")
        supervisor.wait_for("ready: nodes 1, 3 on 127.0.0.1:1,127.0.0.1:3")
        assert "node 2: no" in supervisor.log.read_text().splitlines()


def test_one_whose_program_is_away_is_tried_until_it_is_back(tmp_path: Path) -> None:
    """As while another version is being installed."""
    script, aside = tmp_path / "node", tmp_path / "aside"
    script.write_text(f"#!{sys.executable}\n{GOOD.replace('ID', '2')}")
    script.chmod(0o755)
    children = [program(1, GOOD), Child(2, (str(script), "node.id=2"))]
    with running(children, tmp_path, is_supervised=True) as supervisor:
        supervisor.wait_for("ready: nodes 1, 2 on 127.0.0.1:1,127.0.0.1:2")
        first = supervisor.node(1)
        script.rename(aside)
        os.kill(supervisor.node(2), signal.SIGKILL)
        supervisor.wait_for("node 2 was ended by SIGKILL; it is started again in 1 s")
        supervisor.wait_for(
            f"node 2 could not be started: [Errno 2] No such file or directory: '{script}'; "
            "it is tried again in 2 s"
        )
        aside.rename(script)
        supervisor.wait_for("node 2 serves again on 127.0.0.1:2")
        assert is_alive(first)
        supervisor.process.terminate()
        assert supervisor.process.wait(10) == 0


@pytest.mark.parametrize("thread", ["node 2 says", "node 2 logs", "Thread-"])
def test_one_whose_thread_cannot_be_started_is_tried_again(tmp_path: Path, thread: str) -> None:
    refuses = tmp_path / "refuses"
    before = f"""
import threading
from pathlib import Path
start, refuses = threading.Thread.start, Path({str(refuses)!r})
def refused(self):
    if self.name.startswith({thread!r}) and refuses.exists():
        refuses.unlink()
        raise RuntimeError("can't start new thread")
    start(self)
threading.Thread.start = refused
"""
    children = [program(1, GOOD), program(2, GOOD)]
    with running(children, tmp_path, is_supervised=True, before=before) as supervisor:
        supervisor.wait_for("ready: nodes 1, 2 on 127.0.0.1:1,127.0.0.1:2")
        first = supervisor.node(1)
        refuses.touch()
        os.kill(supervisor.node(2), signal.SIGKILL)
        supervisor.wait_for(
            "node 2 could not be started: [Errno 11] a thread of its parent: can't start new thread; "
            "it is tried again in 2 s"
        )
        supervisor.wait_for("node 2 serves again on 127.0.0.1:2")
        assert is_alive(first)
        assert len(supervisor.children()) == 2
        supervisor.process.terminate()
        assert supervisor.process.wait(10) == 0


def test_the_supervisor_ends_when_no_node_is_left(tmp_path: Path) -> None:
    with running([program(1, FAILING), program(2, FAILING)], tmp_path) as supervisor:
        assert supervisor.process.wait(10) == 1
    assert supervisor.lines()[-1].endswith("ended with status 3; no node is left")


def test_one_that_does_not_listen_is_killed_in_the_end(tmp_path: Path) -> None:
    with running([program(1, GOOD), program(2, DEAF)], tmp_path, patience_s=0.5) as supervisor:
        supervisor.wait_for("ready: nodes 1, 2 on 127.0.0.1:1,127.0.0.1:2")
        started = supervisor.children()
        supervisor.process.terminate()
        assert supervisor.process.wait(10) == 1
        assert not any(map(is_alive, started))
    assert supervisor.lines()[-1] == "node 2 was ended by SIGKILL"


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    with running([program(1, DEAF), program(2, DEAF, is_controller=False)], tmp_path) as supervisor:
        supervisor.wait_for("ready: nodes 1, 2 on 127.0.0.1:1,127.0.0.1:2")
        supervisor.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert supervisor.process.poll() is None
        supervisor.process.send_signal(signal.SIGINT)
        assert supervisor.process.wait(5) == 1


def full_disk() -> int:
    return os.open("/dev/full", os.O_WRONLY)


def readerless_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize(
    ("opened", "why"), [(full_disk, "No space left on device"), (readerless_pipe, "Broken pipe")]
)
def test_lines_that_cannot_be_printed_end_no_node_of_a_service(
    tmp_path: Path, opened: Callable[[], int], why: str
) -> None:
    """It is in the log then; the nodes go on, and end in order."""
    orderly = GOOD.replace("sys.exit(0)", "(print('ended', file=sys.stderr, flush=True), os._exit(0))")
    code = (
        "import sys; from service.cli.node_processes import Child, run_nodes\n"
        f"children = {[tuple(program(number, orderly)) for number in (1, 2)]!r}\n"
        "run_nodes([Child(*one) for one in children], is_supervised=True)"
    )
    log, out = tmp_path / "log", opened()
    with log.open("wb") as err:
        parent = subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY, stdout=out, stderr=err)
    os.close(out)
    said = f"ready: nodes 1, 2 on 127.0.0.1:1,127.0.0.1:2 (not on stdout: {why})"
    try:
        wait_until(said, lambda: said in log.read_text().splitlines() or parent.poll() is not None)
        assert parent.poll() is None, log.read_text()
    finally:
        end(parent)
    assert {"node 1: ended", "node 2: ended"} <= set(log.read_text().splitlines())


def test_controllers_end_after_the_brokers(tmp_path: Path) -> None:
    children = [program(1, SLOW_TO_END), program(2, SLOW_TO_END, is_controller=False)]
    with running(children, tmp_path) as supervisor:
        supervisor.wait_for("ready: nodes 1, 2 on 127.0.0.1:1,127.0.0.1:2")
        supervisor.process.terminate()
        supervisor.wait_for("node 2: ended")
        assert "node 1: ended" not in supervisor.lines()
        assert supervisor.process.wait(10) == 0
    assert supervisor.lines()[-2:] == ["node 2: ended", "node 1: ended"]


def test_no_child_outlives_it_even_when_it_is_killed(tmp_path: Path) -> None:
    with running([program(1, GOOD), program(2, DEAF), program(3, CHATTY)], tmp_path) as supervisor:
        supervisor.wait_for(READY)
        started = supervisor.children()
        supervisor.process.kill()
        supervisor.process.wait()
        wait_until("the children to end", lambda: not any(map(is_alive, started)))


def test_told_to_end_before_anybody_is_ready_it_does(tmp_path: Path) -> None:
    with running([program(1, LATE), program(2, LATE)], tmp_path) as supervisor:
        wait_until("the children", lambda: len(supervisor.children()) == 2)
        supervisor.process.terminate()
        assert supervisor.process.wait(10) == 0  # before they have a handler the signal ends them
    assert not [line for line in supervisor.lines() if line.startswith("ready")]


def test_real_nodes_come_and_go(tmp_path: Path) -> None:
    """Each alone, for now: they show that a node is a child as it is meant."""
    ports, _ = agree_on_ports(0, 2, 0)
    nodes = [
        DevNode(
            i,
            True,
            {
                "node.id": str(i),
                "listeners": f"PLAINTEXT://127.0.0.1:{port}",
                "log.dirs": str(tmp_path / f"node-{i}"),
            },
        )
        for i, port in enumerate(ports, 1)
    ]
    addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
    children = [node.child("info", {"PYTHONPATH": str(REPOSITORY)}) for node in nodes]
    with running(children, tmp_path) as supervisor:
        supervisor.wait_for(f"ready: nodes 1, 2 on {addresses}")
        os.kill(supervisor.node(2), signal.SIGKILL)
        supervisor.wait_for("node 2 was ended by SIGKILL; node 1 continues")
        supervisor.process.terminate()
        assert supervisor.process.wait(20) == 0
    assert (tmp_path / "node-1" / ".kafka_cleanshutdown").exists()
    assert not (tmp_path / "node-2" / ".kafka_cleanshutdown").exists()
    with running(children, tmp_path) as supervisor:
        supervisor.wait_for(f"ready: nodes 1, 2 on {addresses}")
        started = supervisor.children()
        supervisor.process.kill()
        supervisor.process.wait()
        wait_until("the nodes to end", lambda: not any(map(is_alive, started)))
    # cleanly: they noticed that their standard input ended
    assert (tmp_path / "node-1" / ".kafka_cleanshutdown").exists()
    assert (tmp_path / "node-2" / ".kafka_cleanshutdown").exists()
