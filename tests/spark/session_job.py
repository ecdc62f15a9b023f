"""A Spark session that another process asks; `python -m tests.spark.session_job SETTINGS`, which are JSON.

A question is a line of JSON on stdin, ``{"sql": …}`` or ``{"pipeline": [arguments]}``; its answer is one on
stdout.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from typing import Any

from pyspark_firn import session
from service.cli.main import main


def answer(spark: Any, question: dict[str, Any]) -> Any:
    if "sql" in question:
        return [list(row) for row in spark.sql(question["sql"]).collect()]
    with contextlib.redirect_stderr(io.StringIO()) as error:
        code = main(["pipeline", *question["pipeline"]])
    return code, error.getvalue()


def serve(settings: dict[str, str]) -> None:
    common = {"spark.ui.enabled": "false", "spark.driver.memory": "600m", "spark.sql.session.timeZone": "UTC"}
    spark = session("tests", master="local[2]", config=common | settings)
    spark.sparkContext.setLogLevel("ERROR")
    for line in sys.stdin:
        print("answer:", json.dumps(answer(spark, json.loads(line)), default=str), flush=True)
    spark.stop()


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
