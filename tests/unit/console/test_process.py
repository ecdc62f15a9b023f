"""What is told of the process: limits of control groups, file systems of log directories."""

from __future__ import annotations

from pathlib import Path

from service.console.process import memory_limit, of_process


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


def test_each_log_directory_says_how_full_it_is(tmp_path: Path) -> None:
    found = {(one.name, one.labels): one.value for one in of_process(1, [tmp_path, tmp_path / "gone"])}
    free = found["firn_log_dir_free_bytes", (str(tmp_path),)]
    size = found["firn_log_dir_size_bytes", (str(tmp_path),)]
    assert isinstance(free, int)
    assert isinstance(size, int)
    assert 0 < free <= size
    assert sum(name.startswith("firn_log_dir") for name, _ in found) == 2
