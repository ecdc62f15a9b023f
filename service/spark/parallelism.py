"""How many tasks of a cluster run side by side, which a read is cut to fill.

The driver's own cores say nothing of a cluster. So a session tells the source what Spark says
(`registration`), and the option ``parallelism`` says it where Spark cannot know: with dynamic allocation a
cluster has few executors until there is work.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from service.spark.options import ReadOptions


def parallelism_of(options: ReadOptions) -> int:
    """What the option or the session says; else the cores of the machine that plans, the driver's."""
    return options.parallelism or os.cpu_count() or 1


def is_local(master: str) -> bool:
    """Whether the driver's process runs all tasks itself: ``local[2]``, not ``local-cluster[2,1,1024]``."""
    return re.fullmatch(r"local(\[[^\]]*\])?", master) is not None


def promised_cores(setting: Callable[[str], str | None]) -> int:
    """Cores of all executors that the settings ask for; 0 where they leave it to the cluster.

    At start Spark's ``defaultParallelism`` counts the executors that have come so far, often none.

    >>> promised_cores({"spark.executor.instances": "4", "spark.executor.cores": "8"}.get)
    32
    """
    if (setting("spark.dynamicAllocation.enabled") or "").lower() == "true":
        return 0  # so many may come, and fewer are meant to for a small read
    executors, cores = _number(setting("spark.executor.instances")), _number(setting("spark.executor.cores"))
    limit = _number(setting("spark.cores.max"))
    asked = executors * max(cores, 1)
    return min(asked, limit) if asked and limit else asked or limit


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.strip().isdecimal() else 0
