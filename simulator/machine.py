"""One machine: a disk, a clock and, one after the other, the processes of a node that run on it."""

from __future__ import annotations

import logging
import traceback
from array import array
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from enum import Enum
from pathlib import Path
from random import Random
from typing import Any, Final

from service.base.errors import ConfigError, CorruptionError, StorageError
from service.base.world import World
from service.config.settings import BrokerConfig
from service.hot.log_dir import BOOT_ID
from service.node.node import Node
from service.node.supervisor import NodeEnds, Supervisor
from simulator.loop import Loop
from simulator.power_loss import File, Loss, Platter
from simulator.process import CURRENT, Life, Process
from simulator.process_disk import DiskFaults, SimDisk
from simulator.store import Bucket, SimStore, StoreFaults
from simulator.threads import SimThreads
from simulator.trace import Trace

BEGAN_MS: Final = 1_700_000_000_000
PORT: Final = 9092
OPEN_FILES: Final = 256
"""limit of open files that a node gets, connections included"""


class State(Enum):
    """State of a node's process."""

    STARTING = "starting"
    READY = "ready"
    REFUSED = "refused to start"
    STOPPED = "stopped"
    FAILED = "ended because something failed"
    KILLED = "killed"
    BUG = "ended by an error that is none of ours"


class SimClock:
    """`service.base.clock.Clock`: the wall clock can be set, the monotonic one cannot."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.ahead_ms = 0
        self.rate = 1.0
        """seconds that go by here in one of the world's; processes that are started later have it, too"""

    def now_ms(self) -> int:
        return BEGAN_MS + self.ahead_ms + int(self._loop.now_s * self.rate * 1000)

    def monotonic_ms(self) -> int:
        return 1_000_000 + int(self._loop.now_s * self.rate * 1000)


class SimSharedMemory:
    """`service.base.shared_memory.SharedMemory`: what a machine has, for one process."""

    def __init__(self, blocks: dict[str, array[int]], process: Process) -> None:
        self._blocks = blocks
        self._process = process

    def open(self, name: str) -> SimBlock:
        return SimBlock(self._blocks, name, self._process)


class SimBlock:
    """A block of shared memory. A dead process writes no more to it."""

    def __init__(self, blocks: dict[str, array[int]], name: str, process: Process) -> None:
        self._blocks = blocks
        self._name = name
        self.words = blocks.setdefault(name, array("q"))
        process.at_death.append(self.close)

    def grow(self, count: int) -> None:
        self.words.extend([0] * (count - len(self.words)))

    def remove(self) -> None:
        self._blocks.pop(self._name, None)

    def close(self) -> None:
        self.words = array("q")


class Machine:
    """A node's machine: the state that its processes share, such as disk, `faults` and `store_faults`."""

    def __init__(
        self,
        name: str,
        loop: Loop,
        random: Random,
        trace: Trace,
        bucket: Bucket,
        log_dirs: tuple[Path, ...],
        faults: DiskFaults,
        store_faults: StoreFaults,
        *,
        metadata_dir: Path | None = None,
        most_descriptors: int = 1 << 30,
    ) -> None:
        """`metadata_dir`: where the metadata log is, if that is none of `log_dirs`."""
        self.name = name
        self.loop = loop
        self.random = random
        self.trace = trace
        self.bucket = bucket
        self.log_dirs = log_dirs
        self.faults = faults
        self.store_faults = store_faults
        self.most_descriptors = most_descriptors
        self.clock = SimClock(loop)
        self.store_ms: Callable[[], int] = self.clock.now_ms
        """the bucket's clock"""
        self.metadata_dir = metadata_dir or log_dirs[0]
        self.platter = Platter()
        for path in dict.fromkeys((*log_dirs, self.metadata_dir)):
            self.platter.make_root(path)
        self.run: Run | None = None
        self.memory: dict[str, array[int]] = {}
        """what outlives processes until the power fails"""
        self.boots = 1
        self._runs = 0

    @property
    def address(self) -> tuple[str, int]:
        return self.name, PORT

    @property
    def runs(self) -> int:
        """Number of processes so far."""
        return self._runs

    def start(self, properties: Mapping[str, str]) -> Run:
        """Start a process; it is not ready yet."""
        assert self.run is None or self.run.process.life is Life.DEAD, "it runs already"
        self._runs += 1
        self.run = Run(self, f"{self.name}.{self._runs}", properties)
        return self.run

    @property
    def boot_id(self) -> str:
        return f"{self.name}, run {self.boots}"

    def looked_for_losses(self, log_dir: Path) -> bool:
        """Return whether a process has checked the directory since the last loss of power."""
        node = self.platter.directory(log_dir).names.get(BOOT_ID)
        return isinstance(node, File) and self.boot_id.encode() in node.data.splitlines()

    def kill(self) -> None:
        """SIGKILL: what was written is in the system's cache and stays."""
        if self.run is not None:
            self.run.end(State.KILLED)

    def lose_power(self, loss: Loss, unholed: str = "") -> None:
        """Kill the process and lose unflushed data (`Platter.lose_power`)."""
        self.kill()
        self.platter.lose_power(self.random, loss, unholed)
        self.memory.clear()
        self.boots += 1

    def lose_disk(self) -> None:
        """Kill the process and lose all directories, except a metadata directory of its own."""
        self.kill()
        if self.metadata_dir in self.log_dirs:
            self.platter = Platter()
            self.memory.clear()
            self.boots += 1
        for path in self.log_dirs:
            if self.metadata_dir not in self.log_dirs:
                self.platter.forget(path)
            self.platter.make_root(path)


