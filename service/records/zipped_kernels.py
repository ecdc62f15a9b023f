"""Loader of the compiled kernels of a package in a zip, as Spark ships it to executors.

The interpreter cannot import a shared object from a zip; it silently imports the source beside it, which
reads many times slower. So the kernels for exactly this Python and platform are copied out of the zip to a
new folder that only this user can enter, loaded, and deleted: a loaded module outlives its file. If the zip
has none, they run interpreted, and one warning per process says so (ADR 40). Either all kernels are loaded
or none: their calls of each other are either C or Python.

A package in a folder neither runs nor imports this module.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Final, Protocol

log = logging.getLogger(__name__)

KERNELS: Final = (
    *("kernel", "column_buffers", "column_kernel", "time_kernel", "filter_kernel"),
    *("prefix_kernel", "key_walk_kernel", "key_kernel", "compaction_kernel", "erasure_kernel"),
)
"""Kernels in order of import."""
SUFFIX: Final = EXTENSION_SUFFIXES[0]
"""Suffix like ``.cpython-312-x86_64-linux-gnu.so``: version, ABI, processor, C library."""
PACKAGE: Final = __name__.rpartition(".")[0]
"""``service.records``, or what stands for it where a project has a `service` of its own (ADR 48)"""


class Zip(Protocol):
    """Part of `zipimport.zipimporter` that is used."""

    archive: str

    def get_data(self, pathname: str, /) -> bytes: ...


def install(source: Zip, folder: str, environ: Mapping[str, str]) -> bool:
    """Load the compiled kernels of the package in `source`; return False, with a warning, if none can be
    loaded.

    `folder` is the place of `PACKAGE`, zip included: ``/…/firn.zip/service/records``.
    """
    try:
        packed = {name: source.get_data(os.path.join(folder, name + SUFFIX)) for name in KERNELS}
    except OSError:
        why = f"{source.archive} has none for *{SUFFIX}"
    else:
        reasons: list[str] = []
        for place in _places(environ):
            try:
                _load_from(place, packed)
                return True
            except (ImportError, OSError) as e:  # as on a disk mounted noexec, or a full one
                reasons.append(str(e))
        why = "; ".join(reasons)
    log.warning(
        "firn reads about 17 times slower in this process: its record kernels run interpreted on %s %s, "
        "Python %s (%s). Install firn's wheel here with its extra [executor] and send no zip "
        "(spark.firn.ship=false), or make the zip on this platform with this Python (firn pyfiles)",
        *(platform.system(), platform.machine(), platform.python_version(), why),
    )
    return False


def _places(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield folders for files that are loaded: the system's temporary one, and the user's home, as the first
    may be mounted noexec."""
    yield tempfile.gettempdir()
    home = environ.get("HOME", "")
    if os.path.isabs(home) and os.path.isdir(home):
        yield home


def _load_from(place: str, packed: Mapping[str, bytes]) -> None:
    with tempfile.TemporaryDirectory(
        prefix=".firn-kernels-", dir=place, ignore_cleanup_errors=True
    ) as folder:
        files = {name: Path(folder) / f"{name}{SUFFIX}" for name in KERNELS}
        for name, path in files.items():
            path.write_bytes(packed[name])
        load(files)


def load(files: Mapping[str, Path]) -> None:
    """Import the kernels from these files under their own names; `ImportError` leaves none imported."""
    with _names_for_kernels():
        _load(files)


def _names_for_kernels() -> AbstractContextManager[None]:
    """Return the context in which kernels find what they import."""
    apart = None if PACKAGE == "service.records" else sys.modules.get("pyspark_firn._apart")
    lent: AbstractContextManager[None] = nullcontext() if apart is None else apart.lent_names()
    return lent


def _load(files: Mapping[str, Path]) -> None:
    try:
        for name in KERNELS:
            full, path = f"{PACKAGE}.{name}", str(files[name])
            spec = spec_from_file_location(full, path, loader=ExtensionFileLoader(full, path))
            if spec is None or spec.loader is None:
                raise ImportError(f"{path} is no module")
            sys.modules[full] = module_from_spec(spec)
            spec.loader.exec_module(sys.modules[full])
            setattr(sys.modules[PACKAGE], name, sys.modules[full])
    except BaseException:
        for name in KERNELS:
            if sys.modules.pop(f"{PACKAGE}.{name}", None) is not None and hasattr(sys.modules[PACKAGE], name):
                delattr(sys.modules[PACKAGE], name)
        raise
