"""A standalone Spark cluster on this machine: a master and two workers, processes of their own.

Executors' Python has the libraries and not this package, unless a test gives them another.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import sysconfig
import urllib.request
import venv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from service.spark.session import launch_environment
from tests.support.processes import end, free_port, wait_until

WORKERS = 2
DEFAULTS = """\
spark.driver.host          127.0.0.1
spark.driver.memory        600m
spark.executor.memory      512m
spark.ui.enabled           false
spark.sql.shuffle.partitions  2
"""


@dataclass(frozen=True)
class Cluster:
    """`environment` is what a driver of it starts with; executors start Python by `python`."""

    master: str
    folder: Path
    environment: Mapping[str, str]
    python: Path

    def logs(self) -> str:
        """What master, workers and executors have said, for a test that fails."""
        files = [*self.folder.glob("*.log"), *self.folder.glob("work*/*/*/stderr")]
        return "\n".join(f"== {path}\n{path.read_text('utf-8', 'replace')[-2000:]}" for path in files)


def clean_environment(**changes: str) -> dict[str, str]:
    """This process's, without what a session would have set, and its Python first on the path."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "PYTHONPATH", "SPARK_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    java = {k: v for k, v in launch_environment(env).items() if k == "JAVA_HOME"}
    return {**env, **java, "PATH": path, **changes}


def python_without_the_package(folder: Path) -> Path:
    """The Python of a new environment: it has the libraries of this one, and no editable install."""
    venv.create(folder, symlinks=True, with_pip=False)
    python = folder / "bin" / "python"
    site = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    # A line of a .pth is a folder to look in, whose own .pth files are not looked at.
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    probe = "import obstore, importlib.util as u; print(u.find_spec('service'))"
    done = subprocess.run(
        [python, "-c", probe], cwd="/", env=clean_environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "None"
    return python


@contextlib.contextmanager
def standalone(folder: Path) -> Iterator[Cluster]:
    import pyspark

    home = Path(pyspark.__file__).parent
    conf = folder / "conf"
    conf.mkdir(parents=True)
    (conf / "spark-defaults.conf").write_text(DEFAULTS)
    python = python_without_the_package(folder / "python")
    env = clean_environment(
        SPARK_HOME=str(home), SPARK_CONF_DIR=str(conf), SPARK_LOCAL_IP="127.0.0.1", SPARK_DAEMON_MEMORY="200m"
    )
    (folder / "home").mkdir()
    theirs = {**env, "HOME": str(folder / "home"), "EXECUTOR_PYTHON": str(python)}
    theirs.pop("XDG_CACHE_HOME", None)
    port, page = free_port(), free_port()
    master = f"spark://127.0.0.1:{port}"
    commands = {
        "master": (
            *("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port)),
            *("--webui-port", str(page)),
        ),
        **{
            f"worker{number}": (
                *("org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0"),
                *("--cores", "1", "--memory", "600m", "--work-dir", str(folder / f"work{number}"), master),
            )
            for number in range(WORKERS)
        },
    }
    with contextlib.ExitStack() as stack:
        for name, command in commands.items():
            log = stack.enter_context((folder / f"{name}.log").open("w"))
            process = subprocess.Popen(
                [home / "bin" / "spark-class", *command], env=theirs, cwd=folder, stdout=log, stderr=log
            )
            stack.callback(end, process)
        wait_until("both workers", lambda: _alive(page) == WORKERS, seconds=120, every=0.3)
        yield Cluster(master, folder, env, python)


def _alive(page: int) -> int:
    with (
        contextlib.suppress(OSError, ValueError),
        urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=5) as answer,
    ):
        return int(json.load(answer)["aliveworkers"])
    return 0
