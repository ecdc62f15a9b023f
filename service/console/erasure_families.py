"""Metrics of orders to erase keys: in the node that keeps the prefix, and in those that lead archives. [P]"""

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
    _gauge("erasure_replicas", "Replicas that open orders concern, counted for each order.", "state"),
    _gauge("erasure_archives", "Archives that open orders concern, counted for each order.", "state"),
    _gauge("erasure_cuts_left", "Kept cuts that may have the keys of an open order."),
    _gauge(
        "erasure_remaining_objects",
        "Objects that done orders have dropped and that are in the bucket after the grace, as of the last "
        "search.",
    ),
    _gauge("erasure_versions_left", "Old versions of such objects that the store does not remove."),
    _gauge("erasure_locked_objects", "Of these, those under retention."),
    _gauge(
        "erasure_objects",
        "Objects in archives that this broker leads and open orders concern: left to look at, looked at, and "
        "rewritten since it leads them.",
        "state",
    ),
    _gauge("erasure_object_bytes", "Bytes of these objects.", "state"),
)
