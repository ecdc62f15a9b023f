"""Metrics of the process: limits of control groups."""

from __future__ import annotations

from pathlib import Path

from service.console.process import memory_limit


def test_the_least_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    own, inner = tmp_path / "cgroup", tmp_path / "groups" / "system.slice" / "firn@1.service"
    inner.mkdir(parents=True)
    own.write_text("0::/system.slice/firn@1.service\n")
    without = memory_limit(tmp_path / "groups", own)
    (inner / "memory.max").write_text("max\n")
    assert memory_limit(tmp_path / "groups", own) == without
    (inner / "memory.max").write_text("1073741824\n")
    assert memory_limit(tmp_path / "groups", own) == 1 << 30
    (inner.parent / "memory.max").write_text("536870912\n")
    assert memory_limit(tmp_path / "groups", own) == 1 << 29


def test_without_control_groups_it_is_the_machines(tmp_path: Path) -> None:
    assert memory_limit(tmp_path, tmp_path / "missing") > 1 << 20
