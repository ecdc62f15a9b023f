"""A streaming job to be killed; `python -m tests.spark.streaming_job JSON [to-the-end]`."""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark_firn import session


def main(settings: dict[str, Any], *, to_the_end: bool) -> None:
    spark = session(
        "to be killed",
        master="local[2]",
        config={
            "spark.ui.enabled": "false",
            "spark.driver.memory": "600m",
            "spark.sql.shuffle.partitions": "2",
        },
    )
    stream = spark.readStream.format("firn").options(**settings["options"]).load()
    writer = stream.writeStream.option("checkpointLocation", settings["checkpoint"])
    if settings["sink"] == "files":
        writer = writer.format("parquet").option("path", settings["output"])
    else:

        def write(batch: Any, number: int) -> None:
            batch.write.mode("overwrite").parquet(f"{settings['output']}/batch={number}")

        writer = writer.foreachBatch(write)
    writer = writer.trigger(availableNow=True) if to_the_end else writer
    writer.start().awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), to_the_end="to-the-end" in sys.argv[2:])
