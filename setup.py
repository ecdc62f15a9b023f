"""Builds the per-record kernels with Cython where a C compiler is; says so and goes on where none is.

The kernels (service/records/kernel.py, column_buffers.py, column_kernel.py, index_kernel.py, time_kernel.py,
key_kernel.py, compaction_kernel.py, filter_kernel.py, prefix_kernel.py, key_walk_kernel.py,
erasure_kernel.py, commit_kernel.py, commit_plan_kernel.py, produce_kernel.py)
are plain Python that Cython compiles to the same modules: nothing but speed depends on the compiled life.
``python setup.py build_ext --inplace`` puts them beside their sources.

What is packed carries the commit it is made of in service/COMMIT: FIRN_COMMIT, else that of the package it is
made from, else git's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist
from setuptools.errors import BaseError, CompileError, LinkError

NAMES = (
    "kernel",
    "column_buffers",
    "column_kernel",
    "index_kernel",
    "time_kernel",
    "key_kernel",
    "compaction_kernel",
    "filter_kernel",
    "prefix_kernel",
    "key_walk_kernel",
    "erasure_kernel",
    "commit_kernel",
    "produce_kernel",
    "commit_plan_kernel",
)
KERNELS = tuple(f"service.records.{name}" for name in NAMES)


def say(reason: object) -> None:
    for kernel in KERNELS:
        print(f"firn: {kernel} is not compiled: {reason}", file=sys.stderr)
    print(
        "firn: that is fine, it runs as plain Python. A C compiler and Cython would make it faster.",
        file=sys.stderr,
    )


class BuildKernel(build_ext):
    """All kernels or none: what one calls of another is either C or Python."""

    def build_extensions(self) -> None:
        try:
            super().build_extensions()
        except (BaseError, CompileError, LinkError, OSError) as error:
            say(str(error).strip() or type(error).__name__)
            for extension in self.extensions:
                Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
            self.extensions = []  # what was not built is not missed when it should be copied or packed


def commit() -> str:
    written = Path("service/COMMIT")
    if said := os.environ.get("FIRN_COMMIT"):
        return said
    if written.is_file():
        return written.read_text("ascii").strip()
    if not Path(".git").exists():
        return ""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


class BuildWithCommit(build_py):
    """Not for an editable install, whose tree says by itself what it is."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode and (found := commit()):
            (Path(self.build_lib) / "service" / "COMMIT").write_text(found + "\n", "ascii")


class SourcesWithCommit(sdist):
    """Sources alone: what Cython has made of them is made again where they are built."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, [file for file in files if not file.endswith(".c")])
        if found := commit():
            (Path(base_dir) / "service" / "COMMIT").write_text(found + "\n", "ascii")


def extensions() -> list[Extension]:
    try:
        from Cython.Build import cythonize
        from Cython.Compiler.Errors import CompileError as CythonError
    except ImportError:
        say("Cython is not installed")
        return []
    # What a debugger would want is five times the code, and would travel to every executor.
    flags = [] if sys.platform == "win32" else ["-g0"]
    kernels = [
        Extension(name, [name.replace(".", "/") + ".py"], extra_compile_args=flags) for name in KERNELS
    ]
    directives = {"boundscheck": False, "wraparound": False, "cdivision": True, "language_level": 3}
    try:
        built: list[Extension] = cythonize(kernels, compiler_directives=directives)
    except CythonError as error:
        say(error)
        return []
    return built


setup(
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildKernel, "build_py": BuildWithCommit, "sdist": SourcesWithCommit},
)
