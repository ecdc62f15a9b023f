"""Where a stock Spark session finds the data source ``firn``, and notebooks find `session` and `register`.

Spark imports every module named ``pyspark_…`` that its driver's Python worker finds, and registers its
`DefaultSource`. `lag` tells how far a stream is behind.
"""

from __future__ import annotations

from service.spark.registration import register
from service.spark.session import session
from service.spark.source import FirnDataSource as DefaultSource
from service.spark.stream.progress import Lag, lag

__all__ = ["DefaultSource", "Lag", "lag", "register", "session"]