class Run:
    """One process of a node, from its start to its end."""

    def __init__(self, machine: Machine, name: str, properties: Mapping[str, str]) -> None:
        loop, trace = machine.loop, machine.trace
        self.name = name
        self.state = State.STARTING
        self.reason = ""
        self.process = Process(name)
        self.process.rate = machine.clock.rate
        self._machine = machine
        self._trace = trace
        random = Random(machine.random.getrandbits(64))
        self.threads = SimThreads(loop, self.process, random)
        self.disk = SimDisk(
            machine.platter,
            self.process,
            self.threads,
            machine.faults,
            trace,
            machine.clock.now_ms,
            most_descriptors=machine.most_descriptors,
        )
        chance = Random(random.getrandbits(64))
        memory = SimSharedMemory(machine.memory, self.process)
        self.world = World(
            machine.clock, self.disk, self.threads, chance, boot_id=machine.boot_id, memory=memory
        )
        self.store_calls = 0
        self._random = random
        self._properties = dict(properties)
        self._supervisor: Supervisor | None = None
        self.node: Node | None = None
        self.task = self.process.run(lambda: loop.create_task(self._main()))

    def open_store(self, *_: Any, **__: Any) -> SimStore:
        """Return a client of the bucket for the node."""
        machine = self._machine
        return SimStore(
            machine.bucket, machine.loop, self.process, self.threads, self._random, machine.store_faults,
            self._trace, machine.store_ms,
        )  # fmt: skip

    @property
    def ended(self) -> bool:
        return self.process.life is Life.DEAD

    def stop(self) -> None:
        """SIGTERM."""
        if self._supervisor is not None and not self.ended:
            self.process.run(self._supervisor.stop)

    async def _main(self) -> None:
        """Run the node as `service.node.process.run_server` does, without a real process."""
        try:
            state = await self._serve()
        except NodeEnds:
            state = State.STOPPED
        except (ConfigError, CorruptionError, StorageError, OSError) as e:
            self.reason = f"{type(e).__name__}: {e}"
            state = State.REFUSED if self.state is State.STARTING else State.FAILED
        except Exception as e:  # a bug of the node's: the oracle will say so
            self.reason = f"{type(e).__name__}: {e}"
            logging.getLogger("simulator").exception("%s: a bug", self.name)
            state = State.BUG
        self.end(state)

    async def _serve(self) -> State:
        config = BrokerConfig.from_properties(self._properties)
        supervisor = self._supervisor = Supervisor()
        self.node = make_node(config, supervisor, self)
        async with AsyncExitStack() as stack:
            await self.node.start(stack)
            self.state = State.READY
            self._trace.tell(self.name, "ready")
            await supervisor.stopped()
        if supervisor.failure is not None:
            self.reason = _in_words(supervisor.failure)
            return State.FAILED if _is_of_the_world(supervisor.failure) else State.BUG
        return State.STOPPED

    def end(self, state: State) -> None:
        """End the process in `state`, unless it has ended."""
        if not self.ended:
            self.state = state
            self._trace.tell(self.name, f"{state.value}{': ' if self.reason else ''}{self.reason}")
            self.process.kill()


def make_node(config: BrokerConfig, supervisor: Supervisor, run: Run) -> Node:
    """Make a node as `run_server` does, with the simulated world and store."""
    return Node(config, supervisor, run.world, open_files=OPEN_FILES, open_store=run.open_store)


class NodeLogs(logging.Handler):
    """Handler that puts nodes' log lines into the trace, under the process's name."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(logging.WARNING)
        self._trace = trace
        self.on_line: Callable[[str, str], None] = lambda actor, text: None

    def emit(self, record: logging.LogRecord) -> None:
        process = CURRENT.get(None)
        if process is None or process.life is Life.DEAD:
            return
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f" [{_in_words(record.exc_info[1])}]"
        self._trace.tell(process.name, f"{record.levelname.lower()}: {text}")
        self.on_line(process.name, text)


def _is_of_the_world(error: BaseException) -> bool:
    """Return whether a disk, a store, damage or a setting caused the error, rather than a bug."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_of_the_world, error.exceptions))
    return isinstance(error, (ConfigError, CorruptionError, StorageError, OSError))


def _in_words(error: BaseException) -> str:
    """Describe an error with its file and line; of a group, all its errors."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(map(_in_words, error.exceptions))
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
