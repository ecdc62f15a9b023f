"""Dumpers of a bucket's objects: segment, tail, manifest, page, HEAD, `cluster.json`, CUT, cut, erasure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from service.inspect.dump import Dump, Row
from service.inspect.source import Source
from service.remote.format import manifest_codec as codec
from service.remote.format.cut_codec import CUT_FORMAT, decode_cut, decode_cuts
from service.remote.format.documents import MAX_STORED_BYTES, unpack
from service.remote.format.erase_codec import ERASURE_FORMAT, decode_erasure
from service.remote.format.fields import int_field, parse_json_object, uuid_field
from service.remote.format.segment_object import SUFFIX_HINT, Footer, decode_footer, tail_length
from service.remote.format.stamp import stamp_fields
from service.remote.format.tail_object import FORMAT_VERSION as TAIL_VERSION
from service.remote.format.tail_object import SUFFIX_HINT as TAIL_HINT
from service.remote.format.tail_object import decode_footer as decode_tail_footer
from service.remote.format.tail_object import footer_length
from service.remote.reading.lost_page import reference_of

PACKED: Final = (".json.gz", ".json.zst")
"""Suffixes of manifests and pages: version 2 writes the first, version 1 wrote the second."""


def dump_segment(source: Source) -> Dump:
    """Dump a segment object from its tail alone; `log_length` and the rest of the footer at the top level."""
    footer = read_footer(source)
    identity = footer.identity
    head = {
        "format_version": footer.format_version,
        "log_length": footer.log_length,
        **identity._asdict(),
        "generation": footer.generation,
        "rewrite": footer.rewrite._asdict() if footer.rewrite is not None else None,
        **stamp_fields(footer.stamp),
        "record_count": footer.record_count,
        "batch_count": footer.batch_count,
        "transactional_batch_count": footer.transactional_batch_count,
        "keyed_record_count": footer.keyed_record_count,
        "max_timestamp": footer.max_timestamp,
        "max_timestamp_offset": footer.max_timestamp_offset,
        "leader_epochs": footer.leader_epochs,
        "sections": {name: section._asdict() for name, section in footer.sections.items()},
        "object_size": footer.object_size,
        "footer_position": footer.tail_position,
        "footer_crc": footer.crc,
    }
    return Dump("segment object", head, (("blocks", (block._asdict() for block in footer.blocks)),))


def read_footer(source: Source) -> Footer:
    """Return the verified footer with one read, or a second one when the tail is longer than usual."""
    suffix = source.read_suffix(SUFFIX_HINT)
    for _ in range(2):
        needed = tail_length(suffix, source.size)
        if needed <= len(suffix):
            break
        suffix = source.read_suffix(needed)
    return decode_footer(suffix, source.size)


def dump_manifest(source: Source) -> Dump:
    manifest = codec.decode_manifest(source.read(MAX_STORED_BYTES))
    head = {
        "cluster_id": manifest.cluster_id,
        "topic_id": manifest.topic_id,
        "topic": manifest.topic,
        "partition": manifest.partition,
        "version": manifest.version,
        "parent_version": manifest.parent_version,
        "parent_key": manifest.parent_key,
        **stamp_fields(manifest.stamp),
        "leader_epoch": manifest.leader_epoch,
        "start_offset": manifest.start_offset,
        "end_offset": manifest.end_offset,
        "segment_count": manifest.segments,
        "size_bytes": manifest.size_bytes,
        "dropped_segments": manifest.dropped_segments,
        "dropped_bytes": manifest.dropped_bytes,
    }
    return Dump("manifest", head, (("pages", _rows(manifest.pages)), ("segments", _rows(manifest.entries))))


def dump_page(source: Source) -> Dump:
    """Dump a manifest page, checked as if a manifest had named it: sums, chain, keys."""
    data = source.read(MAX_STORED_BYTES)
    document = _inflated_json(data, source.name)
    topic_id = uuid_field(document, "topic_id")
    partition = int_field(document, "partition", 0, 2**31 - 1)
    page = codec.decode_page(data, reference_of(data, "page"), topic_id, partition)
    head = {"topic_id": topic_id, "partition": partition, "level": page.level, **stamp_fields(page.stamp)}
    return Dump("manifest page", head, (("children", _rows(page.children)),))


def dump_head(source: Source) -> Dump:
    head = codec.decode_head(source.read(codec.MAX_SMALL_BYTES))
    return Dump("HEAD", _stamped(head._asdict()))


def dump_cluster(source: Source) -> Dump:
    cluster = codec.decode_cluster(source.read(codec.MAX_SMALL_BYTES))
    metadata = cluster.metadata
    head = {**cluster._asdict(), "metadata": metadata._asdict() if metadata is not None else None}
    return Dump("cluster", _stamped(head))


def dump_topics(source: Source) -> Dump:
    topics = codec.decode_topics(source.read(codec.MAX_TOPICS_BYTES))
    head = {**topics._asdict()}
    del head["topics"]
    return Dump("topics", _stamped(head), (("topics", _rows(topics.topics)),))


def dump_cuts(source: Source) -> Dump:
    """Dump `CUT`: the cuts that are kept, and the orders to erase keys."""
    cuts = decode_cuts(source.read(codec.MAX_SMALL_BYTES))
    newest = {
        name: found.cut if found is not None else None
        for name, found in (("newest", cuts.newest), ("complete", cuts.complete), ("exact", cuts.exact))
    }
    head = {"cluster_id": cuts.cluster_id, **stamp_fields(cuts.stamp), **newest}
    return Dump("CUT", head, (("kept", _rows(cuts.kept)), ("erasures", _rows(cuts.erasures))))


def dump_cut(source: Source) -> Dump:
    """Dump the document of one cut: its metadata, tails, and where each partition ends."""
    cut = decode_cut(source.read(MAX_STORED_BYTES))
    head = _stamped(cut._asdict())
    head = {**head, "metadata": cut.metadata._asdict()}
    del head["tails"], head["topics"]
    partitions = (
        {"topic_id": topic_id, "partition": partition, **row._asdict()}
        for topic_id, rows in cut.topics.items()
        for partition, row in enumerate(rows)
    )
    return Dump("cut", head, (("tails", _rows(cut.tails)), ("partitions", partitions)))


def dump_tail(source: Source) -> Dump:
    """Dump a tail from its footer alone; a section's bytes are a `.log` by themselves."""
    suffix = source.read_suffix(TAIL_HINT)
    if (needed := footer_length(suffix, source.size)) > len(suffix):
        suffix = source.read_suffix(needed)
    footer = decode_tail_footer(suffix, source.size)
    head = {
        "format_version": TAIL_VERSION,
        "cluster_id": footer.cluster_id,
        "cut": footer.cut,
        "level": footer.level,
        **stamp_fields(footer.stamp),
        "object_size": footer.object_size,
        "footer_position": footer.position,
        "footer_crc": footer.crc,
    }
    return Dump("tail", head, (("sections", _rows(footer.sections)),))


