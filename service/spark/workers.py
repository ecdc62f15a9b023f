"""What the Python processes that Spark starts need besides the work itself."""

from __future__ import annotations

import gc
from functools import cache


@cache
def spare_the_collector() -> None:
    """Keep what is there by now, mostly imported modules, out of all later garbage collections.

    Spark collects all garbage of a worker after every call and every task. Walking through pyspark, pyarrow
    and this package takes 50 ms each time; frozen it takes none. What tasks leave is collected as before.
    """
    gc.freeze()
