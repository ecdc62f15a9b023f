"""Builds the per-record kernels with Cython where a C compiler is; says so and goes on where none is.

The kernels (service/records/kernel.py, column_kernel.py) are plain Python that Cython compiles to the same
modules: nothing but speed depends on the compiled life. ``python setup.py build_ext --inplace`` puts them
beside their sources.
"""

from __future__ import annotations

import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CompileError, LinkError

KERNELS = ("service.records.kernel", "service.records.column_kernel")


def say(reason: object, *kernels: str) -> None:
    for kernel in kernels or KERNELS:
        print(f"firn: {kernel} is not compiled: {reason}", file=sys.stderr)
    print(
        "firn: that is fine, it runs as plain Python. A C compiler and Cython would make it faster.",
        file=sys.stderr,
    )


class BuildKernel(build_ext):
    """Leaves an extension that cannot be built to its interpreted twin."""

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except (BaseError, CompileError, LinkError, OSError) as error:
            say(str(error).strip() or type(error).__name__, ext.name)


def extensions() -> list[Extension]:
    try:
        from Cython.Build import cythonize
        from Cython.Compiler.Errors import CompileError as CythonError
    except ImportError:
        say("Cython is not installed")
        return []
    kernels = [Extension(name, [name.replace(".", "/") + ".py"]) for name in KERNELS]
    directives = {"boundscheck": False, "wraparound": False, "cdivision": True, "language_level": 3}
    try:
        built: list[Extension] = cythonize(kernels, compiler_directives=directives)
    except CythonError as error:
        say(error)
        return []
    for extension in built:
        extension.optional = True  # what was not built is not missed when it should be copied or packed
    return built


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildKernel})
