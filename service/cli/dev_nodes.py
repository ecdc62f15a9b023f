"""Cluster for `firn dev`: nodes planned out, formatted, and run as child processes that end together.

Ports are chosen before the first node starts. The children have sessions of their own, so Ctrl-C reaches only
this process, which ends them in order, pure brokers before controllers. Each child's standard input is a pipe
from this process, so that the child ends (`firn server --until-eof`) even if this process is killed.

If a node dies, its name is printed and the others continue.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, NamedTuple

from service.base.errors import ConfigError
from service.base.stop_signals import stops_received
from service.base.world import World

if TYPE_CHECKING:
    from service.metadata.records import UserScramCredentialRecord

HOST: Final = "127.0.0.1"
PATIENCE_S: Final = 30.0
"""Time for a node to end before it is killed."""
_READY: Final = "ready: "
FREE_PORTS: Final = range(20_000, 32_000)
"""Below the range of ephemeral ports."""
_LINE_BYTES: Final = 1 << 16
_TAIL_S: Final = 1.0


class Child(NamedTuple):
    """A node to run. Its command prints ``ready: … on HOST:PORT`` once it serves, and ends on SIGTERM."""

    node_id: int
    command: tuple[str, ...]
    is_controller: bool = True
    environ: Mapping[str, str] | None = None


class DevNode(NamedTuple):
    """A node of the plan, with its settings by key."""

    node_id: int
    is_controller: bool
    settings: dict[str, str]

    def child(self, log_level: str, environ: Mapping[str, str] | None = None) -> Child:
        """Return the `firn server` command of this node; the command line shows its ``node.id``."""
        words = [f"{key}={value}" for key, value in self.settings.items()]
        options = [word for one in words for word in ("--set", one)]
        # -P: the working directory may have a `service` of its own.
        firn = (sys.executable, "-P", "-m", "service.cli.main")
        start = (*firn, "server", "--until-eof", "--log-level", log_level)
        return Child(self.node_id, (*start, *options), self.is_controller, environ)


class Plan(NamedTuple):
    """Nodes of one cluster, and the first voters for `firn format`."""

    nodes: tuple[DevNode, ...]
    cluster_id: str
    initial_controllers: str


# -- planning


def agree_on_ports(first: int, nodes: int, controllers: int) -> tuple[list[int], list[int]]:
    """Return ports for the nodes, from `first` on or free ones (0), and free ports for the controllers.

    All are free at the same time. Raises `ConfigError` if one from `first` on is not.
    """
    if first and first + nodes - 1 > 65535:
        raise ConfigError(f"--port {first}: {nodes} nodes need as many ports from that one on")
    with contextlib.ExitStack() as held:
        chosen = [first + i for i in range(nodes)] if first else []
        for port in chosen:
            held.enter_context(_bound(port))
        free = [_free(held) for _ in range(controllers + nodes - len(chosen))]
        return [*chosen, *free[controllers:]], free[:controllers]


def _bound(port: int) -> socket.socket:
    try:
        return _bind(port)
    except OSError as e:
        raise ConfigError(f"cannot listen on port {port} of {HOST}: {e.strerror}") from e


def _free(held: contextlib.ExitStack) -> int:
    chance = random.SystemRandom()
    while True:
        port = chance.choice(FREE_PORTS)
        with contextlib.suppress(OSError):
            held.enter_context(_bind(port))
            return port


def _bind(port: int) -> socket.socket:
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen(1)  # else the address could be shared
    except OSError:
        listener.close()
        raise
    return listener


def plan_nodes(
    nodes: int,
    controllers: int,
    ports: tuple[Sequence[int], Sequence[int]],
    directory: Path,
    world: World,
    settings: Mapping[str, str],
) -> Plan:
    """Plan `nodes` nodes, the first `controllers` of which are controllers, too; `ports` are those of
    `agree_on_ports`. `settings` apply to all nodes, unless the cluster needs other values."""
    from service.hot.log_dir import encode_uuid, random_id
    from service.metadata.bootstrap import InitialController

    if not 1 <= controllers <= nodes:
        raise ConfigError(f"--controllers {controllers}: must be from 1 to the number of nodes ({nodes})")
    brokers, quorum = ports
    voters = [InitialController(i + 1, HOST, port, random_id(world)) for i, port in enumerate(quorum)]
    bootstrap = ",".join(f"{HOST}:{port}" for port in quorum)
    planned = []
    for number, port in enumerate(brokers):
        is_controller = number < controllers
        own = f",CONTROLLER://{HOST}:{quorum[number]}" if is_controller else ""
        planned.append(
            DevNode(
                number + 1,
                is_controller,
                {
                    **settings,
                    "node.id": str(number + 1),
                    "process.roles": "broker,controller" if is_controller else "broker",
                    "controller.quorum.bootstrap.servers": bootstrap,
                    "controller.listener.names": "CONTROLLER",
                    "listeners": f"PLAINTEXT://{HOST}:{port}{own}",
                    "log.dirs": str(directory / f"node-{number + 1}"),
                },
            )
        )
    return Plan(tuple(planned), encode_uuid(random_id(world)), ",".join(map(str, voters)))


def format_nodes(
    plan: Plan,
    world: World,
    features: Mapping[str, int] | None = None,
    credentials: tuple[UserScramCredentialRecord, ...] = (),
) -> None:
    """Format the nodes' directories, with the first voters of the plan and the users of `credentials`.

    `features` start at these levels, the others at their newest.
    """
    from service.config.cluster import ClusterConfig
    from service.metadata.bootstrap import parse_initial_controllers
    from service.metadata.features import cluster_features
    from service.metadata.formatting import Order, effective_levels, format_directories

    levels = effective_levels(features or {}, cluster_features(), is_dynamic=True)
    for node in plan.nodes:
        cluster = ClusterConfig.from_properties(node.settings)
        order = Order(
            plan.cluster_id,
            node.node_id,
            cluster.directories,
            cluster.metadata_log_dir,
            cluster.controller_listener_names[0],
            levels,
            parse_initial_controllers(plan.initial_controllers),
            credentials=credentials,
        )
        format_directories(world, order, lambda _: None)


# -- running


class Roster:
    """State of the nodes, and the lines to print about it. Pure: starts and ends no process. [P]

    >>> roster = Roster([1, 2])
    >>> roster.note_line(1, "ready: node 1 on 127.0.0.1:9092"), roster.note_line(1, "http: http://127.0.0.1:9464")
    ([], ['node 1: http: http://127.0.0.1:9464'])
    >>> roster.note_line(2, "ready: node 2 on 127.0.0.1:9093")
    ['ready: nodes 1, 2 on 127.0.0.1:9092,127.0.0.1:9093']
    >>> roster.note_exit(2, -9)
    ['node 2 was ended by SIGKILL; node 1 continues']
    """

    def __init__(self, node_ids: Iterable[int]) -> None:
        self._addresses: dict[int, str] = {}
        self._living = list(node_ids)
        self._has_said_ready = False
        self.is_stopping = False
        self.exit_code = 0

    @property
    def living(self) -> tuple[int, ...]:
        """Ids of the nodes whose end was not noted yet."""
        return tuple(self._living)

    def note_line(self, node_id: int, line: str) -> list[str]:
        """Note a line of a node's standard output; return the lines to print."""
        if not line.startswith(_READY):
            return [f"node {node_id}: {line}"]
        self._addresses[node_id] = line.rpartition(" ")[2]
        return self._ready()

    def note_exit(self, node_id: int, code: int) -> list[str]:
        """Note the end of a node, with its exit code or, negative, a signal; return the lines to print."""
        self._living.remove(node_id)
        how = f"was ended by {_signal_name(-code)}" if code < 0 else f"ended with status {code}"
        if self.is_stopping:
            if code == 0:
                return []
            self.exit_code = 1
            return [f"node {node_id} {how}"]
        if not self._living:
            self.exit_code = 1
            return [f"node {node_id} {how}; no node is left"]
        ids = ", ".join(map(str, self._living))
        rest = f"nodes {ids} continue" if len(self._living) > 1 else f"node {ids} continues"
        return [f"node {node_id} {how}; {rest}", *self._ready()]

    def _ready(self) -> list[str]:
        if self._has_said_ready or self.is_stopping or not set(self._living) <= self._addresses.keys():
            return []
        self._has_said_ready = True
        ids = ", ".join(map(str, self._living))
        addresses = ",".join(self._addresses[node_id] for node_id in self._living)
        return [f"{_READY}nodes {ids} on {addresses}"]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class _Line(NamedTuple):
    node_id: int
    line: str


