"""Replacement for the `cython` module in interpreted kernels: decorators and types without effect. [P]"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])
_C = TypeVar("_C", bound=type)

compiled = False


class _Type:
    def __getitem__(self, _shape: object) -> _Type:
        return self


class _NoGil(nullcontext[None]):
    """Both ``@nogil`` and ``with nogil:``."""

    def __call__(self, function: _F) -> _F:
        return function


longlong = ulonglong = uint = Py_ssize_t = _Type()
nogil = _NoGil()


def cfunc(function: _F) -> _F:
    return function


inline = ccall = cfunc


def cclass(kind: _C) -> _C:
    return kind


final = cclass


def exceptval(*, check: bool) -> Callable[[_F], _F]:
    del check
    return cfunc


def declare(_type: _Type, value: Any = None) -> Any:
    return value if value is None else int(value)
