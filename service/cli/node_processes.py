"""Nodes as child processes of one: `firn server` with `firn.processes`, and `firn dev --nodes`.

The children have sessions of their own, so Ctrl-C reaches only this process, which ends them in order, pure
brokers before controllers. Each child's standard input is a pipe from this process, so that the child ends
(`firn server --until-eof`) even if this process is killed. Each line of a child's log tells its node.

If a node dies, its name is printed and the others continue. A supervised one is started again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Final, NamedTuple

from service.base.stop_signals import receive_unused, stops_received
from service.cli.roster import RestartPauses, RollingRestart, Roster
from service.node.whole_question import ANSWER, question

# -P: the working directory may have a `service` of its own.
SERVER: Final = (sys.executable, "-P", "-m", "service.cli.main", "server", "--until-eof")
"""Command of a child, without its settings."""
PATIENCE_S: Final = 30.0
"""Time for a node of `firn dev` to end before it is killed."""
ROLL: Final = signal.SIGUSR1
_LINE_BYTES: Final = 1 << 16
_TAIL_S: Final = 1.0
_ROUND_S: Final = 1.0


class Child(NamedTuple):
    """A node to run. Its command prints ``ready: … on HOST:PORT`` once it serves, and ends on SIGTERM."""

    node_id: int
    command: tuple[str, ...]
    is_controller: bool = True
    environ: Mapping[str, str] | None = None


class _Line(NamedTuple):
    node_id: int
    line: str


class _Exit(NamedTuple):
    node_id: int
    code: int


class _StopSignal(NamedTuple):
    """Signal that ends this process; SIGHUP, too, if nobody reads the output of `firn dev` any more."""

    number: signal.Signals = signal.SIGTERM

    @property
    def insists(self) -> bool:
        """Return whether a second one kills. Kernel and shell both send SIGHUP when a terminal closes."""
        return self.number != signal.SIGHUP


class _RollSignal(NamedTuple):
    """Signal that asks for a rolling restart."""


_Event = _Line | _Exit | _StopSignal | _RollSignal


def run_nodes(
    children: Sequence[Child],
    *,
    say: Callable[[str], None] = lambda line: print(line, flush=True),
    patience_s: float | None = PATIENCE_S,
    is_supervised: bool = False,
    refused: Callable[[], str | None] = lambda: None,
) -> int:
    """Run all nodes until SIGTERM, SIGINT or SIGHUP, or until none is left; return the exit code.

    For the main thread. A node that has not ended `patience_s` after a signal is killed, without that never;
    a second signal kills those that are still ending. `is_supervised`: a node that ends is started again
    after a pause, unless none has ever served, and `ROLL` restarts one after the other. `refused` tells why a
    node that is stopped now could not start again; then none is. Raises `OSError` if a child cannot be
    started; no child is left running then.
    """
    nodes = _Nodes(children, say, patience_s, refused, is_supervised=is_supervised)
    with stops_received(lambda number: nodes.events.put(_StopSignal(number))):
        if is_supervised:
            receive_unused(nodes.unused)
        try:
            nodes.start()
            return nodes.run()
        finally:
            nodes.kill()


class _Nodes:
    """Child processes. Threads read their output and wait for their ends; the main thread does the rest, one
    event after the other."""

    def __init__(
        self,
        children: Sequence[Child],
        say: Callable[[str], None],
        patience_s: float | None,
        refused: Callable[[], str | None],
        *,
        is_supervised: bool,
    ) -> None:
        self._children = {child.node_id: child for child in children}
        self._say = say
        self._patience_s = patience_s
        self._refused = refused
        self._is_supervised = is_supervised
        self._roster = Roster(self._children)
        self._pauses = RestartPauses()
        self._roll: RollingRestart | None = None
        self._due: dict[int, float] = {}
        """when each node that waits is started again"""
        self._ask_at = 0.0
        self._started_at: dict[int, float] = {}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._readers: list[threading.Thread] = []
        self.events: queue.SimpleQueue[_Event] = queue.SimpleQueue()

    def unused(self, number: signal.Signals) -> None:
        """Take a signal that stops nothing."""
        if number == ROLL:
            self.events.put(_RollSignal())

    def start(self) -> None:
        for node_id in self._children:
            self._start(node_id)

    def _start(self, node_id: int) -> None:
        child = self._children[node_id]
        process = subprocess.Popen(
            child.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if child.environ is None else {**os.environ, **child.environ},
            start_new_session=True,
        )
        self._processes[node_id], self._started_at[node_id] = process, time.monotonic()
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        os.set_blocking(process.stdin.fileno(), False)
        name = f"node {node_id}"
        try:
            out = self._thread(f"{name} says", self._read, node_id, process.stdout)
            self._thread(f"{name} logs", _copy_log, f"{name}: ".encode(), process.stderr)
            waiting = threading.Thread(target=self._wait, args=(node_id, process, out), daemon=True)
            waiting.start()
        except RuntimeError as e:
            process.kill()
            process.wait()
            self._close(node_id)
            raise OSError(errno.EAGAIN, f"a thread of its parent: {e}") from e

    def _thread(self, name: str, target: Callable[..., None], *args: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        thread.start()
        self._readers = [*(one for one in self._readers if one.is_alive()), thread]
        return thread

    def _read(self, node_id: int, stream: IO[bytes]) -> None:
        with stream:
            while line := stream.readline(_LINE_BYTES):
                self.events.put(_Line(node_id, line.decode("utf-8", "replace").rstrip("\r\n")))

    def _wait(self, node_id: int, process: subprocess.Popen[bytes], out: threading.Thread) -> None:
        code = process.wait()
        if self._is_supervised:
            out.join(_TAIL_S)  # its last lines are not to be taken for those of the next process
        self.events.put(_Exit(node_id, code))

    def run(self) -> int:
        while self._roster.living or self._roster.waiting:
            event = self._next_event()
            if isinstance(event, _StopSignal):
                self._stop()
                break
            if event is not None:
                self._handle(event)
            self._act()
        # read the last lines, but do not wait for other processes that hold the children's pipes
        deadline = time.monotonic() + _TAIL_S
        for reader in self._readers:
            reader.join(max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(queue.Empty):
            while True:
                self._handle(self.events.get_nowait())
        return self._roster.exit_code

    def _next_event(self) -> _Event | None:
        """Wait for an event, or until something is due."""
        due = [*self._due.values(), *([self._ask_at] if self._roll is not None else ())]
        timeout = max(0.0, min(due) - time.monotonic()) if due else None
        with contextlib.suppress(queue.Empty):
            return self.events.get(timeout=timeout)
        return None

    def _handle(self, event: _Event) -> None:
        match event:
            case _Line(node_id, line):
                if self._is_supervised and line.startswith(ANSWER):
                    self._answered(node_id, line)
                else:
                    self._print(self._roster.note_line(node_id, line))
            case _Exit(node_id, code):
                self._print(self._exited(node_id, code))
            case _RollSignal():
                self._begin_roll()
            case _StopSignal():
                pass  # a second signal has no effect once no node is left

    def _exited(self, node_id: int, code: int) -> list[str]:
        self._close(node_id)
        if not self._is_supervised or self._roster.is_stopping:
            return self._roster.note_exit(node_id, code)
        is_asked = self._roll is not None and self._roll.stopped == node_id and code == 0
        ran_s = time.monotonic() - self._started_at[node_id]
        pause_s = 0.0 if is_asked else self._pauses.after_run(node_id, ran_s)
        lines = self._roster.note_pause(node_id, code, pause_s)
        if self._roster.is_hopeless:
            self._roster.exit_code = 1
            self.events.put(_StopSignal(signal.SIGHUP))  # those that have started again meanwhile
            return [f"node {node_id} ended with status {code}; no node could start"]
        self._due[node_id] = time.monotonic() + pause_s
        return [] if is_asked else lines

    # -- restarts

    def _act(self) -> None:
        """Do what is due: start nodes again, ask whether the cluster is whole, stop the next one."""
        now = time.monotonic()
        for node_id in [one for one, at in self._due.items() if at <= now]:
            del self._due[node_id]
            try:
                self._start(node_id)
            except OSError as e:
                pause_s = self._pauses.after_run(node_id, 0.0)
                self._due[node_id] = now + pause_s
                self._print([f"node {node_id} could not be started: {e}; it is tried again in {pause_s:g} s"])
            else:
                self._roster.note_start(node_id)
        roll = self._roll
        if roll is None or not self._roster.all_serve:
            self._ask_at = now + _ROUND_S
            return
        roll.stopped = None
        if roll.is_done:
            self._roll = None
            self._print(["rolling restart: done"])
        elif roll.is_whole and (why := self._refused()) is not None:
            self._roll = None
            self._print([f"rolling restart: ends here, as no node would start with these settings: {why}"])
        elif roll.is_whole:
            node_id = roll.next_node()
            self._print([f"rolling restart: node {node_id}"])
            self._roster.note_stop(node_id)
            self._processes[node_id].terminate()
        elif self._ask_at <= now:
            self._ask_at = now + _ROUND_S
            words = question(roll.begin_round(self._roster.living))
            for node_id in self._roster.living:
                self._ask(node_id, words)

    def _ask(self, node_id: int, words: bytes) -> None:
        stdin = self._processes[node_id].stdin
        assert stdin is not None
        # One that hangs or has just ended does not answer, so the restart does not go on.
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(stdin.fileno(), words)

    def _answered(self, node_id: int, line: str) -> None:
        number, _, lacks = line.removeprefix(ANSWER).partition(" ")
        if self._roll is not None and number.isdigit():
            self._print(self._roll.note_answer(node_id, int(number), lacks))

    def _begin_roll(self) -> None:
        if self._roll is not None:
            self._print(["rolling restart: under way already"])
            return
        self._roll = RollingRestart([one for group in self._in_order() for one in group])
        self._ask_at = 0.0
        self._print(["rolling restart: begins"])

    def _in_order(self) -> Iterator[list[int]]:
        """Yield the pure brokers, then the controllers."""
        for is_controller in (False, True):
            yield [one.node_id for one in self._children.values() if one.is_controller is is_controller]

    def _print(self, lines: Iterable[str]) -> None:
        for line in lines:
            try:
                self._say(line)
            except OSError as e:
                if not self._is_supervised and e.errno in (errno.EPIPE, errno.EIO):
                    self.events.put(_StopSignal(signal.SIGHUP))  # the reader or the terminal is gone
                else:  # a full disk, a reader of a service's lines: no reason to end nodes
                    _log(f"{line} (not on stdout: {e.strerror})\n".encode())

    # -- the end

    def _stop(self) -> None:
        """End all nodes: pure brokers first, while there are controllers to move their leaderships."""
        self._roster.stop()
        self._due.clear()
        self._roll = None
        for ids in self._in_order():
            self._end(set(ids))

    def _end(self, ids: set[int]) -> None:
        for node_id in ids & set(self._roster.living):
            self._processes[node_id].terminate()
        deadline = None if self._patience_s is None else time.monotonic() + self._patience_s
        killed = False
        while ids & set(self._roster.living):
            rest = None if killed or deadline is None else max(0.0, deadline - time.monotonic())
            try:
                event = self.events.get(timeout=rest)
            except queue.Empty:
                event = _StopSignal()
            if isinstance(event, _StopSignal):
                if not event.insists:
                    continue
                killed = True
                is_late = deadline is not None and time.monotonic() >= deadline
                doomed = ids if is_late else self._processes.keys()
                for node_id in doomed & set(self._roster.living):
                    self._processes[node_id].kill()
            elif not isinstance(event, _RollSignal):
                self._handle(event)

    def kill(self) -> None:
        """Kill the children that are left, after any error."""
        for node_id, process in self._processes.items():
            if process.poll() is None:
                process.kill()
            process.wait()
            self._close(node_id)

    def _close(self, node_id: int) -> None:
        """Close the pipe to a child that has ended."""
        stdin = self._processes[node_id].stdin
        if stdin is not None:
            with contextlib.suppress(OSError):
                stdin.close()


def _copy_log(prefix: bytes, stream: IO[bytes]) -> None:
    """Copy each line of a child's log to stderr, with the child's name; JSON has it in its objects."""
    with stream:
        while line := stream.readline(_LINE_BYTES):
            _log(line if line.startswith(b'{"time": ') else prefix + line)


def _log(line: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):  # without a reader a node must not block
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
