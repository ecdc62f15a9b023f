"""Projects that have packages `service`, `tests` and `base` of their own, and read with Firn all the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from service.spark.pyfiles import package_zip
from tests.support.clients import Confluent, make_rows
from tests.support.processes import REPOSITORY, Node, wait_until
from tests.support.stores import folder_store
from tests.support.tiers import LATEST_TIERED, offset

pytest.importorskip("pyspark")

OWN = {
    "service/__init__.py": "MINE = 'service'\n",
    "service/config.py": "MINE = 'service.config'\n",
    "service/records/__init__.py": "MINE = 'service.records'\n",
    "tests/__init__.py": "MINE = 'tests'\n",
    "base/__init__.py": "MINE = 'base'\n",
}
IMPORTS = """
import base, service, service.config, service.records, tests
found = [one.MINE for one in (base, service, service.config, service.records, tests)]
assert found == ["base", "service", "service.config", "service.records", "tests"], found
"""


def project(folder: Path, job: str) -> Path:
    for name, text in OWN.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "job.py").write_text(textwrap.dedent(job))
    return folder / "job.py"


def run(job: Path, *words: str) -> str:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ["PYSPARK_PYTHON"] = sys.executable
    done = subprocess.run(
        [sys.executable, str(job), *words],
        cwd=job.parent,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("first", ["own", "firn"])
def test_both_are_imported_in_either_order(tmp_path: Path, first: str) -> None:
    ours = """
    import pickle, sys
    import pyspark_firn
    source = pyspark_firn.DefaultSource
    assert pickle.loads(pickle.dumps(source)) is source
    kernel = sys.modules[source.__module__.partition(".spark.")[0] + ".records.kernel"]
    assert kernel.__file__.startswith(sys.argv[1]), kernel.__file__
    from pyspark_firn import lag, register, session
    """
    parts = (IMPORTS, textwrap.dedent(ours))
    job = project(tmp_path, "".join(parts if first == "own" else parts[::-1]) + IMPORTS + "print('done')\n")
    assert run(job, str(REPOSITORY)) == "done\n"


def text_of(folder: Path, name: str) -> str:
    return "".join(path.read_text() for path in folder.rglob(name))


JOB = """
import sys
import pyspark_firn
from pyspark.sql import SparkSession

spark = SparkSession.builder.master(sys.argv[2]).config("spark.ui.enabled", "false").getOrCreate()
pyspark_firn.register(spark)
frame = spark.read.format("firn").option("url", sys.argv[1]).option("subscribe", "topic").load()

def own(rows):
    import service.config
    yield from [service.config.MINE] * len(list(rows))

print("rows", frame.count(), set(frame.select("offset").rdd.mapPartitions(own).collect()))
"""


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_a_job_reads_the_archive_on_driver_and_workers(tmp_path: Path) -> None:
    store = folder_store(tmp_path / "cold")
    node = Node(
        tmp_path / "node", {**store.node_settings, "remote.log.manager.task.interval.ms": "200"}
    ).start()
    try:
        command = [
            sys.executable, "-P", "-m", "service.cli.main", "topic", "create", "topic",
            "--bootstrap-server", node.bootstrap, "--config", "remote.storage.enable=true",
            "--config", "internal.segment.bytes=20000", "--config", "retention.ms=-1",
        ]  # fmt: skip
        subprocess.run(command, check=True)
        rows = make_rows(100, 1)
        for start in range(0, 100, 10):
            Confluent().produce(node.bootstrap, "topic", rows[start : start + 10])
        wait_until("the archive", lambda: offset(node.bootstrap, "topic", 0, LATEST_TIERED) >= 50)
        wait_until("its head", lambda: any((tmp_path / "cold").rglob("HEAD")))
        wait_until("the topics", lambda: '"topic"' in text_of(tmp_path / "cold", "topics.json"))
        node.stop()
    finally:
        node.close()
    folder = tmp_path / "project"
    folder.mkdir()
    job = project(folder, JOB.replace("pyspark_firn.register", IMPORTS + "pyspark_firn.register"))
    said = run(job, store.url, "local[2]")
    assert "{'service.config'}" in said
    assert int(said.split()[1]) >= 50


@pytest.mark.parametrize("has_own", [True, False])
def test_a_zip_as_executors_get_it_is_imported(tmp_path: Path, has_own: bool) -> None:
    packed = package_zip()
    (tmp_path / "firn.zip").write_bytes(packed.data)
    words = "import sys; sys.path.insert(1, sys.argv[1])\nimport pyspark_firn; print(pyspark_firn.__file__)\n"
    job = project(tmp_path / "project", words + (IMPORTS if has_own else ""))
    if not has_own:
        shutil.rmtree(job.parent / "service")
    assert run(job, str(tmp_path / "firn.zip")) == f"{tmp_path}/firn.zip/pyspark_firn/__init__.py\n"
