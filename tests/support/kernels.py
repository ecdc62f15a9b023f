"""The sources of the record kernels as modules of their own, whatever may be compiled beside them."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Final
from unittest.mock import patch

from service.records import kernel_status

NAMES: Final = (
    "kernel",
    "column_buffers",
    "column_kernel",
    "index_kernel",
    "time_kernel",
    "key_kernel",
    "compaction_kernel",
    "filter_kernel",
    "prefix_kernel",
    "key_walk_kernel",
    "erasure_kernel",
    "commit_kernel",
    "produce_kernel",
    "commit_plan_kernel",
)
"""Each after those that it imports."""


def interpreted(*, with_cython: bool) -> dict[str, ModuleType]:
    """All kernels by name; ``with_cython`` is whether they find Cython's shadow module."""
    modules = {}
    with patch.dict(sys.modules, {} if with_cython else {"cython": None}):
        for name in NAMES:
            spec = importlib.util.spec_from_file_location(
                f"service.records.{name}", Path(kernel_status.__file__).with_name(f"{name}.py")
            )
            assert spec is not None
            assert spec.loader is not None
            modules[name] = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(modules[name])
            assert not modules[name].COMPILED
            assert "without_cython" in modules[name].cython.__name__ or with_cython
    return modules
