"""The simulator knows the node; the node does not know the simulator."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return {name.partition(".")[0] for name in found}


def test_nothing_of_the_service_imports_the_simulator() -> None:
    paths = [*(ROOT / "service").rglob("*.py")]
    assert len(paths) > 100
    for path in paths:
        assert not _imports(path) & {"simulator", "greenlet"}, path


def test_no_module_imports_the_planted_defects() -> None:
    paths = [*(ROOT / "simulator").glob("*.py")]
    assert len(paths) > 10
    for path in paths:
        assert "from simulator.plant" not in path.read_text("utf-8"), path
