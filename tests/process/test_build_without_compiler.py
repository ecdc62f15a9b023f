"""Building where there is no compiler, or no Cython: a clear message, and the install goes on."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNELS = (
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
KERNEL_FILES = (
    *("__init__.py", "kernel_status.py", "without_cython.py"),
    *("kernel.pxd", "column_buffers.pxd", "key_kernel.pxd", "compaction_kernel.pxd"),
    *("filter_kernel.pxd", "prefix_kernel.pxd"),
    *(f"{name}.py" for name in KERNELS),
)


def build(tree: Path, environment: dict[str, str], *python: str) -> subprocess.CompletedProcess[str]:
    records = tree / "service" / "records"
    records.mkdir(parents=True)
    shutil.copy(ROOT / "setup.py", tree)
    shutil.copy(ROOT / "service" / "__init__.py", tree / "service")
    for name in KERNEL_FILES:
        shutil.copy(ROOT / "service" / "records" / name, records)
    return subprocess.run(
        [sys.executable, *python, "build_ext", "--inplace"],
        cwd=tree,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def kernel_is_compiled(tree: Path) -> str:
    names = ", ".join(KERNELS)
    code = f"from service.records import {names}; print(any(kernel.COMPILED for kernel in ({names})))"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=tree, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.thorough
def test_without_a_compiler_the_kernel_stays_interpreted_and_that_is_said(tmp_path: Path) -> None:
    done = build(tmp_path, {"CC": "no-such-compiler"}, "setup.py")
    assert done.returncode == 0, done.stderr
    for name in KERNELS:
        assert f"firn: service.records.{name} is not compiled" in done.stderr
    assert "it runs as plain Python" in done.stderr
    assert kernel_is_compiled(tmp_path) == "False"


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler on this machine")
def test_a_compiler_that_gives_up_half_way_leaves_no_kernel_compiled(tmp_path: Path) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\ncase "$*" in *column_kernel.c*) exit 1; esac\nexec cc "$@"\n')
    compiler.chmod(0o755)
    done = build(tmp_path / "tree", {"CC": str(compiler), "CFLAGS": "-O0"}, "setup.py")
    assert done.returncode == 0, done.stderr
    assert "firn: service.records.kernel is not compiled" in done.stderr
    assert kernel_is_compiled(tmp_path / "tree") == "False"


def test_without_cython_the_kernel_stays_interpreted_and_that_is_said(tmp_path: Path) -> None:
    hide = "import sys; sys.modules['Cython'] = None; sys.argv[0] = 'setup.py'; exec(open('setup.py').read())"
    done = build(tmp_path, {}, "-c", hide)
    assert done.returncode == 0, done.stderr
    assert "firn: service.records.kernel is not compiled: Cython is not installed" in done.stderr
    assert kernel_is_compiled(tmp_path) == "False"
