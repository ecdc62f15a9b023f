"""Loader of the compiled kernels of a package in a zip, as Spark ships it to executors.

The interpreter cannot import a shared object from a zip; it silently imports the source beside it, which
reads many times slower. So the kernels for exactly this Python and platform are copied out of the zip to a
folder that only this user can write to, and loaded from there. If the zip has none, they are compiled, which
takes Cython and a C compiler. If that fails too, one warning per process says so. Either all kernels are
loaded or none: their calls of each other are either C or Python.

A package in a folder neither runs nor imports this module.
"""

from __future__ import annotations

import logging
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Final, Protocol

from service.base.private_cache import private_folders, store_file

log = logging.getLogger(__name__)

KERNELS: Final = ("kernel", "column_buffers", "column_kernel")
"""Kernels in order of import."""
SUFFIX: Final = EXTENSION_SUFFIXES[0]
"""Suffix like ``.cpython-312-x86_64-linux-gnu.so``: version, ABI, processor, C library."""
PACKAGE: Final = "service.records"


class Zip(Protocol):
    """Part of `zipimport.zipimporter` that is used."""

    archive: str

    def get_data(self, pathname: str, /) -> bytes: ...


def install(source: Zip, folder: str, environ: Mapping[str, str]) -> bool:
    """Load the compiled kernels of the package in `source`; return False, with a warning, if none can be
    loaded.

    `folder` is the place of `PACKAGE`, zip included: ``/…/firn.zip/service/records``.
    """
    reasons: list[str] = []
    packed = _packed(source, folder)
    if packed is None:
        reasons.append(f"{source.archive} has none for *{SUFFIX}")
    elif _load_packed(packed, environ, reasons):
        return True
    if _load_built(source, folder, environ, reasons):
        return True
    log.warning(
        "firn reads about 17 times slower in this process: its record kernels run interpreted on %s %s, "
        "Python %s (%s). Make the zip where they are compiled for this platform (firn pyfiles), "
        "or install firn's wheel here, or Cython and a C compiler",
        *(platform.system(), platform.machine(), platform.python_version(), "; ".join(reasons)),
    )
    return False


def _packed(source: Zip, folder: str) -> dict[str, bytes] | None:
    try:
        return {name: source.get_data(os.path.join(folder, name + SUFFIX)) for name in KERNELS}
    except OSError:
        return None


def _load_packed(packed: Mapping[str, bytes], environ: Mapping[str, str], reasons: list[str]) -> bool:
    for place in _places(environ):
        try:
            load({name: store_file(place, name, SUFFIX, data) for name, data in packed.items()})
            return True
        except (ImportError, OSError) as e:  # as on a disk mounted noexec
            reasons.append(str(e))
    return False


def _places(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the user's folders, then a temporary one: a loaded module outlives its file."""
    yield from private_folders("kernels", environ)
    place = Path(tempfile.mkdtemp(prefix="firn-kernels-"))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _load_built(source: Zip, folder: str, environ: Mapping[str, str], reasons: list[str]) -> bool:
    from service.records.kernel_build import BuildError, build

    try:
        sources = {
            name: source.get_data(os.path.join(folder, name))
            for name in (*(f"{kernel}.py" for kernel in KERNELS), "kernel.pxd", "column_buffers.pxd")
        }
    except OSError as e:
        reasons.append(f"no sources to compile: {e}")
        return False
    for place in private_folders("kernels", environ):
        try:
            load(build(place, sources, environ))
            return True
        except BuildError as e:
            reasons.append(f"not compiled here: {e}")
            break
        except (ImportError, OSError) as e:
            reasons.append(f"the kernels compiled here cannot be loaded: {e}")
    return False


def load(files: Mapping[str, Path]) -> None:
    """Import the kernels from these files under their own names; `ImportError` leaves none imported."""
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
