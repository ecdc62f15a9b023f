"""Shape of one measured value. [P]"""

from __future__ import annotations

from typing import NamedTuple

from service.base.metrics import HistogramSnapshot


class Sample(NamedTuple):
    """One number, or one histogram, of the family `name`; label values in the family's order."""

    name: str
    value: float | HistogramSnapshot
    labels: tuple[str, ...] = ()
