"""A node as a process of its own: signals, the event loop and its watch, the `ready` line, the exit code."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

from service.base.errors import ConfigError, CorruptionError, StorageError
from service.base.release import release
from service.base.stop_signals import receive_stops, receive_unused
from service.base.turn_queues import turn_queues
from service.base.turns import TurnTimes
from service.base.world import World, system_world
from service.config.settings import BrokerConfig
from service.node import banner
from service.node.event_loop import LoopWatch, new_loop
from service.node.gc_policy import GcPolicy
from service.node.heap import heap_usage, set_up_heap
from service.node.memory_trim import MemoryTrimmer
from service.node.node import Node
from service.node.node_parts import NodeParts
from service.node.own_principals import principal_complaints
from service.node.supervisor import NodeEnds, Supervisor
from service.node.whole_question import Asks, answer

log = logging.getLogger(__name__)

OpenConsole = Callable[[NodeParts, World], AbstractAsyncContextManager[str]]
"""Serves the console of a node's parts over HTTP while the context lasts; gives the URL."""

SWITCH_S: Final = 0.0005
"""How long a thread keeps the interpreter while others wait for it. The loop releases it in each system call
and waits that long to get it back: with Python's 5 ms, a request of three system calls waits 15 ms beside one
thread that decodes a manifest."""


def run_server(
    config: BrokerConfig,
    open_console: OpenConsole | None = None,
    remarks: Sequence[str] = (),
    asks: Asks | None = None,
) -> int:
    """Run a node until SIGTERM, SIGINT or SIGHUP; return the process's exit code.

    `remarks`: warnings about the settings, for the log. `asks`: questions of the process that runs
    this one, which are answered on stdout once the node serves.

    The node handles these signals from then on; after its end they do nothing.
    Prints ``ready: node <id> on <host>:<port>`` once it serves, and ``http: <url>`` where it has a console.
    """
    set_up_heap()
    turns = TurnTimes()
    sys.setswitchinterval(SWITCH_S)
    with asyncio.Runner(loop_factory=lambda: new_loop(turns, time.monotonic, time.thread_time)) as runner:
        return runner.run(_run(config, turns, open_console, remarks, asks))


def _allow_open_files() -> int:
    """Raise the soft limit of open files to the hard one; return it.

    Every partition's newest segment and every connection is an open file: the usual 1,024 are too few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def _resident_bytes(statm: int) -> int:
    """Return the resident memory that this process does not share, from the open ``/proc/self/statm``: an
    open file can be read even when no other can be opened."""
    _, resident, shared, *_ = os.pread(statm, 256, 0).split()
    return (int(resident) - int(shared)) * resource.getpagesize()


def _trimmer() -> Callable[[], None] | None:
    """Return a function that returns free memory to the system; None where the C library has none."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None or not Path("/proc/self/statm").exists():
        return None
    return lambda: trim(0)


def _stop_at_signals(loop: asyncio.AbstractEventLoop, supervisor: Supervisor) -> None:
    """Let SIGTERM, SIGINT and SIGHUP stop the node in order.

    Not by the loop's own handlers: the loop removes them when it closes, and a second SIGTERM would then kill
    a process that has ended in order.
    """

    def stop(number: signal.Signals) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(supervisor.stop, number.name)

    def unused(number: signal.Signals) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(log.info, "%s has no use here, ignoring it", number.name)

    receive_stops(stop)
    receive_unused(unused)


def _answer_questions(loop: asyncio.AbstractEventLoop, asks: Asks, parts: NodeParts) -> None:
    """Answer the questions of the process that runs this one."""

    def say(number: int) -> None:
        print(answer(number, parts.lacks()), flush=True)

    def ask(number: int) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(say, number)

    asks(ask)


async def _run(
    config: BrokerConfig,
    turns: TurnTimes,
    open_console: OpenConsole | None,
    remarks: Sequence[str],
    asks: Asks | None,
) -> int:
    running = release()
    for line in banner.starting(config, running, os.getpid()):
        log.info("%s", line)
    if banner.has_slow_kernels(running):
        log.warning("%s", banner.SLOW_KERNELS)
    for complaint in (*remarks, *config.cluster.complaints(), *principal_complaints(config)):
        log.warning("configuration: %s", complaint)
    open_files = _allow_open_files()
    supervisor = Supervisor()
    loop = asyncio.get_running_loop()
    _stop_at_signals(loop, supervisor)
    world = system_world()
    node = Node(config, supervisor, world, open_files=open_files, turns=turns)
    watch = LoopWatch(turns, world.threads, threading.get_ident(), node.parts.name_of)
    slices = turn_queues(loop).slices
    policy = GcPolicy(
        turns, time.monotonic, is_loading=node.parts.is_loading, slices_taken=lambda: slices.taken
    )
    try:
        async with AsyncExitStack() as stack:
            url = ""
            if open_console is not None:
                url = await stack.enter_async_context(open_console(node.parts, world))
            # Objects of the start live until the end, even ten thousand partitions: no collection needs to
            # traverse them, now or later.
            gc.disable()
            await node.start(stack)
            policy.begin()
            gc.enable()
            supervisor.run("garbage", policy.run())
            if (trim := _trimmer()) is not None:
                pool = world.threads.pool("memory", 1)
                stack.callback(pool.shutdown, wait=False)
                statm = os.open("/proc/self/statm", os.O_RDONLY)  # for as long as the process lives
                resident = partial(_resident_bytes, statm)
                trimmer = MemoryTrimmer(
                    resident, trim, pool, lambda: slices.taken, sys.getallocatedblocks, heap_usage()
                )
                supervisor.run("memory", trimmer.run())
            await asyncio.sleep(0)
            watch.start()
            log.info("node %d serves on %s", config.node_id, banner.bound(node.parts.listening))
            host, port = node.parts.address
            print(
                f"ready: node {config.node_id} on {host}:{port}",
                *([f"http: {url}"] if url else ()),
                sep="\n",
                flush=True,
            )
            if asks is not None:
                _answer_questions(loop, asks, node.parts)
            await supervisor.stopped()
            node.parts.is_serving = False
            log.info("node %d stops%s", config.node_id, supervisor.why)
    except NodeEnds:
        log.info("node %d stops before it served", config.node_id)
    except (ConfigError, CorruptionError, StorageError, OSError) as e:
        log.critical("node %d: %s", config.node_id, e)
        return 1
    finally:
        watch.close()
    return 0 if supervisor.failure is None else 1
