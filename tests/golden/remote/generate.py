"""The bucket's golden files: one small partition, the same bytes every time, in each version of the format.

`python -m tests.golden.remote.generate` writes those of version 2 anew; a change of any byte is a change of
the format and belongs in docs/bucket-format.md. Those of version 1 are what was written then: they stay.
`cuts-v2` lies over `bucket-v2`: one more segment, whose object has the epochs of its whole log, and two cuts
with tails of both levels. `rewritten-v2` lies over both: two segments of the page are merged, one behind it
has lost records to an order to erase keys, which `CUT` lists.
"""

from __future__ import annotations

import gzip
import json
import struct
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import zstandard
from crc32c import crc32c

from service.base.threads import SystemThreads
from service.records.batch import iter_headers
from service.remote.format.block_table import BatchFacts
from service.remote.format.cut_codec import (
    Cut,
    CutRef,
    Cuts,
    ErasureRef,
    PartitionCut,
    TailRef,
    decode_cuts,
    encode_cut,
    encode_cuts,
)
from service.remote.format.erase_codec import ErasedTopic, ErasureOrder, encode_erasure
from service.remote.format.keys import (
    CutKey,
    HeadKey,
    MetadataKey,
    TailKey,
    cut_key,
    head_key,
    metadata_key,
    tail_key,
)
from service.remote.format.manifest import Manifest, ManifestLimits, ManifestPage
from service.remote.format.manifest_codec import (
    ClusterFile,
    TopicsFileRow,
    decode_cluster,
    encode_cluster,
    encode_head,
    encode_manifest,
    encode_page,
    encode_topics,
    head_of,
)
from service.remote.format.metadata_ref import MetadataRef
from service.remote.format.segment_object import (
    LeaderEpochs,
    PlannedObject,
    SegmentIdentity,
    plan_object,
)
from service.remote.format.stamp import Stamp, Writer
from service.remote.format.tail_object import TailSection
from service.remote.format.tail_object import encode_footer as encode_tail_footer
from service.remote.reading.object_reader import entry_of
from service.remote.stores.memory_store import MemoryStore
from tests.support.batches import batch
from tests.support.block_tables import build_block_table
from tests.support.rewritten import Rewriter, without_offsets

FOLDERS = {version: Path(__file__).parent / f"bucket-v{version}" for version in (1, 2)}
KAFKA = Path(__file__).parents[1] / "metadata" / "kafka-4.3.1"
CUTS = Path(__file__).parent / "cuts-v2"
REWRITTEN = Path(__file__).parent / "rewritten-v2"
STAMP = Stamp(1_700_000_100_000, Writer(1, UUID(int=300), "firn 0.1.0"))
CLUSTER_ID = "golden-cluster"
TOPIC_ID = UUID("6b0c6f5e-52f4-4c5b-9d0b-1f6f6f6b6e01")
TOPIC, PARTITION = "flights", 2
GROUPS, METADATA = UUID("7a1d3c1b-0c55-4d0a-8a3e-2f0d6e4b9c02"), UUID(int=1)
"""topics without a chain, the second with the metadata log"""
HISTORY = ((0, 0), (1, 30), (2, 60))
ERASURE = UUID("9d0c2f6e-6a1b-4c3d-8e2f-0a1b2c3d4e05")
ERASED = (46, 48, 49, 50)
"""offsets of a record of the fourth segment's first batch, and of all of its second one"""


def _log(base_offset: int, batches: int, epoch: int) -> bytes:
    return b"".join(
        batch(
            [f"value-{base_offset + 3 * number + i}".encode() for i in range(3)],
            base_offset=base_offset + 3 * number,
            leader_epoch=epoch,
            base_timestamp=1_700_000_000_000 + 1_000 * (base_offset + 3 * number),
        )
        for number in range(batches)
    )


