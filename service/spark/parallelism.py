"""Number of tasks that a cluster runs side by side, which a read is cut to fill.

The driver's own cores do not tell how large the cluster is. So a session passes on what Spark reports
(`registration`), and the option ``parallelism`` sets it where Spark cannot know: with dynamic allocation a
cluster has few executors until there is work.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from service.spark.options import ReadOptions


def parallelism_of(options: ReadOptions) -> int:
    """Return the option's or the session's number of tasks; else the number of the driver's cores."""
    return options.parallelism or os.cpu_count() or 1


def is_local(master: str) -> bool:
    """Return whether the driver runs all tasks itself: ``local[2]``, not ``local-cluster[2,1,1024]``."""
    return re.fullmatch(r"local(\[[^\]]*\])?", master) is not None


def promised_cores(setting: Callable[[str], str | None]) -> int:
    """Return the cores of all executors that the settings request; 0 where they leave it to the cluster.

    At start Spark's ``defaultParallelism`` counts the executors that have registered so far, often none.

    >>> promised_cores({"spark.executor.instances": "4", "spark.executor.cores": "8"}.get)
    32
    """
    if (setting("spark.dynamicAllocation.enabled") or "").lower() == "true":
        return 0  # the setting is a maximum, and a small read should allocate less
    executors, cores = _number(setting("spark.executor.instances")), _number(setting("spark.executor.cores"))
    limit = _number(setting("spark.cores.max"))
    requested = executors * max(cores, 1)
    return min(requested, limit) if requested and limit else requested or limit


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.strip().isdecimal() else 0
