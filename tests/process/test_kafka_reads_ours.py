"""Apache Kafka's own dump tool on our metadata log and snapshots."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from service.base.disk import SystemDisk
from service.hot.names import CLUSTER_METADATA_DIR
from service.metadata.raft.snapshots import list_snapshots
from service.metadata.records import FIRST_OWN_ID
from tests.support.kafka_tools import tool
from tests.unit.metadata.controllers import catalog_commit, create, join, running


@pytest.mark.java
def test_kafka_dump_log_reads_the_log_and_the_snapshot(tmp_path: Path) -> None:
    directory = tmp_path / CLUSTER_METADATA_DIR

    async def fill() -> int:
        async with running(tmp_path, snapshot_interval_ms=1000) as controller:
            epoch = await join(controller)
            topic_id = await create(controller, "events", 3)
            await controller.catalog.commit([catalog_commit(topic_id, 0, 1, 0)])
            await controller.allocate_producer_ids(1, epoch)
            await controller.brokers.fence(1, epoch)
            records = controller.image.offset + 1
            # There may be an older one, from before all that.
            while not any(one.end_offset == records for one in list_snapshots(SystemDisk(), directory)):
                await asyncio.sleep(0.01)
            return records

    records = asyncio.run(fill())
    snapshot = list_snapshots(SystemDisk(), directory)[-1]
    assert snapshot.end_offset == records
    files = [directory / "00000000000000000000.log", directory / snapshot.file_name]
    lines = tool("dump-log", "--cluster-metadata-decoder", "--files", ",".join(map(str, files))).splitlines()
    assert not any("isvalid: false" in line or "invalid bytes" in line for line in lines)

    border = next(i for i, line in enumerate(lines) if "Snapshot end offset" in line)
    log, checkpoint = lines[:border], lines[border:]
    assert sum(line.startswith("| offset:") for line in log) == records
    assert sum("LeaderChange" in line for line in log) == 1
    for part in (log, checkpoint):
        payloads = [line.split(" payload: ")[1] for line in part if " payload: " in line]
        skipped = [payload for payload in payloads if payload.startswith("Error")]
        assert len(skipped) == 1
        assert str(FIRST_OWN_ID) in skipped[0]
        decoded = [json.loads(payload) for payload in payloads if payload not in skipped]
        topics = [record["data"]["name"] for record in decoded if record["type"] == "TOPIC_RECORD"]
        assert topics == ["events"]
        assert sum(record["type"] == "PARTITION_RECORD" for record in decoded) == 3
    assert any("SnapshotHeader" in line for line in checkpoint)
    assert any("SnapshotFooter" in line for line in checkpoint)