def segment(number: int, history: LeaderEpochs = ()) -> PlannedObject:
    """Segment `number`: five batches of three records, two batches to a block."""
    base, epoch = 15 * number, number // 2
    log = _log(base, 5, epoch)
    facts = [
        (
            BatchFacts(
                h.position, h.size, h.base_offset, h.last_offset, h.base_timestamp, h.max_timestamp, 3
            ),
            log[h.position : h.end],
        )
        for h in iter_headers(log)
    ]
    return plan_object(
        SegmentIdentity(CLUSTER_ID, TOPIC_ID, TOPIC, PARTITION, base, base + 14, epoch, UUID(int=number + 1)),
        log=lambda: [log],
        log_length=len(log),
        blocks=build_block_table(facts, target_bytes=250),
        offset_index=struct.pack(">ii", 6, facts[2][0].position),
        time_index=struct.pack(">qi", facts[4][0].max_timestamp, 12),
        producer_snapshot=b"",
        leader_epochs=((epoch, base),),
        epoch_history=history,
        transactional_batch_count=0,
        max_timestamp_offset=base + 12,
        stamp=STAMP,
    )


def _stamped_page(page: ManifestPage) -> bytes:
    """The page with a stamp: as they were written before a page had to be a function of its segments."""
    return encode_page(replace(page, stamp=STAMP))


def content() -> dict[str, bytes]:
    """Key -> bytes of every object of the golden bucket, in version 2."""
    snapshot = (KAFKA / "00000000000000000064-0000000003.checkpoint").read_bytes()
    metadata = MetadataRef(
        metadata_key(MetadataKey(64, 3, UUID(int=400))), 64, 3, len(snapshot), crc32c(snapshot)
    )
    files = {
        "cluster.json": encode_cluster(ClusterFile(CLUSTER_ID, STAMP, metadata)),
        "topics.json": encode_topics(
            CLUSTER_ID, 41, [TopicsFileRow(TOPIC, TOPIC_ID, 3, {"remote.storage.enable": "true"})], STAMP
        ),
        metadata.key: snapshot,
    }
    manifest = _chain(files, 5)
    key = manifest.key(UUID(int=200))
    files[key] = encode_manifest(manifest)
    files[head_key(TOPIC_ID, PARTITION)] = encode_head(head_of(manifest, key, files[key]))
    return files


def _chain(files: dict[str, bytes], segments: int) -> Manifest:
    """Add the objects of so many segments, and pages, to `files`; return the manifest that names them."""
    manifest = Manifest(CLUSTER_ID, TOPIC_ID, TOPIC, PARTITION)
    for number in range(segments):
        plan = segment(number, HISTORY if number == 5 else ())
        files[plan.key] = b"".join(plan.parts())
        change = manifest.append(
            [entry_of(plan.footer)],
            leader_epoch=2,
            new_uuid=lambda number=number: UUID(int=100 + number),  # type: ignore[misc]
            encode_page=_stamped_page,
            limits=ManifestLimits(entries=3, page_refs=2),
            stamp=STAMP,
        )
        files.update((ref.key, data) for _, ref, data in change.pages)
        # Only the last one is part of the bucket, but each names its parent.
        parent = change.manifest.key(UUID(int=150 + number))
        manifest = replace(change.manifest, stored_key=parent)
    return manifest


def cut_content() -> dict[str, bytes]:
    """Key -> bytes of what lies over the golden bucket: a sixth segment, and two cuts with their tails."""
    below = content()
    files: dict[str, bytes] = {}
    manifest = _chain(files, 6)
    key = manifest.key(UUID(int=201))
    files[key] = encode_manifest(manifest)
    files[head_key(TOPIC_ID, PARTITION)] = encode_head(head_of(manifest, key, files[key]))
    groups = _log(0, 2, 0)
    high = _tail(files, 1, 1, [(GROUPS, 0, 0, groups), (TOPIC_ID, PARTITION, 2, _log(90, 4, 2))])
    low = _tail(files, 2, 0, [(METADATA, 0, 3, _log(64, 1, 3)), (TOPIC_ID, PARTITION, 3, _log(99, 2, 3))])
    metadata = decode_cluster(below["cluster.json"]).metadata
    assert metadata is not None
    kept = []
    for number, tails, end in ((1, [high], 102), (2, [high, low], 105)):
        # The second leader did not have what the first one had saved from 99 on.
        row = PartitionCut(3, 0, end, end, end, 99, 2 if number == 1 else 3, 6, False)
        none = PartitionCut(0, 0, 0, 0, 0, 0, -1, 0, False)
        cut = Cut(
            CLUSTER_ID,
            number,
            1_700_000_110_000 + 10_000 * number,
            number == 2,
            metadata,
            64 if number == 1 else 67,
            3,
            tuple(tails),
            {TOPIC_ID: (none, none, row), GROUPS: (PartitionCut(0, 0, 6, 6, 6, 6, 0, 0, False),)},
            STAMP,
        )
        name = cut_key(CutKey(number, UUID(int=500 + number)))
        files[name] = data = encode_cut(cut)
        kept.append(CutRef(number, name, len(data), crc32c(data), cut.at_ms, cut.is_exact, True))
    files["CUT"] = encode_cuts(Cuts(CLUSTER_ID, tuple(kept), (), STAMP))
    return {key: data for key, data in files.items() if below.get(key) != data}


