"""Metrics of a broker's part in cuts: its gate, and the tails that it writes. [P]"""

from __future__ import annotations

from typing import Final

from service.console.family import counter as _counter
from service.console.family import gauge as _gauge
from service.console.family import histogram as _histogram

TAILS: Final = (
    _histogram(
        "cut_hold_seconds",
        "How long cuts have held back what becomes visible on this broker (`firn.cut.hold.max.ms`).",
    ),
    _gauge(
        "tail_lag_bytes",
        "Bytes of partitions led here that neither segments nor tails in the bucket have, as of the last "
        "cut; an estimate within a segment.",
    ),
    _counter("tails_written", "Tails written to the bucket."),
    _counter("tail_written_bytes", "Bytes of tails written to the bucket."),
    _gauge(
        "tail_partitions_left_out",
        "Partitions led here whose records go into no tail although their topic has them there: larger than "
        "`firn.tail.base.max.bytes`, or not readable.",
    ),
)
