"""Errors of workers without the package or a library: one line, by the pickle itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

cloudpickle = pytest.importorskip("pyspark.cloudpickle")

from service.spark.registration import source_class  # noqa: E402
from service.spark.source import FirnDataSource  # noqa: E402
from service.spark.worker_bootstrap import LIBRARIES  # noqa: E402

PYSPARK = Path(cloudpickle.__file__).parents[2]
UNPICKLE = "import pickle, sys; sys.path[:0] = sys.argv[2:]; pickle.loads(open(sys.argv[1], 'rb').read())"
OPTIONS = {"url": "file:///x", "subscribe": "t"}


def unpickled(data: bytes, folder: Path, *missing: str, package: str | None = None) -> str:
    """The last line of a Python that unpickles it, with stand-ins for all libraries but the missing."""
    there = folder / "libraries"
    there.mkdir()
    for name in ("pyspark", "py4j"):
        (there / name).symlink_to(PYSPARK / name)
    for name in set(LIBRARIES) - set(missing):
        (there / f"{name}.py").touch()
    if package is not None:
        (there / "service" / "spark").mkdir(parents=True)
        (there / "service" / "__init__.py").write_text(f"__version__ = {package!r}\n")
        (there / "service" / "spark" / "__init__.py").touch()
        (there / "service" / "spark" / "source.py").touch()
    (folder / "pickle").write_bytes(data)
    command = [sys.executable, "-S", "-E", "-c", UNPICKLE, str(folder / "pickle"), str(there)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


def test_a_worker_without_libraries_names_them_and_itself(tmp_path: Path) -> None:
    said = unpickled(cloudpickle.dumps(FirnDataSource(OPTIONS)), tmp_path, "obstore", "crc32c")
    assert said.startswith(f"ImportError: firn needs obstore, crc32c in {sys.executable} (Python 3.")
    assert "install its extra [executor] there" in said


def test_a_worker_without_the_package_says_how_it_is_sent(tmp_path: Path) -> None:
    said = unpickled(cloudpickle.dumps(FirnDataSource(OPTIONS)), tmp_path)
    assert said.startswith(f"ImportError: firn is not in {sys.executable}")
    assert "pyspark_firn.register(spark)" in said


def test_a_worker_with_another_version_is_refused(tmp_path: Path) -> None:
    said = unpickled(cloudpickle.dumps(FirnDataSource(OPTIONS)), tmp_path, package="0.0.1")
    assert "firn is 0.0.1 in" in said


def test_the_registered_class_travels_without_this_package() -> None:
    """Only what it makes needs it, so that the class itself can say so."""
    data = cloudpickle.dumps(source_class(7))
    made = cloudpickle.loads(data)
    assert made.name() == "firn"
    source = made(options=dict(OPTIONS))
    assert type(source) is FirnDataSource
    again = cloudpickle.loads(cloudpickle.dumps(source))
    assert again._read_options() == {"parallelism": "7", **OPTIONS}
    assert made(options={**OPTIONS, "parallelism": "9"})._read_options()["parallelism"] == "9"
