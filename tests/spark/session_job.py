"""A Spark session that another process asks; `python -m tests.spark.session_job SETTINGS`, which are JSON.

A question is a line of JSON on stdin: ``{"sql": …}``, ``{"pipeline": [arguments]}``, ``{"run": code, "names":
{…}}`` or ``{"value": name}`` of what code left; its answer is one on stdout. SETTINGS may be null: then code
makes the session. See `tests.support.spark_process`.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import traceback
from typing import Any

from pyspark_firn import session
from service.cli.main import main

COMMON = {"spark.ui.enabled": "false", "spark.driver.memory": "600m", "spark.sql.session.timeZone": "UTC"}


def answer(known: dict[str, Any], question: dict[str, Any]) -> Any:
    if "sql" in question:
        return [list(row) for row in known["spark"].sql(question["sql"]).collect()]
    if "run" in question:
        return run(known, question["run"], question["names"])
    if "value" in question:
        found = known[question["value"]]
        return [list(row) for row in found.collect()] if hasattr(found, "collect") else found
    with contextlib.redirect_stderr(io.StringIO()) as error:
        code = main(["pipeline", *question["pipeline"]])
    return code, error.getvalue()


def run(known: dict[str, Any], code: str, names: dict[str, str]) -> str | None:
    """None, or its error. What it prints is for the log: stdout is for answers."""
    known.update(names)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            exec(compile(code, "<example>", "exec", dont_inherit=True), known)
    except Exception:
        return traceback.format_exc()
    return None


def serve(settings: dict[str, str] | None) -> None:
    # Code that is run is that of a module: Spark pickles functions by what their module is called.
    known: dict[str, Any] = {"__name__": "__main__"}
    if settings is not None:
        known["spark"] = session("tests", master="local[2]", config=COMMON | settings)
        known["spark"].sparkContext.setLogLevel("ERROR")
    for line in sys.stdin:
        print("answer:", json.dumps(answer(known, json.loads(line)), default=str), flush=True)
    if "spark" in known:
        known["spark"].stop()


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
