"""Functions that Spark pickles for its Python workers, with a clear error for a worker that lacks a library.

Pickled by name, as classes of modules are, the source fails in a worker without this package, or without one
of its libraries, with a bare ``No module named …`` under a hundred lines. So the first thing sent is a
function pickled by value (cloudpickle does so with functions made within functions): it needs nothing of
this package, checks what is installed, and only then makes the rest. Its error is one line: what is missing,
where, and the remedy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import service

PACKAGE: Final = service.__name__
"""``service``, or what stands for it where a project has a `service` of its own (ADR 48)"""
LIBRARIES: Final = ("pyarrow", "obstore", "kio", "crc32c", "cramjam", "zstandard")
"""Libraries that a read needs, under the names of both import and pip."""


def worker_check() -> Callable[[], None]:
    """Return a function to be pickled by value; in a worker it raises `ImportError` for missing libraries."""
    libraries, version, package = LIBRARIES, service.__version__, PACKAGE

    def check() -> None:
        import sys
        from importlib import import_module
        from importlib.util import find_spec
        from socket import gethostname

        def is_missing(name: str) -> bool:
            try:
                return name not in sys.modules and find_spec(name) is None
            except ImportError:
                return True

        where = f"{sys.executable} (Python {sys.version.split()[0]}) on {gethostname()}"
        missing = [name for name in libraries if is_missing(name)]
        if missing:
            raise ImportError(
                f"firn needs {', '.join(missing)} in {where}: install its extra [executor] there "
                "(docs/install.md), or set PYSPARK_PYTHON to a Python that has it"
            )
        if is_missing(package) or is_missing(f"{package}.spark.source"):
            raise ImportError(
                f"firn is not in {where}: send it with pyspark_firn.register(spark) or "
                "spark-submit --py-files (firn pyfiles firn.zip makes it), or install its wheel there"
            )
        there = import_module(package).__version__
        if there != version:
            raise ImportError(f"firn is {there} in {where}, and {version} in the driver: both need the same")

    return check


def reviver() -> Callable[[dict[str, str], int | None], Any]:
    """Return a function to be pickled by value that makes a `FirnDataSource`, after `worker_check`."""
    check, package = worker_check(), PACKAGE

    def revive(options: dict[str, str], parallelism: int | None) -> Any:
        check()
        from importlib import import_module

        return import_module(f"{package}.spark.source").FirnDataSource(options, parallelism)

    return revive
