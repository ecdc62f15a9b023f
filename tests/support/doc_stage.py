"""The place where commands of a page are run: a network, processes and an /etc of its own, by `unshare`.

So the addresses that pages name are free, and what is started there ends there. ``python -m
tests.support.doc_stage PAGE FOLDER`` is what runs inside.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from tests.support.doc_blocks import Block, blocks
from tests.support.doc_kafka_tools import SCRIPTS
from tests.support.doc_shell import typed
from tests.support.kafka_tools import RUNNER
from tests.support.processes import FIRN, PYTHON, REPOSITORY

SCENES = REPOSITORY / "tests" / "process" / "scenes"
PYTHON_PAGES = ("README.md", "docs/first-hour.md", "docs/spark.md")
"""Pages whose Python is run where Spark is: what stands between two blocks of a shell as one program."""
SPARK_PAGES = ("docs/pipelines.md", "docs/spark.md")
"""Pages of which nothing can be run without Spark."""
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
    return [one for one in blocks(page) if not one.mark and (one.is_shell or is_run_python(one))]


def is_run_python(block: Block) -> bool:
    """Return whether a block of Python is run, too; of other pages it is checked alone."""
    if block.language != "python" or block.page not in PYTHON_PAGES:
        return False
    return "spark" not in block.text or has_spark()


def has_spark() -> bool:
    return find_spec("pyspark") is not None


def can_unshare() -> bool:
    """Return whether this user may have a network of his own."""
    return subprocess.run([*_UNSHARE, "true"], capture_output=True, check=False).returncode == 0


def perform(page: str, folder: Path, seconds: float = 900) -> Performance:
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
    process = subprocess.Popen(["bash", str(script)], cwd=folder / "work", env=environment)
    while True:  # this is the first process here: whoever loses his parent is its child
        ended, status = os.wait()
        if ended == process.pid:
            return os.waitstatus_to_exitcode(status)


def _own_machine(folder: Path) -> None:
    """Bring the loopback interface up, name this machine as pages do, empty /tmp, let /etc be written."""
    for directory in ("/etc", "/var/lib", str(REPOSITORY)):
        upper, work = folder / "over" / directory[1:], folder / "under" / directory[1:]
        for one in (upper, work):
            one.mkdir(parents=True)
        options = f"lowerdir={directory},upperdir={upper},workdir={work}"
        _run("mount", "-t", "overlay", "overlay", "-o", options, directory)
    _empty_tmp(folder, REPOSITORY, PYTHON.parents[1].resolve())
    _run("mount", "-t", "proc", "proc", "/proc")
    _run("ip", "link", "set", "lo", "up")
    Path("/etc/hosts").write_text(f"127.0.0.1 {' '.join(HOSTS)} {socket.gethostname()}\n::1 localhost\n")
    Path("/etc/firn").mkdir(exist_ok=True)


def _empty_tmp(*kept: Path) -> None:
    """Have a /tmp with these folders alone, so far as they are in it."""
    kept = tuple(one for one in kept if one.is_relative_to("/tmp"))
    aside = [Path("/mnt") / str(number) for number, _ in enumerate(kept)]
    _run("mount", "-t", "tmpfs", "tmpfs", "/mnt")
    for one, place in zip(kept, aside, strict=True):
        place.mkdir()
        _run("mount", "--bind", one, place)
    _run("mount", "-t", "tmpfs", "tmpfs", "/tmp")
    for one, place in zip(kept, aside, strict=True):
        one.mkdir(parents=True, exist_ok=True)
        _run("mount", "--move", place, one)


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True)


def _programs(folder: Path) -> None:
    """Put `firn`, whose servers stay in the background, `make` and Kafka's tools into a folder."""
    folder.mkdir()
    text = (SCENES / "firn").read_text().replace("@FIRN@", str(FIRN))
    _program(folder / "firn", text)
    as_installed = " ".join(f"-o {name}" for name in (".venv/.installed", ".venv/.kernel", ".venv/.spark"))
    _program(folder / "make", f'#!/bin/sh\nexec /usr/bin/make -C {REPOSITORY} {as_installed} "$@"\n')
    for script, tool in SCRIPTS.items():
        for name in (script, f"{script}.sh"):
            _program(folder / name, f'#!/bin/sh\nexec {RUNNER} {tool} "$@"\n')


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _begins(block: Block, folder: Path) -> str:
    return f"echo '{block.place}' >> {folder / 'begun'}"


def _script(page: str, folder: Path) -> str:
    name = page.lower().removesuffix(".md")
    name = name if name.endswith("/readme") else name.removeprefix("docs/")
    scene = SCENES / f"{name.replace('/', '-')}.sh"
    lines = ["set -e -o pipefail", f"source {SCENES / 'common.sh'}"]
    if scene.exists():
        lines.append(f"source {scene}")
    for is_python, found in groupby(run_blocks(page), is_run_python):
        together = list(found)
        if is_python:
            program = folder / f"{len(lines)}.py"
            program.write_text("".join(block.text for block in together))
            lines += [_begins(together[0], folder), f"python {program}"]
            continue
        for block in together:
            text = typed(block.text) if block.language == "console" else block.text
            lines += [_begins(block, folder), "set -x", text.rstrip("\n"), "{ set +x; } 2> /dev/null"]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
