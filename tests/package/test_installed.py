"""Packages run in an empty environment: sdist and wheel, compiled kernels, the command, a node."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.clients import Confluent, digest, make_rows
from tests.support.processes import REPOSITORY, Node, first_line, free_port, wait_until
from tests.support.requirements import python_called
from tests.support.stores import folder_store
from tests.support.tiers import LATEST_TIERED, offset

pytestmark = pytest.mark.timeout(900)  # of the first test of each Python: it builds and installs

# Each by a worker of its own, where there are several.
PYTHONS = [pytest.param(one, marks=pytest.mark.xdist_group(one)) for one in ("python3.11", "python3.13")]
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


class Package(NamedTuple):
    """What was built for one Python, and an environment with nothing but its wheel and what that asks for."""

    sdist: Path
    wheel: Path
    bin: Path

    def run(self, *words: str) -> str:
        """What `firn`, or another command of the environment, prints."""
        done = subprocess.run(
            [str(self.bin / words[0]), *words[1:]],
            cwd=self.bin.parent,
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def clean_environment() -> Mapping[str, str]:
    """Without what would let the checkout in."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


@pytest.fixture(scope="session", params=PYTHONS)
def package(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Package:
    python = python_called(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    subprocess.run([REPOSITORY / ".ci" / "wheel", "--python", python, folder / "dist"], check=True)
    environment = folder / "environment"
    subprocess.run([python, "-m", "venv", str(environment)], check=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    pip = [str(environment / "bin" / "python"), "-m", "pip", "-q", "--disable-pip-version-check"]
    # A registry that stalls costs half a minute, not the test.
    install = [*pip, "--retries", "5", "--timeout", "30", "install", str(wheel)]
    subprocess.run(install, check=True, env=clean_environment())
    return Package(sdist, wheel, environment / "bin")


def test_the_sdist_has_all_sources_and_nothing_built(package: Package) -> None:
    with tarfile.open(package.sdist) as sources:
        names = {name.partition("/")[2] for name in sources.getnames()}
    command = ["git", "ls-files", "service", "pyspark_firn"]
    tracked = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.split()
    assert {name for name in tracked if (REPOSITORY / name).exists()} <= names
    assert {"setup.py", "pyproject.toml", "README.md", "LICENSE", "NOTICE", "service/COMMIT"} <= names
    assert not [name for name in names if name.endswith((".c", ".so", ".pyc"))]


def test_the_wheel_has_the_packages_their_kernels_and_the_extras(package: Package) -> None:
    with zipfile.ZipFile(package.wheel) as wheel:
        names = wheel.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        said = wheel.read(metadata).decode()
    assert {"LICENSE", "NOTICE"} <= {
        name.rpartition("/")[2] for name in names if ".dist-info/licenses/" in name
    }
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"service", "pyspark_firn"}
    for kernel in KERNELS:
        assert [name for name in names if re.fullmatch(rf"service/records/{kernel}\.[\w-]+\.so", name)]
    assert {"console", "spark", "dev", "executor"} <= set(re.findall(r"^Provides-Extra: (\S+)$", said, re.M))


def test_the_command_says_version_and_commit(package: Package) -> None:
    said = package.run("firn", "--version")
    assert re.fullmatch(r"firn \d+\.\d+\.\d+ \(commit [0-9a-f]{12,40}(-dirty)?, kernels compiled\)\n", said)
    assert "examples:" in package.run("firn", "server", "--help")
    assert package.run("firn", "completion", "bash").startswith("_firn()")


def test_the_kernels_are_compiled(package: Package) -> None:
    code = (
        "from importlib import import_module as load; "
        f"print(*(load('service.records.' + name).__file__ for name in {KERNELS!r}), sep='\\n')"
    )
    files = package.run("python", "-c", code).split()
    assert len(files) == len(KERNELS)
    for file in files:
        assert file.endswith(".so")
        assert Path(file).is_relative_to(package.bin.parent)


def test_a_node_serves_and_archives(package: Package, tmp_path: Path) -> None:
    store = folder_store(tmp_path / "cold")
    with installed_node(package, tmp_path, store.node_settings) as bootstrap:
        package.run(
            "firn", "topic", "create", "topic", "--bootstrap-server", bootstrap,
            "--config", "remote.storage.enable=true", "--config", "internal.segment.bytes=20000",
            "--config", "retention.ms=-1",  # the rows are years old
        )  # fmt: skip
        rows = make_rows(100, 1)
        for start in range(0, 100, 10):
            Confluent().produce(bootstrap, "topic", rows[start : start + 10])
        wait_until("the archive", lambda: offset(bootstrap, "topic", 0, LATEST_TIERED) >= 50)
        assert digest(Confluent().read(bootstrap, "topic", 0, 0, 100)) == digest(rows)
        assert "cold offsets" in package.run("firn", "tiers", "topic", "--bootstrap-server", bootstrap)
    assert package.run("firn", "fsck", store.url).endswith("\nclean\n")


@contextlib.contextmanager
def installed_node(package: Package, folder: Path, settings: Mapping[str, str]) -> Iterator[str]:
    """A node of the package, which ends cleanly."""
    port = free_port()
    node = Node(folder / "node", {**settings, "remote.log.manager.task.interval.ms": "200"})
    node.settings["listeners"] = f"PLAINTEXT://127.0.0.1:{port}"
    options = [word for key, value in node.settings.items() for word in ("--set", f"{key}={value}")]
    node.folder.mkdir(parents=True)
    with node.stderr_path.open("ab") as stderr:
        node.process = subprocess.Popen(
            [package.bin / "firn", "server", *options],
            cwd=folder,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    try:
        assert first_line(node.process, 60).startswith("ready: "), node.log()
        yield f"127.0.0.1:{port}"
        node.stop()
    finally:
        node.close()