class _Exit(NamedTuple):
    node_id: int
    code: int


class _StopSignal(NamedTuple):
    """Signal that ends this process; SIGHUP, too, if nobody reads its output any more."""

    number: signal.Signals = signal.SIGTERM

    @property
    def insists(self) -> bool:
        """Return whether a second one kills. Kernel and shell both send SIGHUP when a terminal closes."""
        return self.number != signal.SIGHUP


_Event = _Line | _Exit | _StopSignal


def run_nodes(
    children: Sequence[Child],
    *,
    say: Callable[[str], None] = lambda line: print(line, flush=True),
    patience_s: float = PATIENCE_S,
) -> int:
    """Run all nodes until SIGTERM, SIGINT or SIGHUP, or until none is left; return the exit code.

    For the main thread. A second signal kills the nodes that are still ending. Raises `OSError` if a child
    cannot be started; no child is left running then.
    """
    nodes = _Nodes(children, say, patience_s)
    with stops_received(lambda number: nodes.events.put(_StopSignal(number))):
        try:
            nodes.start()
            return nodes.run()
        finally:
            nodes.kill()


class _Nodes:
    """Child processes. Threads read their output and wait for their ends; the main thread does the rest, one
    event after the other."""

    def __init__(self, children: Sequence[Child], say: Callable[[str], None], patience_s: float) -> None:
        self._children = children
        self._say = say
        self._patience_s = patience_s
        self._roster = Roster(child.node_id for child in children)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._readers: list[threading.Thread] = []
        self.events: queue.SimpleQueue[_Event] = queue.SimpleQueue()

    def start(self) -> None:
        for child in self._children:
            process = subprocess.Popen(
                child.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=None if child.environ is None else {**os.environ, **child.environ},
                start_new_session=True,
            )
            self._processes[child.node_id] = process
            assert process.stdout is not None
            assert process.stderr is not None
            name = f"node {child.node_id}"
            self._thread(f"{name} says", self._read, child.node_id, process.stdout)
            self._thread(f"{name} logs", _copy_log, f"{name}: ".encode(), process.stderr)
            waiting = threading.Thread(target=self._wait, args=(child.node_id, process), daemon=True)
            waiting.start()

    def _thread(self, name: str, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        thread.start()
        self._readers.append(thread)

    def _read(self, node_id: int, stream: IO[bytes]) -> None:
        with stream:
            while line := stream.readline(_LINE_BYTES):
                self.events.put(_Line(node_id, line.decode("utf-8", "replace").rstrip("\r\n")))

    def _wait(self, node_id: int, process: subprocess.Popen[bytes]) -> None:
        self.events.put(_Exit(node_id, process.wait()))

    def run(self) -> int:
        while self._roster.living:
            if isinstance(event := self.events.get(), _StopSignal):
                self._stop()
                break
            self._handle(event)
        # read the last lines, but do not wait for other processes that hold the children's pipes
        deadline = time.monotonic() + _TAIL_S
        for reader in self._readers:
            reader.join(max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(queue.Empty):
            while True:
                self._handle(self.events.get_nowait())
        return self._roster.exit_code

    def _handle(self, event: _Event) -> None:
        match event:
            case _Line(node_id, line):
                self._print(self._roster.note_line(node_id, line))
            case _Exit(node_id, code):
                self._print(self._roster.note_exit(node_id, code))
            case _StopSignal():
                pass  # a second signal has no effect once no node is left

    def _print(self, lines: Iterable[str]) -> None:
        for line in lines:
            try:
                self._say(line)
            except OSError as e:
                if e.errno not in (errno.EPIPE, errno.EIO):
                    raise
                self.events.put(_StopSignal(signal.SIGHUP))  # the reader or the terminal is gone

    def _stop(self) -> None:
        """End all nodes: pure brokers first, while there are controllers to move their leaderships."""
        self._roster.is_stopping = True
        for is_controller in (False, True):
            ids = {one.node_id for one in self._children if one.is_controller is is_controller}
            self._end(ids)

    def _end(self, ids: set[int]) -> None:
        for node_id in ids & set(self._roster.living):
            self._processes[node_id].terminate()
        deadline = time.monotonic() + self._patience_s
        killed = False
        while ids & set(self._roster.living):
            try:
                event = self.events.get(timeout=None if killed else max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                event = _StopSignal()
            if isinstance(event, _StopSignal):
                if not event.insists:
                    continue
                killed = True
                doomed = ids if time.monotonic() >= deadline else self._processes.keys()
                for node_id in doomed & set(self._roster.living):
                    self._processes[node_id].kill()
            else:
                self._handle(event)

    def kill(self) -> None:
        """Kill the children that are left, after any error."""
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()


def _copy_log(prefix: bytes, stream: IO[bytes]) -> None:
    """Copy each line of a child's log to stderr, with the child's name; JSON has it in its objects."""
    with stream:
        while line := stream.readline(_LINE_BYTES):
            with contextlib.suppress(OSError, ValueError):  # without a reader a node must not block
                sys.stderr.buffer.write(line if line.startswith(b'{"time": ') else prefix + line)
                sys.stderr.buffer.flush()
