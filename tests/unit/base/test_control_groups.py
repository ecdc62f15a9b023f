"""Cores by the limits of control groups: a container with the time of two of many cores has two."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from service.base.control_groups import usable_cores


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(
    ("inner", "outer", "cores"),
    [
        ("max 100000", "max 100000", 64),
        ("200000 100000", "max 100000", 2),
        ("max 100000", "250000 100000", 3),
        ("400000 100000", "150000 100000", 2),
        ("5000 100000", "max 100000", 1),
        ("9900000 100000", "max 100000", 64),
        ("", "200000", 64),
    ],
)
def test_the_least_time_on_the_way_up_counts(tmp_path: Path, inner: str, outer: str, cores: int) -> None:
    own, folder = tmp_path / "cgroup", tmp_path / "groups" / "pod" / "firn"
    folder.mkdir(parents=True)
    own.write_text("0::/pod/firn\n")
    (folder / "cpu.max").write_text(f"{inner}\n")
    (folder.parent / "cpu.max").write_text(f"{outer}\n")
    assert usable_cores(tmp_path / "groups", own) == cores


@pytest.mark.usefixtures("many")
def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/\n")
    (tmp_path / "cpu.max").write_text("200000 100000\n")
    assert usable_cores(tmp_path, tmp_path / "cgroup") == 2


@pytest.mark.usefixtures("many")
def test_without_control_groups_it_is_what_the_process_may_run_on(tmp_path: Path) -> None:
    assert usable_cores(tmp_path, tmp_path / "missing") == 64
