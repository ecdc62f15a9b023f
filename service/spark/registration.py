"""Registration of the source with a session, and its way to the executors: ``pyspark_firn.register(spark)``.

Needs pyspark.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

from service.base.errors import ConfigError
from service.spark.parallelism import is_local, promised_cores
from service.spark.pyfiles import has_kernels_for_here, own_zip, package_zip, root
from service.spark.worker_bootstrap import PACKAGE, worker_check

log = logging.getLogger(__name__)

SHIP: Final = "spark.firn.ship"
"""Spark setting; ``false``: executors have the package already. The argument `ship` overrides it."""


def register(spark: Any, *, ship: bool | None = None) -> None:
    """Make ``format("firn")`` known to `spark`, a session of any kind, and to all its executors.

    Unless the driver runs the tasks itself, the package is sent to the executors (`SparkContext.addPyFile`),
    including the compiled kernels of this platform; its libraries have to be installed there. With
    ``ship=False``, or ``spark.firn.ship=false``, nothing is sent. Call it again after many executors have
    registered: a read is cut for as many cores as Spark then has.
    """
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        _register_over_connect(spark, ship)
        return
    context = spark.sparkContext
    if is_local(context.master):
        _lead_workers_here(context)
    elif _is_wanted(ship, context.getConf().get(SHIP)):
        _send(context)
    cores = max(context.defaultParallelism, promised_cores(context.getConf().get))
    spark.dataSource.register(source_class(cores))


def _register_over_connect(spark: Any, ship: bool | None) -> None:
    """Register with a Spark Connect client, which knows neither the master nor the number of cores."""
    if _is_wanted(ship, spark.conf.get(SHIP, None)):
        spark.addArtifacts(_written(), pyfile=True)
    spark.dataSource.register(source_class(None))


def source_class(parallelism: int | None) -> Any:
    """Return the class to register. It is pickled by value, so it can name what a worker lacks.

    Its instances are `FirnDataSource`s that know how many tasks run side by side.
    """
    from pyspark.sql.datasource import DataSource

    check, package = worker_check(), PACKAGE

    class Firn(DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return "firn"

        def __new__(cls, options: Any) -> Any:
            check()
            from importlib import import_module

            return import_module(f"{package}.spark.source").FirnDataSource(options, parallelism)

    return Firn


def _is_wanted(ship: bool | None, setting: str | None) -> bool:
    if ship is not None:
        return ship
    if setting is not None and setting.lower() not in ("true", "false"):
        raise ConfigError(f"{SHIP} is {setting!r}, neither true nor false")
    return setting is None or setting.lower() == "true"


def _lead_workers_here(context: Any) -> None:
    """Let workers on this machine import the package from where the driver has it, installed or not."""
    path = context.environment.get("PYTHONPATH", "")
    if str(root()) not in path.split(os.pathsep):
        context.environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(root()), path)))


def _send(context: Any) -> None:
    """Send the package with `addPyFile`, unless executors get it already."""
    archive = own_zip()
    if archive is not None and any(Path(file).name == archive.name for file in context.listFiles):
        return  # spark-submit --py-files sent what the driver itself runs
    if archive is not None:
        context.addPyFile(str(archive))
        return
    path = _written()
    if not any(Path(file).name == Path(path).name for file in context.listFiles):
        context.addPyFile(path)


_files: Final[dict[str, str]] = {}
"""Path by name of each zip written here; kept until this process ends, as executors may fetch it late."""


def _written() -> str:
    packed = package_zip()
    if packed.name not in _files:
        if not has_kernels_for_here(packed):
            log.warning(
                "firn's record kernels are not compiled here, so executors get none and read about 17 times "
                "slower: install firn's wheel there with its extra [executor] and set %s=false",
                SHIP,
            )
        folder = tempfile.mkdtemp(prefix="firn-pyfiles-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        path = Path(folder) / packed.name
        path.write_bytes(packed.data)
        _files[packed.name] = str(path)
    return _files[packed.name]
