"""Where a stock Spark session finds the data source ``firn``, and notebooks find `session`.

Spark imports every module named ``pyspark_…`` in its Python workers and registers its `DefaultSource`.
"""

from __future__ import annotations

from service.spark.session import session
from service.spark.source import FirnDataSource as DefaultSource

__all__ = ["DefaultSource", "session"]
