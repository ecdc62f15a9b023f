"""The proof of a chain, the same for `firn fsck` and for audits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from service.inspect.fsck import fsck
from service.remote.format.keys import HeadKey, head_key
from service.remote.format.manifest import Manifest, ManifestLimits, ManifestPage, PageRef, SegmentEntry
from service.remote.format.manifest_codec import (
    ClusterFile,
    encode_cluster,
    encode_head,
    encode_manifest,
    head_of,
)
from service.remote.reading.chain_proof import proved_segments
from service.remote.reading.object_reader import Chain, open_chain, open_page
from service.remote.stores.obstore_store import open_store
from tests.support.world import WORLD
from tests.unit.tiering.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    (tmp_path / "bucket").mkdir()
    bucket = open_store((tmp_path / "bucket").as_uri(), world=WORLD)
    world = World(tmp_path / "disk", bucket, segment_bytes=4000, limits=ManifestLimits(entries=3))
    world.fill(5)
    world.run()
    return world


def chain_of(world: World) -> Chain:
    return open_chain(world.bucket, world.entry(world.replicas[0]).manifest_key)


def told(
    chain: Chain, load: Callable[[PageRef], ManifestPage]
) -> tuple[list[SegmentEntry], list[tuple[str, str]]]:
    errors: list[tuple[str, str]] = []
    return list(proved_segments(chain, load, lambda where, what: errors.append((where, what)))), errors


def test_a_chain_that_decodes_but_contradicts_itself_is_reported(world: World) -> None:
    chain = chain_of(world)
    manifest = chain.manifest
    load = lambda ref: open_page(world.bucket, ref, manifest)  # noqa: E731
    entries, errors = told(chain, load)
    assert (len(entries), errors) == (manifest.segments, [])

    def wrong(**lie: object) -> list[tuple[str, str]]:
        return told(chain._replace(manifest=replace(manifest, **lie)), load)[1]  # type: ignore[arg-type]

    newest = manifest.entries[-1]
    far = newest._replace(base_offset=newest.base_offset + 1)
    assert wrong(entries=(*manifest.entries[:-1], far)) == [
        (far.key, f"does not follow offset {newest.base_offset - 1}")
    ]
    ((where, what),) = wrong(dropped_segments=1, dropped_bytes=9)
    assert (where, "the manifest sums up" in what) == (chain.key, True)
    # The first page's first segment is still live by its offsets, but not the one that the log starts with.
    first = entries[0]
    bare = replace(manifest, pages=(), entries=(first._replace(base_offset=first.base_offset + 1),))
    (begins, *_) = told(chain._replace(manifest=bare), load)[1]
    assert begins == (first.key, f"the chain begins with it, not at {manifest.start_offset}")


def test_an_empty_chain_is_one(world: World) -> None:
    chain = chain_of(world)
    manifest = chain.manifest
    empty = Manifest("c", manifest.topic_id, "events", 0, version=3, start_offset=7)
    assert told(chain._replace(manifest=empty), lambda ref: pytest.fail(ref.key)) == ([], [])


def test_a_page_that_cannot_be_read_is_one_error(world: World) -> None:
    chain = chain_of(world)
    world.bucket.delete([chain.manifest.pages[0].key])
    ((where, what),) = [(one.where, one.what) for one in fsck(world.bucket).errors]
    assert where == chain.manifest.pages[0].key
    assert "a page of the manifest cannot be read" in what


def damage(world: World, how: str) -> None:
    """One thing wrong with the partition's chain, or with one of its segments."""
    chain, bucket = chain_of(world), world.bucket
    manifest = chain.manifest
    key = HeadKey(manifest.topic_id, manifest.partition)
    segment = manifest.entries[-1].key

    def publish(manifest: Manifest) -> None:
        data = encode_manifest(manifest)
        bucket.put(chain.key, data)
        bucket.put(head_key(*key), encode_head(head_of(manifest, chain.key, data)))

    def flip(position: int) -> None:
        data = bytearray(bucket.get(segment, max_size=1 << 20))
        data[position] ^= 1
        bucket.put(segment, data)

    damages: dict[str, Callable[[], object]] = {
        "nothing": lambda: None,
        "no HEAD": lambda: bucket.delete([head_key(*key)]),
        "HEAD": lambda: bucket.put(head_key(*key), b"{}"),
        "no manifest": lambda: bucket.delete([chain.key]),
        "manifest": lambda: bucket.put(chain.key, b"x"),
        "no page": lambda: bucket.delete([manifest.pages[0].key]),
        "another cluster": lambda: publish(replace(manifest, cluster_id="other")),
        "another topic": lambda: publish(replace(manifest, topic="other")),
        "the prefix of another cluster": lambda: bucket.put(
            "cluster.json", encode_cluster(ClusterFile("other"))
        ),
        "sums": lambda: publish(replace(manifest, dropped_segments=1, dropped_bytes=1)),
        "entry": lambda: publish(
            replace(
                manifest,
                entries=(*manifest.entries[:-1], manifest.entries[-1]._replace(max_timestamp=1 << 41)),
            )
        ),
        "no segment": lambda: bucket.delete([segment]),
        "longer segment": lambda: bucket.put(segment, bytes(bucket.get(segment, max_size=1 << 20)) + b"x"),
        "footer": lambda: flip(-30),
        "records": lambda: flip(100),
    }
    damages[how]()


@pytest.mark.parametrize(
    ("how", "count"),
    [
        ("nothing", 0),
        ("no HEAD", 1),
        ("HEAD", 1),
        ("no manifest", 1),
        ("manifest", 1),
        ("no page", 1),
        ("another cluster", 1),
        ("another topic", 6),
        ("the prefix of another cluster", 1),
        ("sums", 1),
        ("entry", 1),
        ("no segment", 1),
        ("longer segment", 1),
        ("footer", 1),
        ("records", 1),
    ],
)
def test_fsck_and_an_audit_say_the_same_of_it(world: World, how: str, count: int, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: make spark")
    from service.pipelines.audit_task import Chains, Checked, check_segment
    from service.remote.reading.object_reader import open_cluster
    from service.spark.options import Subscribe, parse_options
    from service.spark.plan.archive import ArchiveReader

    damage(world, how)
    options = parse_options({"url": (tmp_path / "bucket").as_uri(), "subscribe": "events"})
    with ArchiveReader(world.bucket, threads=1) as archive:
        chosen = archive.choose(Subscribe(("events",)))
    audited = [
        one if isinstance(one, Checked) else check_segment(world.bucket, one)
        for one in Chains(options, frozenset((open_cluster(world.bucket),)))(chosen)
    ]
    said = [_place(one.object, error) for one in audited for error in one.errors]
    # Of topics.json, which is not the chain's, an audit says nothing.
    told = [(one.where, one.what) for one in fsck(world.bucket).errors if one.where != "topics.json"]
    assert sorted(said) == sorted((where, what.removeprefix(f"{where}: ")) for where, what in told)
    assert len(told) == count


def _place(of: str, error: str) -> tuple[str, str]:
    """Return key and text; an error of a chain names its own place."""
    where, _, what = error.partition(": ")
    return (where, what) if where.startswith("data/") else (of, error)
