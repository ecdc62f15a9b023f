"""A package in a zip runs the compiled kernels in it, or says that it runs interpreted."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from service.records import column_kernel, kernel
from service.records.zipped_kernels import SUFFIX
from service.spark.pyfiles import has_kernels_for_here, package_zip

STATE = """
import sys
from service.records import column_buffers, column_kernel, kernel
print(kernel.COMPILED, column_kernel.COMPILED, column_buffers.COMPILED, kernel.__file__)
"""
needs_kernels = pytest.mark.skipif(not column_kernel.COMPILED, reason="the kernel is not compiled here")


@pytest.fixture
def zipped(tmp_path: Path) -> Path:
    path = tmp_path / "firn.zip"
    path.write_bytes(package_zip().data)
    return path


def without(archive: Path, suffix: str, into: Path) -> Path:
    """The zip without the files whose names end like this."""
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(into, "w") as new:
        for name in old.namelist():
            if not name.endswith(suffix):
                new.writestr(name, old.read(name))
    return into


def start(archive: Path, home: Path, code: str = STATE) -> subprocess.Popen[str]:
    """A Python with the zip first on its path, and no editable install."""
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    path = os.pathsep.join([str(archive), *libraries])
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home), "PYTHONPATH": path}
    return subprocess.Popen(
        [sys.executable, "-S", "-c", code],
        env=env,
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    return out.strip(), err


@needs_kernels
def test_packed_kernels_are_loaded_and_their_files_go(zipped: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    racing = [start(zipped, home) for _ in range(4)]
    for process in racing:
        out, err = ended(process)
        assert out.startswith(f"True True True {home}/.firn-kernels-")
        assert err == ""
    assert list(home.iterdir()) == []


@needs_kernels
def test_kernels_are_loaded_from_the_home_where_the_temporary_folder_allows_none(
    zipped: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    code = f"import tempfile; tempfile.tempdir = {str(tmp_path / 'none')!r}\n{STATE}"
    out, err = ended(start(zipped, home, code))
    assert out.startswith(f"True True True {home}/.firn-kernels-"), err
    assert list(home.iterdir()) == []


def test_without_kernels_it_is_said_with_what_to_do(zipped: Path, tmp_path: Path) -> None:
    bare = without(zipped, SUFFIX, tmp_path / "bare.zip")
    out, err = ended(start(bare, tmp_path))
    assert out.startswith("False False False")
    assert err.count("17 times slower") == 1
    assert f"bare.zip has none for *{SUFFIX}" in err
    assert "its extra [executor]" in err
    assert "spark.firn.ship=false" in err
    assert "firn pyfiles" in err


@needs_kernels
def test_kernels_are_all_compiled_or_none(zipped: Path, tmp_path: Path) -> None:
    bare = without(zipped, f"column_buffers{SUFFIX}", tmp_path / "bare.zip")
    out, _ = ended(start(bare, tmp_path))
    assert out.startswith("False False False")


def test_the_zip_has_what_is_compiled_here_and_is_the_same_each_time() -> None:
    packed = package_zip()
    assert packed == package_zip()
    assert has_kernels_for_here(packed) == (not kernel.__file__.endswith(".py"))
