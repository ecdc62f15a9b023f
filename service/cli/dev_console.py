"""The console beside `firn dev`: a process of its own that ends with the node's."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from service.base.clock import Clock

if TYPE_CHECKING:
    from service.node.node import Node
    from service.node.process import OpenConsole

LOOK_S = 0.05
SURVEY_S = 15
"""What is in the embedded S3 is little, and changes while one looks."""


def with_console(open_console: OpenConsole, *, node_id: int, port: int, log_level: str) -> OpenConsole:
    """Opens what `open_console` opens, and a console that shows it, on `port` (0 for a free one)."""
    return partial(_opened, open_console, node_id, port, log_level)


@asynccontextmanager
async def _opened(
    open_console: OpenConsole, node_id: int, port: int, log_level: str, node: Node, clock: Clock
) -> AsyncIterator[str]:
    async with open_console(node, clock) as url:
        started: list[subprocess.Popen[bytes]] = []
        starting = asyncio.get_running_loop().create_task(
            _start(node, f"{node_id}={url}", port, log_level, started)
        )
        try:
            yield url
        finally:
            starting.cancel()
            for process in started:
                end_console(process)


async def _start(
    node: Node, metrics: str, port: int, log_level: str, started: list[subprocess.Popen[bytes]]
) -> None:
    """Waits until the node serves: before that nobody knows its port."""
    while not node.is_serving:
        await asyncio.sleep(LOOK_S)
    host, bootstrap_port = node.address
    started.append(start_console(f"{host}:{bootstrap_port}", [metrics], port, log_level))


def start_console(
    bootstrap: str, metrics: Sequence[str], port: int, log_level: str
) -> subprocess.Popen[bytes]:
    """The console's process. `metrics`: ``NODE=URL`` of each node's HTTP listener."""
    listeners = [word for one in metrics for word in ("--metrics", one)]
    command = [
        sys.executable, "-m", "service.cli.main", "console",
        "--bootstrap", bootstrap,
        *listeners,
        "--port", str(port),
        "--survey-every", str(SURVEY_S),
        "--log-level", log_level,
        "--until-eof",
    ]  # fmt: skip
    # Its standard input is how it learns that this process has ended, however that came.
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def end_console(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(timeout=3)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
