"""A restore does not parse what an archive has: it says the same of it, and finds the same damage."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from service.base.errors import CorruptionError
from service.inspect import restore_archive
from service.inspect.manifest_glance import last_epoch, rows_of, segment_keys
from service.inspect.restore_archive import open_heir_chain, seen_chain, summary_of
from service.inspect.restore_source import CutChoice, RestoreSource, read_source
from service.inspect.take_over import TakeOverOrder, take_over
from service.remote.format.documents import pack, unpack
from service.remote.format.keys import HeadKey
from service.remote.format.manifest import ManifestLimits, SegmentEntry
from service.remote.format.manifest_codec import encode_manifest, head_of
from service.remote.reading import object_reader
from service.remote.reading.object_reader import open_published
from service.tiering.archive_attempt import catalog_entry
from tests.support.world import make_world
from tests.unit.inspect.cuts import EVENTS, TIERED, Cutting, damage, internal_log
from tests.unit.tiering.world import World

PLACE = (EVENTS, 0)


def archived(folder: Path, *, limits: ManifestLimits = ManifestLimits(), waits: bool = False) -> World:  # noqa: B008
    """Some segments in each of two partitions, and a cut behind them."""
    world = World(folder, partitions=2, limits=limits)
    world.topic_configs = {"events": TIERED}
    world.fill(7)
    world.run()
    world.run()
    for one in world.replicas:
        one.append(3, world.clock.now_ms())
    ends = {one: one.log.log_end_offset for one in world.replicas}
    Cutting(world, internal=internal_log()).cut(ends, waits=world.replicas if waits else ())
    if waits:
        world.fill(1)
        world.run()
    return world


def source_of(world: World) -> RestoreSource:
    with ThreadPoolExecutor(1) as pool:
        return read_source(world.bucket, CutChoice(), pool)[0]


def no_rows(*_: object) -> Any:
    raise AssertionError("all rows are parsed")


def test_nothing_of_an_archive_is_parsed_where_head_is_what_the_cut_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = archived(tmp_path)
    monkeypatch.setattr(object_reader, "decode_manifest", no_rows)
    with ThreadPoolExecutor(1) as pool:
        order = TakeOverOrder(CutChoice(), "heir", gap=5, quiet_ms=0)
        restored = take_over(
            world.bucket, order, make_world(world.clock), pool, lambda words: None, lambda *_: None
        )
    monkeypatch.undo()
    assert restored.missing == ()
    chain = open_published(world.bucket, HeadKey(*PLACE))
    assert chain is not None
    assert restored.entries[PLACE] == catalog_entry(chain)
    assert restored.plan.partitions[PLACE].chain.segments == 7


@pytest.mark.parametrize("limits", [ManifestLimits(), ManifestLimits(entries=3, page_refs=2)])
@pytest.mark.parametrize("waits", [False, True])
def test_the_same_is_said_as_where_all_rows_are_parsed(
    tmp_path: Path, limits: ManifestLimits, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = archived(tmp_path, limits=limits, waits=waits)
    source = source_of(world)
    for place in ((EVENTS, 0), (EVENTS, 1)):
        asked = world.bucket, source.owners, source.image, source.cut, place
        opened = open_heir_chain(*asked)
        glanced = seen_chain(*asked)
        assert glanced.found == summary_of(opened)
        with monkeypatch.context() as context:
            context.setattr(restore_archive, "_glanced", lambda *_: None)
            assert glanced == seen_chain(*asked)
        assert (glanced.head is not None) is not waits


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    world = archived(tmp_path)
    source = source_of(world)
    chain = open_published(world.bucket, HeadKey(*PLACE))
    assert chain is not None
    damage(world, chain.key)
    found = seen_chain(world.bucket, source.owners, source.image, source.cut, PLACE)
    assert found.head is None
    assert found.found.problem is not None
    assert chain.key in found.found.problem


def test_rows_are_those_that_are_parsed(tmp_path: Path) -> None:
    world = archived(tmp_path, limits=ManifestLimits(entries=3, page_refs=2))
    chain = open_published(world.bucket, HeadKey(*PLACE))
    assert chain is not None
    entries = chain.manifest.entries
    rows = rows_of(world.bucket.get(chain.key, max_size=1 << 20), chain.head)
    assert rows is not None
    assert rows.has_pages
    assert segment_keys(rows) == [entry.key for entry in entries]
    assert last_epoch(rows, chain.manifest.end_offset) == entries[-1].last_epoch
    assert last_epoch(rows, chain.manifest.end_offset + 1) is None
    with pytest.raises(CorruptionError, match="another checksum"):
        rows_of(b"other", chain.head)


@pytest.mark.parametrize("harm", ["owner", "version", "order"])
def test_manifests_of_other_software_are_parsed(tmp_path: Path, harm: str) -> None:
    world = archived(tmp_path)
    chain = open_published(world.bucket, HeadKey(*PLACE))
    assert chain is not None
    manifest = chain.manifest
    data = encode_manifest(manifest)
    fields: dict[str, Any] = json.loads(unpack(data, "manifest"))
    if harm == "owner":
        entry: SegmentEntry = manifest.entries[0]
        fields["segments"][0]["owner"] = {"topic_id": str(EVENTS), "partition": entry.generation}
    elif harm == "version":
        fields["format_version"] = 1
    else:
        fields["more"] = fields.pop("pages")
    data = pack(fields)
    assert rows_of(data, head_of(manifest, chain.key, data)) is None
