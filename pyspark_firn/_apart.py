"""Import of Firn's package `service` apart, where a project has a `service` of its own (ADR 48).

Firn's modules import each other as ``service.…``. Where that name means somebody else's package, they are
loaded as ``pyspark_firn.service.…`` instead, from the same files: what they import goes there, and
`sys.modules` and the project's imports stay as they are.
"""

from __future__ import annotations

import builtins
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec, PathFinder
from importlib.util import find_spec
from os import path
from types import ModuleType
from typing import Any, Final

NAME: Final = "service"
APART: Final = f"{__package__}.{NAME}"
ROOT: Final = path.dirname(path.dirname(path.abspath(__file__)))
"""Folder or zip that holds both packages."""
_LOCK: Final = threading.RLock()


def rooms() -> str:
    """Return the name under which this process imports Firn's rooms: `NAME` where it means Firn's package,
    else `APART`."""
    loaded = sys.modules.get(NAME)
    if loaded is not None:
        file = getattr(loaded, "__file__", None)
    else:
        spec = find_spec(NAME)
        file = None if spec is None else spec.origin
    return NAME if file is not None and _is_ours(file) else APART


def _is_ours(file: str) -> bool:
    ours = path.join(ROOT, NAME, "__init__.py")
    return path.realpath(file) == path.realpath(ours)


def install() -> None:
    """Let `APART` and what is below be imported, in this process."""
    if not any(isinstance(one, _Finder) for one in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _import(
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> Any:
    """Import as `__import__` does, with `APART` in place of `NAME`. Every module of Firn gets it."""
    if level == 0 and (name == NAME or name.startswith(f"{NAME}.")):
        name = f"{APART}{name[len(NAME) :]}"
        if not fromlist:
            import_module(name)
            return sys.modules[APART]  # what ``import service.x`` binds
    return builtins.__import__(name, globals, locals, fromlist or (), level)


_BUILTINS: Final = {**vars(builtins), "__import__": _import}


class _Finder(MetaPathFinder):
    """Finder of `APART`, in front of the others."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != APART and not fullname.startswith(f"{APART}."):
            return None
        spec = PathFinder.find_spec(fullname, [ROOT] if fullname == APART else path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Apart(spec.loader)
        return spec


class _Apart(Loader):
    """Loader that gives a module its own `__import__`; a compiled one, which asks no module for that, finds
    Firn's modules under their plain names while it is loaded."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # while it is being copied
            raise AttributeError(name)
        return getattr(self._inner, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        if not isinstance(self._inner, ExtensionFileLoader):
            return None
        with lent_names():
            made: ModuleType | None = self._inner.create_module(spec)
            return made

    def exec_module(self, module: ModuleType) -> None:
        if isinstance(self._inner, ExtensionFileLoader):
            with lent_names():
                self._inner.exec_module(module)
            return
        code = self._inner.get_code(module.__name__)
        vars(module)["__builtins__"] = _BUILTINS
        exec(code, vars(module))


@contextmanager
def lent_names() -> Iterator[None]:
    """Have Firn's modules in `sys.modules` under their plain names, in place of somebody else's.

    Those that a compiled module imports are loaded before it: the interpreted ones of its room.
    """
    for name in ("kernel_status", "without_cython"):
        import_module(f"{APART}.records.{name}")
    with _LOCK:
        theirs = {name: one for name, one in sys.modules.items() if _is_plain(name)}
        for name in theirs:
            del sys.modules[name]
        lent = {
            f"{NAME}{name[len(APART) :]}": one
            for name, one in sys.modules.items()
            if name == APART or name.startswith(f"{APART}.")
        }
        sys.modules.update(lent)
        try:
            yield
        finally:
            for name in [one for one in sys.modules if _is_plain(one)]:
                del sys.modules[name]
            sys.modules.update(theirs)


def _is_plain(name: str) -> bool:
    return name == NAME or name.startswith(f"{NAME}.")
