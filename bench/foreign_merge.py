"""A merge's work without the node: `python -m bench.foreign_merge URL ENDPOINT TOPIC NICE`.

It reads the small objects of partition 0 and makes the large ones in the bucket, by the same code and as nice
as a node's child process, publishes none and deletes them. What a producer feels beside it comes of sharing
processors and the store; what it feels beside a node's own merge and not here comes of the node. It prints
``begin`` once it has planned, and at the end the number of objects that it has read.
"""

from __future__ import annotations

import os
import sys

from service.base.types import TopicIdPartition
from service.base.world import system_world
from service.remote.reading.object_reader import open_cluster, open_topics
from service.remote.stores.obstore_store import open_store
from service.tiering.copier import CallProgress
from service.tiering.rewriting.merge_plan import MergeLimits
from service.tiering.rewriting.outside_worker import OutsideWorker
from service.tiering.rewriting.rules import MergeRule


def main() -> int:
    url, endpoint, topic, nice = sys.argv[1:]
    world = system_world()
    store = open_store(url, world=world, endpoint=endpoint)
    cluster_id = open_cluster(store)
    assert cluster_id is not None
    topic_id = next(row.topic_id for row in open_topics(store).topics if row.name == topic)
    worker = OutsideWorker(store, cluster_id, world, lambda: None)
    plan = worker.plan_merges(TopicIdPartition(topic_id, topic, 0), MergeLimits(min_age_ms=0))
    os.nice(int(nice))
    print("begin", flush=True)
    for run in plan.runs:
        made = worker.make(run, MergeRule(), world.new_uuid(), 0, CallProgress())
        store.delete([made.entry.key])
    print(sum(len(run.entries) for run in plan.runs), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
