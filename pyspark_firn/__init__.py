"""Where a stock Spark session finds the data source ``firn``, and notebooks find `session` and `register`.

Spark imports every module named ``pyspark_…`` that its driver's Python worker finds, and registers its
`DefaultSource`. `lag` tells how far a stream is behind.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pyspark_firn._apart import install, rooms

if TYPE_CHECKING:
    from service.spark.registration import register
    from service.spark.session import session
    from service.spark.source import FirnDataSource as DefaultSource
    from service.spark.stream.progress import Lag, lag
else:
    install()
    _spark = f"{rooms()}.spark"
    register = import_module(f"{_spark}.registration").register
    session = import_module(f"{_spark}.session").session
    DefaultSource = import_module(f"{_spark}.source").FirnDataSource
    Lag = import_module(f"{_spark}.stream.progress").Lag
    lag = import_module(f"{_spark}.stream.progress").lag

__all__ = ["DefaultSource", "Lag", "lag", "register", "session"]
