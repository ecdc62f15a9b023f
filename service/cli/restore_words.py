"""A restore's plan as one JSON document, and as lines for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from service.cli.columns import aligned

if TYPE_CHECKING:
    from service.inspect.restore_plan import RestorePlan

_HEAD = ("topic", "partitions", "replicas", "start", "end", "bytes in chain", "in tails", "given up", "empty")


def document_of(plan: RestorePlan) -> dict[str, object]:
    """Return the plan as one JSON document."""
    return {
        "cluster_id": plan.source_id,
        "cut": plan.ref.cut,
        "at_ms": plan.ref.at_ms,
        "exact": plan.ref.is_exact,
        "metadata_end": plan.metadata_end,
        "age_ms": plan.age_ms,
        "topics": [{**one._asdict(), "topic_id": str(one.topic_id)} for one in plan.topics],
        "partitions": [
            {
                "topic_id": str(one.topic_id),
                "partition": one.partition,
                "start": one.start,
                "chain_end": one.chain_end,
                "loaded_end": one.loaded_end,
                "end": one.end,
                "goes_on_at": one.go_on,
                "given_up": one.given_up,
                "tails": list(one.tails),
            }
            for one in plan.partitions.values()
        ],
        "given_up": plan.given_up,
        "dropped": list(plan.dropped),
        "to_set": list(plan.to_set),
        "notes": list(plan.notes),
        "passed_over": list(plan.passed_over),
        "problems": list(plan.problems),
    }


def lines_of(plan: RestorePlan) -> list[str]:
    """Return the plan for a terminal."""
    from service.base.printable import escaped
    from service.base.times import time_text

    kind = "exact: one moment of all partitions" if plan.ref.is_exact else "loose"
    rows = [
        (
            one.name,
            *map(
                str,
                (
                    one.partitions,
                    one.replication_factor,
                    one.start,
                    one.end,
                    one.chain_bytes,
                    one.tail_bytes,
                    one.given_up,
                    one.empty_partitions,
                ),
            ),
        )
        for one in plan.topics
    ]
    lines = [
        *(f"passed over: {one}" for one in plan.passed_over),
        f"cluster {plan.source_id}: cut {plan.ref.cut} of {time_text(plan.ref.at_ms)}, {kind}",
        f"the newest document in the bucket is {plan.age_ms / 1000:.1f} s younger; metadata up to offset "
        f"{plan.metadata_end}",
        *aligned([_HEAD, *rows]),
        f"{plan.given_up} offsets are known to have existed that do not come back",
    ]
    lines += [f"note: {one}" for one in plan.notes]
    lines += [f"does not come back: {one}" for one in plan.dropped]
    lines += [f"to be set anew: {one}" for one in plan.to_set]
    lines += [f"problem: {one}" for one in plan.problems]
    return [escaped(one) for one in lines]
