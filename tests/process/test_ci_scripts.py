"""CI scripts: the second run of failed tests and its ledger, and the check of commit subjects."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / ".ci"
FLAKY = """
from pathlib import Path

def test_flaky():
    marker = Path("marker")
    seen = marker.exists()
    marker.touch()
    assert seen
"""


def twice(folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "marker").unlink(missing_ok=True)
    command = [".ci/twice", sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with one test that fails at first and passes by itself, and an empty ledger."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(SCRIPTS / "twice", tmp_path / ".ci")
    (tmp_path / ".ci" / "unstable-tests.txt").touch()
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_one.py").write_text(FLAKY)
    return tmp_path


def test_a_test_that_is_unstable_for_the_third_time_fails(checkout: Path) -> None:
    ledger = checkout / ".ci" / "unstable-tests.txt"
    for number in (1, 2):
        found = twice(checkout)
        assert found.returncode == 0, found.stdout + found.stderr
        assert "UNSTABLE, failed once and passed by itself: tests/test_one.py::test_flaky" in found.stdout
        names = [line.split(" ", 1)[1] for line in ledger.read_text().splitlines()]
        assert names == ["tests/test_one.py::test_flaky"] * number
    found = twice(checkout)
    assert found.returncode == 1
    assert "tests/test_one.py::test_flaky is unstable for the third time" in found.stdout


def test_a_name_that_begins_like_another_is_not_that_one(checkout: Path) -> None:
    line = "2026-01-01 tests/test_one.py::test_flaky_too\n"
    (checkout / ".ci" / "unstable-tests.txt").write_text(line * 2)
    assert twice(checkout).returncode == 0


def test_a_test_that_fails_twice_is_no_unstable_one(checkout: Path) -> None:
    (checkout / "tests" / "test_one.py").write_text("def test_broken():\n    assert False\n")
    assert twice(checkout).returncode == 1
    assert (checkout / ".ci" / "unstable-tests.txt").read_text() == ""


@pytest.mark.parametrize(
    ("subject", "is_taken"),
    [
        ("hot: flush what was cut before another segment begins", True),
        ("wire, serving: say all facts about an API in one row", True),
        ("Merge branch main", True),
        ("hot: " + "x" * 67, True),
        ("hot: " + "x" * 68, False),
        ("Read once more: places are looked up once", False),
        ("hot: Flush what was cut", False),
        ("flush what was cut", False),
        ("", False),
    ],
)
def test_subjects_of_commits(tmp_path: Path, subject: str, is_taken: bool) -> None:
    message = tmp_path / "message"
    message.write_text(f"{subject}\n\nWhy it is done.\n")
    found = subprocess.run([SCRIPTS / "commit-message", message], capture_output=True, text=True, check=False)
    assert (found.returncode == 0) is is_taken
    assert is_taken or "at most 72 characters" in found.stderr
