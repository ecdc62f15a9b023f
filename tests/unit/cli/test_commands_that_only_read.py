"""Commands that only read change nothing at what they read, and create no folder where there is none."""

from __future__ import annotations

import argparse
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import pytest

from service.base.errors import ConfigError, FirnError
from service.cli.main import build_parser, main
from service.cli.manual import commands
from service.cli.tiers import cold_sizes
from service.client.admin_models import TopicInfo
from service.console.web.bucket_desk import BucketDesk
from service.remote.stores.obstore_store import open_store
from service.spark.options import parse_options
from service.spark.store import open_beside, open_store_of
from tests.support.world import WORLD
from tests.unit.inspect.cuts import TIERED, Cutting, internal_log
from tests.unit.tiering.world import World

READERS = {
    "firn fsck": ["{url}"],
    "firn sweep": ["{url}"],
    "firn repair": ["{url}"],
    "firn restore plan": ["--from", "{url}"],
    "firn dump": ["{url}/CUT"],
}
READ_ELSEWHERE = {
    "firn console": "test_the_console_creates_no_folder",
    "firn tiers": "test_the_sizes_of_a_topic_create_no_folder",
    "firn pipeline archive": "test_spark_creates_no_folder",
    "firn pipeline audit": "test_spark_creates_no_folder",
    "firn pipeline replay": "test_spark_creates_no_folder",
    "firn pipeline stats": "test_spark_creates_no_folder",
}
WRITERS = {
    "firn restore apply": "makes a prefix of the new cluster",
    "firn bucket check": "writes under probe/",
    "firn rewrite": "merges small objects",
    "firn pipeline erase": "writes objects without the keys of an order",
    "firn bucket create": "creates a bucket",
}
CHANGERS = {
    "firn sweep": ["{url}", "--delete"],
    "firn repair": ["{url}", "--write"],
    "firn restore apply": ["--from", "{url}", "--take-over", "--brokers", "1", "-o", "{file}"],
}
"""What they change has to be there."""


def _options(parser: argparse.ArgumentParser) -> set[str]:
    return {name for action in parser._actions for name in action.option_strings}


def test_every_command_that_opens_a_bucket_is_known_here() -> None:
    found = {one.prog for one in commands(build_parser()) if {"--endpoint", "--region"} <= _options(one)}
    assert found == {*READERS, *READ_ELSEWHERE, *WRITERS}


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    folder = tmp_path / "bucket"
    world = World(tmp_path / "disk", open_store(folder.as_uri(), world=WORLD), partitions=2)
    world.topic_configs = {"events": TIERED}
    world.fill(2)
    world.run()
    world.run()
    Cutting(world, internal=internal_log()).cut({one: one.log.log_end_offset for one in world.replicas})
    (folder / ".firn-lock").unlink(missing_ok=True)
    return folder


def _found(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Names, times and bytes of all that lies in a folder, folders included."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in (folder, *sorted(folder.rglob("*")))
    }


def _words(command: str, more: list[str], folder: Path) -> list[str]:
    values = {"url": folder.as_uri(), "file": str(folder.parent.parent / "restore.checkpoint")}
    return [*command.split()[1:], *(one.format_map(values) for one in more)]


@pytest.mark.parametrize("command", READERS)
def test_a_reader_leaves_every_byte_and_time_as_it_was(command: str, bucket: Path) -> None:
    before = _found(bucket)
    assert main(_words(command, READERS[command], bucket)) == 0
    assert _found(bucket) == before


@pytest.mark.parametrize(("command", "more"), [*READERS.items(), *CHANGERS.items()])
def test_a_folder_that_is_not_there_is_named_and_not_made(
    command: str, more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(_words(command, more, tmp_path / "typo" / "events")) in (1, 2)
    error = capsys.readouterr().err
    assert f"{tmp_path}/typo/events" in error
    assert "there is no folder" in error or "No such file or directory" in error
    assert list(tmp_path.iterdir()) == []


def test_the_source_of_a_clone_has_to_be_there_and_its_target_not(bucket: Path, tmp_path: Path) -> None:
    file, target = tmp_path / "restore.checkpoint", tmp_path / "new"
    more = ["--brokers", "1", "--fit", "-o", str(file), "--to", target.as_uri()]
    assert main(["restore", "apply", "--from", (tmp_path / "typo").as_uri(), *more]) in (1, 2)
    assert not target.exists()
    before = _found(bucket)
    assert main(["restore", "apply", "--from", bucket.as_uri(), *more]) == 0
    assert (target / "cluster.json").is_file()
    assert _found(bucket) == before


def test_the_console_creates_no_folder(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(ConfigError, match="there is no folder"):
        BucketDesk((tmp_path / "typo").as_uri(), None, None, WORLD, pool)
    assert list(tmp_path.iterdir()) == []


def test_the_sizes_of_a_topic_create_no_folder(tmp_path: Path) -> None:
    topic = TopicInfo("events", UUID(int=7), ())
    sizes = cold_sizes(topic, (tmp_path / "typo").as_uri(), None, None)
    assert sizes.problem is not None
    assert "there is no folder" in sizes.problem
    assert list(tmp_path.iterdir()) == []


def test_spark_creates_no_folder(bucket: Path, tmp_path: Path) -> None:
    options = parse_options({"url": bucket.as_uri(), "subscribe": "events"})
    open_store_of(options)
    moved = bucket.rename(tmp_path / "moved")
    missing = parse_options({"url": (tmp_path / "typo").as_uri(), "subscribe": "events"})
    with pytest.raises(ConfigError, match="there is no folder"):
        open_store_of(missing)
    with pytest.raises(FirnError):
        open_store_of(options).get("cluster.json", max_size=1 << 20)
    assert not bucket.exists()
    assert not (tmp_path / "typo").exists()
    shutil.rmtree(moved)
    open_beside((tmp_path / "state").as_uri(), options)
    assert (tmp_path / "state").is_dir()


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="there is no folder"):
        open_store((tmp_path / "file").as_uri(), world=WORLD, must_exist=True)
    with pytest.raises(ConfigError):
        open_store((tmp_path / "file").as_uri(), world=WORLD)
