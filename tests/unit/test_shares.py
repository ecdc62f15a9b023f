"""Each file of tests belongs to one share, and those that are named one by one to the first."""

from __future__ import annotations

from pathlib import Path

from tests.support.shares import share


def test_each_file_is_in_one_share_and_shares_are_alike(tmp_path: Path) -> None:
    for number in range(40):
        folder = tmp_path / "tests" / f"room-{number % 4}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"test_{number}.py").write_text("#" * (100 + 50 * number))
    named = tmp_path / "test_one.py", tmp_path / "test_two.py"
    for path in named:
        path.touch()
    places = (*map(str, named), str(tmp_path / "tests"))
    shares = [share(places, 3, number) for number in range(3)]
    assert sorted(path.name for one in shares for path in one) == sorted(
        [*(f"test_{number}.py" for number in range(40)), "test_one.py", "test_two.py"]
    )
    assert {*named} < shares[0]
    sizes = [sum(path.stat().st_size for path in one) for one in shares]
    assert sum(sizes) / 5 < sizes[0] < sizes[1]
    assert abs(sizes[1] - sizes[2]) < 3_000