def rewritten_content() -> dict[str, bytes]:
    """Key -> bytes of what lies over both: the chain with a merged and an erased segment, and an order."""
    below = {**content(), **cut_content()}
    store = MemoryStore(SystemThreads())
    for key, data in below.items():
        store.put(key, data)
    rewriter = Rewriter(store, HeadKey(TOPIC_ID, PARTITION), seed=7, block_bytes=250)
    rewriter.forged = {"keyed_record_count": 0}
    rewriter.merge(0, 29)
    rewriter.erase(45, 59, without_offsets(*ERASED))
    order = ErasureOrder(
        CLUSTER_ID,
        ERASURE,
        1_700_000_140_000,
        -1,
        bytes(range(16)),
        b"".join(bytes([number]) * 16 for number in (3, 77, 250)),
        b"".join(bytes([number]) * 8 for number in (9, 9, 130)),
        (ErasedTopic(TOPIC_ID, TOPIC, (0, 0, 90)),),
        STAMP,
    )
    data = encode_erasure(order)
    store.put(order.key, data)
    cuts = decode_cuts(below["CUT"])
    ref = ErasureRef(ERASURE, order.key, len(data), crc32c(data))
    store.put("CUT", encode_cuts(cuts._replace(erasures=(ref,))))
    found = {info.key: store.get(info.key, max_size=1 << 30) for info in store.list("")}
    return {key: data for key, data in found.items() if below.get(key) != data}


def _tail(
    files: dict[str, bytes], cut: int, level: int, saved: list[tuple[UUID, int, int, bytes]]
) -> TailRef:
    rows, data = [], b""
    for topic_id, partition, epoch, log in sorted(saved):
        last = list(iter_headers(log))[-1]
        first = next(iter_headers(log)).base_offset
        count = last.last_offset + 1 - first
        numbers = (first, last.last_offset + 1, len(data), len(log), crc32c(log), count, last.max_timestamp)
        rows.append(TailSection(topic_id, partition, epoch, *numbers, last.partition_leader_epoch))
        data += log
    footer = encode_tail_footer(CLUSTER_ID, cut, level, rows, STAMP)
    key = tail_key(TailKey(cut, level, 1, UUID(int=600 + cut)))
    files[key] = data + footer
    return TailRef(key, len(files[key]), len(data), int.from_bytes(footer[-12:-8], "big"))


def readable(key: str, data: bytes) -> bytes:
    """What is compared byte for byte: bytes of gzip and zstd may vary with their version, content may not."""
    if key.endswith(".zst"):
        data = zstandard.ZstdDecompressor().decompress(data)
    elif key.endswith(".gz"):
        data = gzip.decompress(data)
    elif not key.endswith("/HEAD"):
        return data
    document = json.loads(data)
    for row in (document, *document.get("pages", ())):
        for name in ("stored_size", "crc32c", "document_crc32c"):
            row.pop(name, None)
    return json.dumps(document).encode()


def main() -> None:
    for folder, files in (
        (FOLDERS[2], content()),
        (CUTS, cut_content()),
        (REWRITTEN, rewritten_content()),
    ):
        for key, data in files.items():
            path = folder / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


if __name__ == "__main__":
    main()
