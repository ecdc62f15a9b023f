"""Builds the per-record kernel with Cython where a C compiler is; says so and goes on where none is.

The kernel (service/records/kernel.py) is plain Python that Cython compiles to the same module: nothing but
speed depends on the compiled life. ``python setup.py build_ext --inplace`` puts it beside its source.
"""

from __future__ import annotations

import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CompileError, LinkError

KERNEL = "service.records.kernel"


def say(reason: object) -> None:
    print(
        f"firn: {KERNEL} is not compiled: {reason}\n"
        "firn: that is fine, it runs as plain Python. A C compiler and Cython would make it faster.",
        file=sys.stderr,
    )


class BuildKernel(build_ext):
    """Leaves an extension that cannot be built to its interpreted twin."""

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except (BaseError, CompileError, LinkError, OSError) as error:
            say(str(error).strip() or type(error).__name__)


def extensions() -> list[Extension]:
    try:
        from Cython.Build import cythonize
        from Cython.Compiler.Errors import CompileError as CythonError
    except ImportError:
        say("Cython is not installed")
        return []
    kernel = Extension(KERNEL, ["service/records/kernel.py"])
    directives = {"boundscheck": False, "wraparound": False, "cdivision": True, "language_level": 3}
    try:
        built: list[Extension] = cythonize([kernel], compiler_directives=directives)
    except CythonError as error:
        say(error)
        return []
    for extension in built:
        extension.optional = True  # what was not built is not missed when it should be copied or packed
    return built


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildKernel})
