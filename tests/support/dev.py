"""`firn dev --nodes N` as a user starts it: one command, in a process of its own, on free ports."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.support.processes import FIRN, end, wait_until
from tests.support.stores import CREDENTIALS, Store


class DevNodes(NamedTuple):
    """Nodes of `firn dev`, as its lines name them."""

    bootstrap: str
    data: tuple[Path, ...]
    """of each node"""
    store: Store
    log: Path
    """all that they and their command print"""


@contextlib.contextmanager
def dev_nodes(folder: Path, nodes: int, settings: Mapping[str, str], turn: Path) -> Iterator[DevNodes]:
    """So many nodes, beside those of other workers; at the end they must leave, and well, with their data.

    `turn`: a file that all workers lock: ports are agreed on a moment before they are listened on.
    """
    folder.mkdir(parents=True)
    log, place = folder / "firn-dev.log", folder / "tmp"
    place.mkdir()
    command = [str(FIRN), "dev", "--nodes", str(nodes), "--port", "0"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    with contextlib.ExitStack() as stack:
        with turn.open("w") as mine, log.open("ab") as output:
            fcntl.flock(mine, fcntl.LOCK_EX)
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "TMPDIR": str(place)},
            )
            stack.callback(end, process, 60)
            _wait_until_ready(process, log)
        yield _said(log, nodes)
        process.terminate()
        code = process.wait(120)
        assert code == 0, f"firn dev ended with {code}; {tail(log)}"
        assert list(place.iterdir()) == [], "its data stayed"


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    def is_ready() -> bool:
        assert process.poll() is None, f"firn dev ended with {process.returncode}"
        return any(line.startswith("ready: ") for line in log.read_text(errors="replace").splitlines())

    try:
        wait_until("firn dev to be ready", is_ready, 120)
    except AssertionError as e:
        raise AssertionError(f"{e}; {tail(log)}") from None


def _said(log: Path, nodes: int) -> DevNodes:
    words = [line.partition(": ") for line in log.read_text(errors="replace").splitlines()]
    said = {word: rest for word, _, rest in words}
    data, endpoint = Path(said["data"]), said["s3"]
    folders = tuple(data / f"node-{number}" for number in range(1, nodes + 1)) if nodes > 1 else (data,)
    store = Store(said["bucket"], {"firn.remote.s3.endpoint": endpoint}, CREDENTIALS, endpoint)
    return DevNodes(said["ready"].rpartition(" ")[2], folders, store, log)


def tail(log: Path, lines: int = 60) -> str:
    return f"{log.name} ends:\n" + "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
