"""The place where commands of a page are run: a network, processes and an /etc of its own, by `unshare`.

So the addresses that pages name are free, and what is started there ends there. ``python -m
tests.support.doc_stage PAGE FOLDER`` is what runs inside.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.support.doc_blocks import Block, blocks
from tests.support.doc_kafka_tools import SCRIPTS
from tests.support.doc_shell import typed
from tests.support.kafka_tools import RUNNER
from tests.support.processes import FIRN, PYTHON, REPOSITORY

SCENES = REPOSITORY / "tests" / "process" / "scenes"
HOSTS = ("localhost", "host", "HOST", "broker", "a", "b", "c", "node-1", "node-2", "node-3", "master")
"""Names of machines in documents; all of them are this one."""
_UNSHARE = ("unshare", "--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child")


class Performance(NamedTuple):
    """What came of a page: exit code, the block that was begun last, all that was printed."""

    code: int
    last: str
    output: str


def run_blocks(page: str) -> list[Block]:
    """Return the blocks of a page that are run."""
    return [block for block in blocks(page) if block.is_shell and not block.mark]


def can_unshare() -> bool:
    """Return whether this user may have a network of his own."""
    return subprocess.run([*_UNSHARE, "true"], capture_output=True, check=False).returncode == 0


def perform(page: str, folder: Path, seconds: float = 240) -> Performance:
    """Run the blocks of a page in order; the first command that fails ends it."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [*_UNSHARE, str(PYTHON), "-m", "tests.support.doc_stage", page, str(folder)]
    log = folder / "transcript"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = -1
        finally:
            process.kill()
            process.wait()
    begun = folder / "begun"
    last = begun.read_text().splitlines()[-1] if begun.exists() and begun.stat().st_size else "the scene"
    return Performance(code, last, log.read_text("utf-8", errors="replace"))


# -- inside


def main(page: str, folder: Path) -> int:
    """Run a page here; return the exit code of its script."""
    _own_machine(folder)
    _programs(folder / "bin")
    for name in ("home", "tmp", "work"):
        (folder / name).mkdir()
    script = folder / "script"
    script.write_text(_script(page, folder))
    kept = ("LANG", "LC_ALL", "TZ", "JAVA_HOME", "KAFKA_LIBS", "KAFKA_APPS")
    environment = {
        **{name: os.environ[name] for name in kept if name in os.environ},
        "PATH": f"{folder / 'bin'}:{PYTHON.parent}:{os.environ['PATH']}",
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "STAGE": str(folder),
        "REPOSITORY": str(REPOSITORY),
        "SCENES": str(SCENES),
    }
    done = subprocess.run(["bash", str(script)], cwd=folder / "work", env=environment, check=False)
    return done.returncode


def _own_machine(folder: Path) -> None:
    """Bring the loopback interface up, name this machine as pages do, and have an /etc to write to."""
    for directory in ("/etc", "/var/lib"):
        upper, work = folder / "over" / directory[1:], folder / "under" / directory[1:]
        for one in (upper, work):
            one.mkdir(parents=True)
        options = f"lowerdir={directory},upperdir={upper},workdir={work}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, directory], check=True)
    subprocess.run(["mount", "-t", "proc", "proc", "/proc"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    Path("/etc/hosts").write_text(f"127.0.0.1 {' '.join(HOSTS)}\n::1 localhost\n")
    Path("/etc/firn").mkdir(exist_ok=True)


def _programs(folder: Path) -> None:
    """Put `firn`, whose servers go into the background, and Kafka's tools into a folder."""
    folder.mkdir()
    text = (SCENES / "firn").read_text().replace("@FIRN@", str(FIRN))
    _program(folder / "firn", text)
    for script, tool in SCRIPTS.items():
        for name in (script, f"{script}.sh"):
            _program(folder / name, f'#!/bin/sh\nexec {RUNNER} {tool} "$@"\n')


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _script(page: str, folder: Path) -> str:
    scene = SCENES / f"{Path(page).stem.lower()}.sh"
    lines = ["set -e -o pipefail", f"source {SCENES / 'common.sh'}"]
    if scene.exists():
        lines.append(f"source {scene}")
    for block in run_blocks(page):
        text = typed(block.text) if block.language == "console" else block.text
        lines += [f"echo '{block.place}' >> {folder / 'begun'}", "set -x", text.rstrip("\n")]
        lines.append("{ set +x; } 2> /dev/null")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
