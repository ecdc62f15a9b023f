"""A package in a zip runs compiled kernels: packed ones, or built ones; or it says that it does not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from service.base.private_cache import is_private, private_folders, store_file
from service.records import column_kernel, kernel
from service.records.kernel_build import DIRECTIVES
from service.records.zipped_kernels import KERNELS, SUFFIX
from service.spark.pyfiles import has_kernels_for_here, package_zip

ROOT = Path(__file__).parents[2]
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


def start(archive: Path, home: Path, **environment: str) -> subprocess.Popen[str]:
    """A Python with the zip first on its path, and no editable install."""
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    path = os.pathsep.join([str(archive), *libraries])
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home), "PYTHONPATH": path}
    return subprocess.Popen(
        [sys.executable, "-S", "-c", STATE],
        env=env | environment,
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
def test_packed_kernels_are_loaded_from_a_folder_of_the_users_own(zipped: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    racing = [start(zipped, home) for _ in range(4)]
    cache = home / ".cache" / "firn" / "kernels"
    for process in racing:
        out, err = ended(process)
        assert out.startswith(f"True True True {cache}")
        assert err == ""
    assert cache.stat().st_mode & 0o777 == 0o700
    assert sorted(path.name.split("-")[0] for path in cache.iterdir()) == sorted(KERNELS)


@needs_kernels
def test_a_file_that_is_not_what_the_zip_has_is_never_loaded(zipped: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    ended(start(zipped, home))
    for path in (home / ".cache" / "firn" / "kernels").iterdir():
        path.write_bytes(path.read_bytes()[:5000])  # as a full disk leaves it
    out, _ = ended(start(zipped, home))
    assert out.startswith("True True True")


@needs_kernels
def test_a_folder_that_others_may_write_to_is_passed_over(zipped: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".cache" / "firn" / "kernels").mkdir(parents=True)
    (home / ".cache" / "firn" / "kernels").chmod(0o777)
    out, _ = ended(start(zipped, home))
    assert out.startswith(f"True True True {home}/firn-{os.getuid()}/kernels/")


@needs_kernels
def test_without_any_such_folder_kernels_are_loaded_and_their_files_go(zipped: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".cache").mkdir(parents=True)
    for name in (".cache/firn", f"firn-{os.getuid()}"):
        (home / name).write_text("a file, no folder")
    out, _ = ended(start(zipped, home))
    assert out.startswith(f"True True True {home}/firn-kernels-")
    assert not list(home.glob("firn-kernels-*"))


def test_without_kernels_and_compiler_it_is_said_with_what_to_do(zipped: Path, tmp_path: Path) -> None:
    bare = without(zipped, SUFFIX, tmp_path / "bare.zip")
    out, err = ended(start(bare, tmp_path, PATH="/nowhere"))
    assert out.startswith("False False False")
    assert err.count("17 times slower") == 1
    assert f"bare.zip has none for *{SUFFIX}" in err
    assert "firn pyfiles" in err


@needs_kernels
def test_kernels_are_all_compiled_or_none(zipped: Path, tmp_path: Path) -> None:
    bare = without(zipped, f"column_buffers{SUFFIX}", tmp_path / "bare.zip")
    out, _ = ended(start(bare, tmp_path, PATH="/nowhere"))
    assert out.startswith("False False False")


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler on this machine")
def test_kernels_that_the_zip_lacks_are_compiled_once_for_all_processes(zipped: Path, tmp_path: Path) -> None:
    pytest.importorskip("Cython")
    bare = without(zipped, SUFFIX, tmp_path / "bare.zip")
    compiler = tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\necho x >>{tmp_path}/calls\nexec cc -O0 "$@" -O0\n')
    compiler.chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    racing = [start(bare, home, CC=str(compiler)) for _ in range(2)]
    for process in racing:
        out, err = ended(process)
        assert out.startswith(f"True True True {home}/.cache/firn/kernels/built-"), err
    assert (tmp_path / "calls").read_text().count("x") == len(KERNELS)
    assert not list((home / ".cache" / "firn" / "kernels").glob("building-*"))


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler on this machine")
def test_a_compiler_that_fails_is_not_asked_again_by_every_process(zipped: Path, tmp_path: Path) -> None:
    pytest.importorskip("Cython")
    bare = without(zipped, SUFFIX, tmp_path / "bare.zip")
    compiler = tmp_path / "compiler"
    compiler.write_text(
        f'#!/bin/sh\necho x >>{tmp_path}/calls\necho "fatal error: no Python.h" >&2\nexit 1\n'
    )
    compiler.chmod(0o755)
    for _ in range(2):
        out, err = ended(start(bare, tmp_path, CC=str(compiler)))
        assert out.startswith("False False False")
        assert "fatal error: no Python.h" in err
    assert (tmp_path / "calls").read_text().count("x") == 1


def test_the_zip_has_what_is_compiled_here_and_is_the_same_each_time() -> None:
    packed = package_zip()
    assert packed == package_zip()
    assert has_kernels_for_here(packed) == (not kernel.__file__.endswith(".py"))


def test_both_builds_compile_alike() -> None:
    text = " ".join((ROOT / "setup.py").read_text("utf-8").split())
    for key, value in DIRECTIVES.items():
        assert f'"{key}": {value}' in text


def test_links_and_loose_parents_are_not_private(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    assert is_private(own)
    (tmp_path / "link").symlink_to(own)
    assert not is_private(tmp_path / "link")
    loose = tmp_path / "loose"
    (loose / "inner").mkdir(parents=True, mode=0o700)
    (loose / "inner").chmod(0o700)
    loose.chmod(0o777)
    assert not is_private(loose / "inner")
    loose.chmod(0o1777)
    assert is_private(loose / "inner")


def test_no_home_is_made_for_users_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = list(private_folders("kernels", {"HOME": str(tmp_path / "nobody")}))
    assert found == [tmp_path / f"firn-{os.getuid()}" / "kernels"]
    assert not (tmp_path / "nobody").exists()
    assert store_file(found[0], "one", ".so", b"data").read_bytes() == b"data"
