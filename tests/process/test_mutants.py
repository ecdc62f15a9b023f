"""`make mutants`: what a test notices is killed, what none does survives, and the tree stays as it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULE = '''"""A barrel. [P]"""

from dataclasses import dataclass

MOST = 10


@dataclass
class Barrel:
    level: int = 0

    def pour(self, litres: int) -> int:
        if litres < 0:
            raise ValueError(litres)
        poured = min(litres, MOST - self.level)
        self.level += poured
        return poured


def drain(barrel: Barrel) -> None:
    for _ in range(barrel.level):
        barrel.level -= 1


def is_empty(barrel: Barrel) -> bool:
    return barrel.level == 0
'''
TESTS = """from cellar.barrel import Barrel, drain


def test_a_barrel_holds_ten_litres():
    barrel = Barrel()
    assert [barrel.pour(n) for n in (4, 0, 9)] == [4, 0, 6]


def test_what_is_drained_is_empty():
    barrel = Barrel(3)
    drain(barrel)
    assert barrel.level == 0
"""


@pytest.fixture
def cellar(tmp_path: Path) -> Path:
    (tmp_path / "cellar").mkdir()
    (tmp_path / "cellar" / "__init__.py").write_text("")
    (tmp_path / "cellar" / "barrel.py").write_text(MODULE)
    (tmp_path / "test_barrel.py").write_text(TESTS)
    return tmp_path


def run(cellar: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.mutants", *arguments]
    return subprocess.run(
        command, cwd=cellar, env=env, capture_output=True, text=True, timeout=240, check=False
    )


def survivors(output: str) -> dict[str, str]:
    """By place: what was changed."""
    return dict(re.findall(r"SURVIVES  (\S+)  (.*)  \(", output))


def test_mutants_that_no_test_notices_survive(cellar: Path) -> None:
    before = {path: path.read_bytes() for path in cellar.rglob("*.py")}
    done = run(cellar, "cellar", "--tests", "test_barrel.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert survivors(done.stdout) == {
        "cellar/barrel.py:13:1": "if litres < 0: raise ValueError(litres) → pass",
        "cellar/barrel.py:13:4": "0 → -1",
        "cellar/barrel.py:14:1": "raise ValueError(litres) → pass",
        "cellar/barrel.py:26:1": "return barrel.level == 0 → return None",
        "cellar/barrel.py:26:2": "barrel.level == 0 → barrel.level != 0",
        "cellar/barrel.py:26:3": "0 → 1",
        "cellar/barrel.py:26:4": "0 → -1",
    }
    assert "no test reaches it" in done.stdout
    assert re.search(r"cellar +21 of +21 +killed +14 +66.7%", done.stdout), done.stdout
    assert {path: path.read_bytes() for path in cellar.rglob("*.py")} == before


def test_one_is_tried_again_by_its_name_and_by_pytest_itself(cellar: Path) -> None:
    """A constant that an import makes, a function's code, and one that never ends."""
    named = [
        "cellar/barrel.py:5:2",
        "cellar/barrel.py:15:2",
        "cellar/barrel.py:22:1",
        "cellar/barrel.py:26:2",
    ]
    done = run(cellar, *[word for name in named for word in ("--mutant", name)], "--tests", "test_barrel.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(survivors(done.stdout)) == [named[3]]
    alone = run(cellar, "--alone", named[1], "test_barrel.py")
    assert alone.returncode == 1
    assert "FAILED test_barrel.py::test_a_barrel_holds_ten_litres" in alone.stdout
    assert run(cellar, "--alone", named[3], "test_barrel.py").returncode == 0


def test_a_mutant_that_is_none_is_refused(cellar: Path) -> None:
    done = run(cellar, "--mutant", "cellar/barrel.py:5:9", "--tests", "test_barrel.py")
    assert done.returncode == 70
    assert "no mutant cellar/barrel.py:5:9" in done.stderr


def test_tests_that_cannot_be_read_end_the_run(cellar: Path) -> None:
    (cellar / "test_barrel.py").write_text("import nothing_of_that_name\n")
    done = run(cellar, "cellar", "--tests", "test_barrel.py")
    assert done.returncode == 1
    assert "the tests could not be run" in done.stderr
