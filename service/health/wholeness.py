"""Check that a cluster lacks nothing, before another node of it is stopped, by the facts of a node. [P]"""

from __future__ import annotations

from collections.abc import Iterator

from service.health.facts import NodeFacts


def lacks(facts: NodeFacts) -> Iterator[str]:
    """Yield what is missing, in words; nothing only where the node knows that nothing is."""
    if not facts.is_serving:
        yield "it does not serve"
    yield from facts.waits
    view, cluster = facts.view, facts.cluster
    partitions = None if cluster is None else cluster.partitions
    # Without an age, a node that serves is the quorum by itself.
    if view is None or view.is_stale or partitions is None:
        yield "its metadata are not confirmed by a controller"
    else:
        if partitions.offline:
            yield f"{partitions.offline} partitions have no leader"
        if partitions.under_replicated:
            yield f"{partitions.under_replicated} partitions are under-replicated"
    if facts.offline_partitions:
        yield f"{facts.offline_partitions} partitions cannot be opened"
    if facts.failed_shards:
        yield f"{facts.failed_shards} partitions of coordinators could not be loaded"
