"""A Spark session in a process of its own, for another Spark, other packages, or Spark Connect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.processes import REPOSITORY, end


class SparkProcess:
    """A session with these settings, which does what it is asked: SQL, pipelines, pieces of Python.

    Without settings the first piece of Python makes the session. `path` comes before the installed packages.
    """

    def __init__(self, settings: Mapping[str, str] | None, log: Path, path: tuple[Path, ...] = ()) -> None:
        self._log = log
        command = [sys.executable, "-m", "tests.spark.session_job", json.dumps(settings)]
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY, *path)))},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )

    def sql(self, query: str) -> list[list[Any]]:
        """Return the rows of a query; values that JSON lacks as text."""
        found: list[list[Any]] = self._ask({"sql": query})
        return found

    def pipeline(self, *arguments: str) -> tuple[int, str]:
        """`firn pipeline …`: the exit code, and what it said on stderr."""
        code, error = self._ask({"pipeline": arguments})
        return code, error

    def run(self, code: str, **names: str) -> None:
        """Python that knows `spark`, `names` and what earlier code left. `AssertionError` with its error."""
        error = self._ask({"run": code, "names": names})
        assert error is None, error

    def value(self, expression: str) -> Any:
        """Return a value of Python, after `run`; a frame's rows as lists, values that JSON lacks as text."""
        self.run(f"_value = {expression}")
        return self._ask({"value": "_value"})

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
