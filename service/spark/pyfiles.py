"""Packing of this package into a zip for Spark's ``--py-files``: sources and compiled kernels."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import NamedTuple

import service

_STAMP = (1980, 1, 1, 0, 0, 0)


class PyFiles(NamedTuple):
    """A zip, and the suffixes of the kernels in it: ``.cpython-312-x86_64-linux-gnu.so``."""

    data: bytes
    kernels: tuple[str, ...]

    @property
    def name(self) -> str:
        """The file name, equal for equal content: ``firn-0.1.0-2d3f9c….zip``."""
        return f"firn-{service.__version__}-{hashlib.sha256(self.data).hexdigest()[:12]}.zip"


def own_zip() -> Path | None:
    """Return the zip that this package was imported from; None where it was imported from a folder."""
    loader = service.__spec__.loader if service.__spec__ is not None else None
    archive = getattr(loader, "archive", None)
    return None if archive is None else Path(archive)


def root() -> Path:
    """Return the entry of ``sys.path`` that holds this package: a folder, or a zip."""
    return own_zip() or Path(service.__file__).resolve().parents[1]


def package_zip() -> PyFiles:
    """Zip the package that runs here; equal content gives equal bytes. Raises `OSError`."""
    if (archive := own_zip()) is not None:
        data = archive.read_bytes()
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            return PyFiles(data, _kernels(packed.namelist()))
    out = io.BytesIO()
    names = []
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in _files(root()):
            name = path.relative_to(root()).as_posix()
            names.append(name)
            info = zipfile.ZipInfo(name, _STAMP)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            packed.writestr(info, path.read_bytes())
    return PyFiles(out.getvalue(), _kernels(names))


def _files(base: Path) -> Iterator[Path]:
    for package in ("pyspark_firn", "service"):
        for path in sorted((base / package).rglob("*")):
            if path.suffix in (".py", ".pxd", ".so", ".pyd") or path.name == "py.typed":
                yield path


def _kernels(names: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    found = {
        "." + name.rpartition("/")[2].partition(".")[2] for name in names if name.endswith((".so", ".pyd"))
    }
    return tuple(sorted(found))


def has_kernels_for_here(packed: PyFiles) -> bool:
    """Return whether workers with this process's Python and platform run compiled kernels from the zip."""
    return EXTENSION_SUFFIXES[0] in packed.kernels
