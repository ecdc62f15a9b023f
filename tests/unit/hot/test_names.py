"""Names of files and directories of a log."""

from __future__ import annotations

from uuid import UUID

import pytest

from service.hot.names import parse_offset_file, parse_partition_dir, retired_dir


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("a-0", ("a", 0)),
        ("a-b-7", ("a-b", 7)),
        ("a-2147483647", ("a", 2**31 - 1)),
        ("a-2147483648", None),
        ("t" * 249 + "-1", ("t" * 249, 1)),
        ("t" * 250 + "-1", None),
        (".-1", None),
        ("..-1", None),
        ("...-1", ("...", 1)),
        ("a", None),
        ("a-", None),
        ("-1", None),
        ("a b-1", None),
        ("a-1-delete", None),
    ],
)
def test_a_directory_of_a_replica_is_told_by_its_name(name: str, found: tuple[str, int] | None) -> None:
    assert parse_partition_dir(name) == found


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("00000000000000000042.log", (42, ".log")),
        ("99999999999999999999.snapshot", (10**20 - 1, ".snapshot")),
        ("0000000000000000042.log", None),
        ("00000000000000000042.log.deleted", None),
        ("00000000000000000042", None),
    ],
)
def test_a_file_of_an_offset_is_told_by_its_name(name: str, found: tuple[int, str] | None) -> None:
    assert parse_offset_file(name) == found


def test_a_directory_that_is_retired_has_a_name_that_a_file_system_takes() -> None:
    unique = UUID(int=7)
    assert retired_dir("a", 3, unique, "-delete") == f"a-3.{unique.hex}-delete"
    long = retired_dir("t" * 249, 12, unique, "-stray")
    assert len(long) == 255
    assert long == "t" * 213 + f"-12.{unique.hex}-stray"
