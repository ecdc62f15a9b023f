"""`firn sweep` finds what a killed upload has left in a folder, where no listing of objects shows it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from service.cli.main import main
from service.remote.format.keys import SegmentKey, segment_key
from service.remote.stores.obstore_store import StoreOptions, open_store
from tests.support.world import WORLD
from tests.unit.inspect.archives import copy_metadata
from tests.unit.tiering.world import World

KEY = segment_key(SegmentKey(UUID(int=7), 0, 0, 9, 0, UUID(int=8)))
PART = 5 << 20


class Killed(BaseException):
    """Ends an upload as a kill does: what it has begun stays."""


def left_behind(root: Path, key: str) -> Path:
    """Have an upload of `key` end amid its parts, and return the file that it leaves."""
    left: list[Path] = []

    def parts() -> Iterator[bytes]:
        yield b"secret" + bytes(2 * PART)
        (path,) = root.rglob("*#*")
        os.link(path, path.with_name("kept"))
        left.append(path)
        raise Killed

    store = open_store(root.as_uri(), options=StoreOptions(part_bytes=PART), world=WORLD)
    with pytest.raises(Killed):
        store.put_stream(key, parts(), 8 * PART)
    (path,) = left
    path.with_name("kept").rename(path)
    return path


def with_metadata(folder: Path, root: Path) -> None:
    """Put a copy of some metadata there: without one nothing is swept."""
    world = World(folder / "disk")
    copy_metadata(world)
    for info in world.bucket.list(""):
        path = root / info.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(world.bucket.get(info.key, max_size=info.size))


def swept(capsys: pytest.CaptureFixture[str], root: Path, *words: str) -> dict[str, Any]:
    assert main(["sweep", root.as_uri(), *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_file_that_an_upload_has_left_is_listed_and_deleted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = tmp_path / "bucket"
    path = left_behind(bucket, KEY)
    with_metadata(tmp_path, bucket)
    foreign = bucket / "notes#1"
    foreign.write_text("of somebody else")
    assert swept(capsys, bucket, "--delete")["unfinished_uploads"] == [], "it may be under way"
    assert path.read_bytes().startswith(b"secret")
    found = swept(capsys, bucket, "--older-than-hours", "0")
    assert [one["key"] for one in found["unfinished_uploads"]] == [KEY]
    assert path.exists()
    assert swept(capsys, bucket, "--older-than-hours", "0", "--delete")["aborted"] == 1
    assert not path.exists()
    assert foreign.exists()
