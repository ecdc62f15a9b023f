"""Metrics of cuts, in the node that keeps the prefix. [P]"""

from __future__ import annotations

from typing import Final

from service.console.family import counter as _counter
from service.console.family import gauge as _gauge

CUT_KEEPER: Final = (
    _gauge(
        "cut_age_seconds",
        "Time for which the bucket has lacked something: since the newest complete cut, unless nothing has "
        "changed since. Only in the node that takes cuts.",
    ),
    _counter("cut_written", "Cuts that were written, exact or loose.", "kind"),
    _counter("cut_void", "Attempts at a cut that came to nothing."),
    _gauge(
        "cut_hold_max_seconds",
        "Longest time for which a cut may hold back what becomes visible, as of the last attempt: from "
        "`firn.cut.hold.max.ms`, while brokers miss it up to `firn.cut.hold.longest.ms`.",
    ),
    _gauge("cut_lacking_partitions", "Partitions that keep the newest cut from being complete."),
)
