"""Console of `firn dev`: a process of its own that ends with the node's."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from service.base.world import World

if TYPE_CHECKING:
    from service.node.node_parts import NodeParts
    from service.node.process import OpenConsole

LOOK_S = 0.05
SURVEY_S = 15
"""The embedded S3 is small, and changes while the user watches it."""


def with_console(
    open_console: OpenConsole, *, node_id: int, port: int, log_level: str, command_config: Path | None = None
) -> OpenConsole:
    """Wrap `open_console` so that a console on `port` (0 for a free one) shows what it opens.

    `command_config`: how the console connects, if not by PLAINTEXT.
    """
    return partial(_opened, open_console, node_id, port, log_level, command_config)


@asynccontextmanager
async def _opened(
    open_console: OpenConsole,
    node_id: int,
    port: int,
    log_level: str,
    command_config: Path | None,
    node: NodeParts,
    world: World,
) -> AsyncIterator[str]:
    async with open_console(node, world) as url:
        started: list[subprocess.Popen[bytes]] = []
        starting = asyncio.get_running_loop().create_task(
            _start(node, f"{node_id}={url}", port, log_level, command_config, started)
        )
        try:
            yield url
        finally:
            starting.cancel()
            for process in started:
                end_console(process)


async def _start(
    node: NodeParts,
    metrics: str,
    port: int,
    log_level: str,
    command_config: Path | None,
    started: list[subprocess.Popen[bytes]],
) -> None:
    """Wait until the node serves and its port is known; then start the console."""
    while not node.is_serving:
        await asyncio.sleep(LOOK_S)
    host, bootstrap_port = node.address
    bootstrap = f"{host}:{bootstrap_port}"
    started.append(start_console(bootstrap, [metrics], port, log_level, command_config))


def start_console(
    bootstrap: str, metrics: Sequence[str], port: int, log_level: str, command_config: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start the console's process. `metrics`: ``NODE=URL`` of each node's HTTP listener."""
    listeners = [word for one in metrics for word in ("--metrics", one)]
    login = () if command_config is None else ("--command-config", str(command_config))
    command = [
        sys.executable, "-P", "-m", "service.cli.main", "console",
        "--bootstrap", bootstrap,
        *listeners,
        *login,
        "--port", str(port),
        "--survey-every", str(SURVEY_S),
        "--log-level", log_level,
        "--until-eof",
    ]  # fmt: skip
    # The end of its standard input tells it that this process has ended, for whatever reason.
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def end_console(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(timeout=3)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
