"""Compiler of the kernels on the machine that runs them, once for all of its processes, within a time limit.

Used for a package in a zip alone (`zipped_kernels`); installs compile by setup.py, with the same directives.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path
from typing import Final

LIMIT_S: Final = 120.0
"""Limit for all kernels together; they take ten seconds on one core."""
TRY_AGAIN_S: Final = 3600.0
"""Pause after a failure before the next attempt, which every process would pay for."""
DIRECTIVES: Final = {"boundscheck": False, "wraparound": False, "cdivision": True, "language_level": 3}


class BuildError(Exception):
    """Missing or failing compiler; the message is for people."""


def build(folder: Path, sources: Mapping[str, bytes], environ: Mapping[str, str]) -> dict[str, Path]:
    """Compile `sources` (by file name) into `folder` unless compiled already; return the files by kernel.

    The first process compiles, the others wait for it. Raises `BuildError` or `OSError`.
    """
    compiler = _compiler(environ)
    digest = hashlib.sha256(repr((sys.version, sorted(sources.items()))).encode()).hexdigest()[:32]
    target, failed = folder / f"built-{digest}", folder / f"failed-{digest}"
    deadline_s = time.monotonic() + LIMIT_S
    with _locked(folder / f"lock-{digest}", deadline_s):
        if not target.exists():
            with suppress(FileNotFoundError):
                if time.time() - failed.stat().st_mtime < TRY_AGAIN_S:
                    raise BuildError(failed.read_text("utf-8", "replace"))
            tree = Path(tempfile.mkdtemp(dir=folder, prefix="building-"))
            try:
                _compile(tree, sources, compiler, deadline_s)
                os.replace(tree / "out", target)
            except BuildError as e:
                failed.write_text(str(e), "utf-8")
                raise
            finally:
                shutil.rmtree(tree, ignore_errors=True)
    return {path.name.partition(".")[0]: path for path in target.iterdir()}


def _compiler(environ: Mapping[str, str]) -> list[str]:
    """Return the command that links a shared object as this Python was linked."""
    if find_spec("Cython") is None:
        raise BuildError("Cython is not installed")
    linker = shlex.split(sysconfig.get_config_var("LDSHARED") or "cc -shared")
    for name in (environ.get("CC", ""), linker[0], "cc"):
        if name and (found := shutil.which(name)):
            return [found, *linker[1:]]
    raise BuildError("there is no C compiler")


def _compile(tree: Path, sources: Mapping[str, bytes], compiler: Sequence[str], deadline_s: float) -> None:
    package, out = tree / "service" / "records", tree / "out"
    package.mkdir(parents=True)
    out.mkdir()
    for path in (package, package.parent):
        (path / "__init__.py").touch()
    for name, data in sources.items():
        (package / name).write_bytes(data)
    directives = [word for key, value in DIRECTIVES.items() for word in ("-X", f"{key}={value}")]
    flags = ("-fPIC", "-O3", "-fwrapv", "-DNDEBUG", f"-I{sysconfig.get_path('include')}")
    for stem in (name.removesuffix(".py") for name in sources if name.endswith(".py")):
        written = str(tree / f"{stem}.c")
        module = ("--module-name", f"service.records.{stem}", f"service/records/{stem}.py")
        _run([sys.executable, "-m", "cython", *directives, *module, "-o", written], tree, deadline_s)
        _run(
            [*compiler, *flags, written, "-o", str(out / f"{stem}{EXTENSION_SUFFIXES[0]}")], tree, deadline_s
        )


def _run(command: Sequence[str], folder: Path, deadline_s: float) -> None:
    """Run a command in a process group of its own, so that its children can be killed with it."""
    with tempfile.TemporaryFile(dir=folder) as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=max(0.1, deadline_s - time.monotonic()))
        except BaseException as e:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(e, subprocess.TimeoutExpired):
                raise BuildError(f"{command[0]} took longer than {LIMIT_S:.0f} s") from e
            raise
        if code != 0:
            output.seek(0)
            lines = [line for line in output.read().decode("utf-8", "replace").splitlines() if line.strip()]
            errors = [line for line in lines if "error" in line.lower()]
            raise BuildError(f"{command[0]}: {(errors or lines or [f'exit code {code}'])[0].strip()}")


@contextmanager
def _locked(path: Path, deadline_s: float) -> Iterator[None]:
    """Hold the file's lock; the system releases it when this process ends."""
    import fcntl

    with path.open("wb") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise BuildError("another process has been compiling for too long") from None
                time.sleep(0.1)
        yield
