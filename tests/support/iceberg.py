"""A Spark that Iceberg's runtime is made for; the installed one may be too new for any."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import REPOSITORY, end

ICEBERG = Path(os.environ.get("FIRN_SPARK_ICEBERG", REPOSITORY / ".cache" / "spark-iceberg"))
ENV = {"PYTHONPATH": os.pathsep.join((str(REPOSITORY), str(ICEBERG / "python")))}
"""What makes a Python find that Spark before the installed one."""


def need_iceberg() -> None:
    """Skip the test where the runtime is not here; in CI (CI=true) that is a failure."""
    if (ICEBERG / ".complete").exists():
        return
    message = "Iceberg's runtime is not here: `make test-spark` fetches it (needs Maven)"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


def settings(warehouse: Path) -> dict[str, str]:
    """Of a Spark session whose catalog `lake` is this folder."""
    (jar,) = ICEBERG.glob("*.jar")
    return {
        "spark.jars": str(jar),
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(warehouse),
    }


class IcebergSession:
    """A Spark session in a process of its own, with the catalog `lake`: pipelines run in it, and SQL."""

    def __init__(self, warehouse: Path, log: Path) -> None:
        self._log = log
        command = [sys.executable, "-m", "tests.spark.session_job", json.dumps(settings(warehouse))]
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env={**os.environ, **ENV},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )

    def sql(self, query: str) -> list[list[Any]]:
        """Its rows; what JSON has no word for as text."""
        found: list[list[Any]] = self._ask({"sql": query})
        return found

    def pipeline(self, *arguments: str) -> tuple[int, str]:
        """`firn pipeline …`: the exit code, and what it said on stderr."""
        code, error = self._ask({"pipeline": arguments})
        return code, error

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        end(self._process)
        self._process.stdin.close()
        self._process.stdout.close()

    def _ask(self, question: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("answer: "):
                return json.loads(line.removeprefix("answer: "))
        raise AssertionError(f"the session has ended; its log ends:\n{self._log.read_text('utf-8')[-3000:]}")
