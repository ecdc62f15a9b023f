"""The bucket's golden files: one small partition, the same bytes every time, in each version of the format.

`python -m tests.golden.remote.generate` writes those of version 2 anew; a change of any byte is a change of
the format and belongs in docs/bucket-format.md. Those of version 1 are what was written then: they stay.
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

from service.records.batch import iter_headers
from service.remote.format.block_table import BatchFacts
from service.remote.format.keys import MetadataKey, head_key, metadata_key
from service.remote.format.manifest import Manifest, ManifestLimits, ManifestPage
from service.remote.format.manifest_codec import (
    ClusterFile,
    TopicsFileRow,
    encode_cluster,
    encode_head,
    encode_manifest,
    encode_page,
    encode_topics,
    head_of,
)
from service.remote.format.metadata_ref import MetadataRef
from service.remote.format.segment_object import PlannedObject, SegmentIdentity, plan_object
from service.remote.format.stamp import Stamp, Writer
from service.remote.reading.object_reader import entry_of
from tests.support.batches import batch
from tests.support.block_tables import build_block_table

FOLDERS = {version: Path(__file__).parent / f"bucket-v{version}" for version in (1, 2)}
KAFKA = Path(__file__).parents[1] / "metadata" / "kafka-4.3.1"
STAMP = Stamp(1_700_000_100_000, Writer(1, UUID(int=300), "firn 0.1.0"))
CLUSTER_ID = "golden-cluster"
TOPIC_ID = UUID("6b0c6f5e-52f4-4c5b-9d0b-1f6f6f6b6e01")
TOPIC, PARTITION = "flights", 2


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


def segment(number: int) -> PlannedObject:
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
    manifest = Manifest(CLUSTER_ID, TOPIC_ID, TOPIC, PARTITION)
    for number in range(5):
        plan = segment(number)
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
    key = manifest.key(UUID(int=200))
    files[key] = encode_manifest(manifest)
    files[head_key(TOPIC_ID, PARTITION)] = encode_head(head_of(manifest, key, files[key]))
    return files


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
    for key, data in content().items():
        path = FOLDERS[2] / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


if __name__ == "__main__":
    main()
