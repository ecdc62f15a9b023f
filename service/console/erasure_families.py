"""Metrics of orders to erase keys, in the node that keeps the prefix. [P]"""

from __future__ import annotations

from typing import Final

from service.console.family import gauge as _gauge

ORDERS: Final = (
    _gauge("erasure_orders", "Orders to erase keys: open, or done and not gone yet.", "state"),
    _gauge(
        "erasure_open_seconds", "Time for which the oldest order to erase keys has been open; 0 without one."
    ),
    _gauge(
        "erasure_left_seconds",
        "Time since the grace of what a done order has dropped is over, while some of it is still in the "
        "bucket: versions, or objects under a lock. 0 without one.",
    ),
)