def dump_erasure(source: Source) -> Dump:
    """Dump an order to erase keys, without the secret and the hashes: with both a key can be guessed."""
    order = decode_erasure(source.read(MAX_STORED_BYTES))
    head = {
        "cluster_id": order.cluster_id,
        "id": order.id,
        "started_ms": order.started_ms,
        "before_ms": order.before_ms,
        **stamp_fields(order.stamp),
        "keys": order.keys,
    }
    return Dump("order to erase keys", head, (("topics", _rows(order.topics)),))


_DUMPERS: Final[dict[str, Callable[[Source], Dump]]] = {
    "manifest": dump_manifest,
    "page": dump_page,
    "cut": dump_cut,
    "erase": dump_erasure,
}
"""by the folder of a packed document"""
_FORMATS: Final = {codec.PAGE_FORMAT: "page", CUT_FORMAT: "cut", ERASURE_FORMAT: "erase"}


def dump_packed(source: Source) -> Dump:
    """Dump a packed document: a manifest, a page, a cut or an order to erase keys, by its folder, else by its
    `format`."""
    kind = source.folder
    if kind not in _DUMPERS:
        document = _inflated_json(source.read(MAX_STORED_BYTES), source.name)
        kind = _FORMATS.get(str(document.get("format")), "manifest")
    return _DUMPERS[kind](source)


def _rows(items: Iterable[Any]) -> Iterator[Row]:
    return (item._asdict() for item in items)


def _stamped(head: dict[str, Any]) -> dict[str, Any]:
    """Return the row with the fields of its stamp instead of the stamp."""
    stamp = head.pop("stamp")
    return {**head, **stamp_fields(stamp)}


def _inflated_json(data: bytes, name: str) -> dict[str, Any]:
    return parse_json_object(unpack(data, name), name)
