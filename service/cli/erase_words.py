"""Orders to erase keys, their plans and reports: as JSON documents, and as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from service.cli.columns import aligned

if TYPE_CHECKING:
    from service.inspect.erase_report import ErasurePlan
    from service.remote.format.erase_codec import ErasureOrder

_MB = 1 << 20
_SOME = 20


def order_document(order: ErasureOrder) -> dict[str, Any]:
    """Return what an order is, without the hashes of its keys."""
    return {
        "id": str(order.id),
        "keys": order.keys,
        "before_ms": None if order.before_ms < 0 else order.before_ms,
        "topics": [
            {"id": str(one.topic_id), "name": one.name, "ends": list(one.ends)} for one in order.topics
        ],
    }


def order_lines(order: ErasureOrder) -> list[str]:
    from service.base.times import time_text

    rows = [("topic", "partitions", "records below")]
    rows += [(one.name, str(len(one.ends)), ", ".join(map(str, one.ends[:8]))) for one in order.topics]
    before = "" if order.before_ms < 0 else f", older than {time_text(order.before_ms)}"
    return [f"order {order.id}: records of {order.keys} keys{before}", *aligned(rows)]


def plan_document(plan: ErasurePlan) -> dict[str, Any]:
    """Return a plan as one document."""
    return {
        **order_document(plan.order),
        "objects": plan.objects,
        "bytes": plan.size,
        "objects_that_may_have_records": plan.hit_objects,
        "bytes_of_these": plan.hit_size,
        "gets": plan.gets,
        "puts": plan.puts,
        "dollars": round(plan.dollars, 6),
        "problems": list(plan.problems),
    }


def plan_lines(plan: ErasurePlan) -> list[str]:
    from service.base.printable import escaped

    lines = [
        *order_lines(plan.order)[:1],
        f"objects below the ends: {plan.objects}, {plan.size / _MB:.1f} MB",
        f"of these may have records of the keys: {plan.hit_objects}, {plan.hit_size / _MB:.1f} MB; they are"
        " read, and written anew where they have",
        f"some {plan.gets} GETs and at most {plan.puts} PUTs: {plan.dollars:.4f} US$ by S3's list",
        "all replicas rewrite their own segments that have such records, and cuts of before are given up",
    ]
    return lines + [f"not looked at: {escaped(one)}" for one in plan.problems]


def list_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    from service.base.times import time_text

    if not rows:
        return ["there are no orders"]
    table = [("order", "state", "started", "done", "keys", "topics")]
    table += [
        (
            str(row["id"]),
            str(row["state"]),
            time_text(row["started_ms"]),
            "-" if row["done_ms"] is None else time_text(row["done_ms"]),
            str(row["keys"]),
            ", ".join(str(one["name"]) for one in row["topics"]),
        )
        for row in rows
    ]
    return aligned(table)


def status_lines(
    row: Mapping[str, Any], problems: Iterable[Mapping[str, Any]], silent: Iterable[str], *, has_keeper: bool
) -> list[str]:
    """Return how far an order is, what is left, and why."""
    return list(_status(row, problems, silent, has_keeper=has_keeper))


def _status(
    row: Mapping[str, Any], problems: Iterable[Mapping[str, Any]], silent: Iterable[str], *, has_keeper: bool
) -> Iterable[str]:
    from service.base.printable import escaped
    from service.base.times import time_text

    yield from list_lines([row])
    if row["is_restored"]:
        yield "it came back with a restore: its records are not shown"
    if has_keeper and "waits" in row:
        yield f"replicas left: {row['replicas_left']}, archives left: {row['archives_left']}"
        yield escaped(str(row["waits"]))
        for one in row["left"][:_SOME]:
            where = "its archive" if one["broker"] is None else f"broker {one['broker']}"
            yield escaped(f"left: {one['topic']}-{one['partition']}: {where}")
        if row["grace_until_ms"] is not None:
            yield f"what it dropped stays for readers until {time_text(row['grace_until_ms'])}"
        for key in row["remains"][:_SOME]:
            yield escaped(f"not deleted yet: {key}")
        for words in row["locked"][:_SOME]:
            yield escaped(f"locked: {words}")
    else:
        yield "the keeper of the prefix does not answer: what is left is not known"
    for problem in problems:
        yield escaped(f"{problem['topic']}-{problem['partition']}: {problem['why']}")
    for one in silent:
        yield escaped(one)


def report_lines(document: Mapping[str, Any]) -> list[str]:
    """Return a report of `firn erase verify` for a terminal."""
    from service.base.printable import escaped
    from service.base.times import time_text

    table = [("read", "topic", "partition", "broker", "objects", "bytes", "records of the keys")]
    table += [
        (
            str(one["kind"]),
            str(one["topic"]),
            "-" if one["partition"] < 0 else str(one["partition"]),
            "-" if one["broker"] < 0 else str(one["broker"]),
            str(one["objects"]),
            str(one["bytes_read"]),
            str(one["records_of_the_keys"]),
        )
        for one in document["read"]
    ]
    order = document["order"] or "keys that were given"
    return [
        f"cluster {document['cluster_id']}, {order}, {time_text(document['at_ms'])}",
        *aligned(table),
        *(escaped(f"not read: {one['problem']}") for one in document["read"] if one["problem"] is not None),
        f"{document['records_of_the_keys']} records of the keys"
        + ("" if document["is_clean"] else "; this proves nothing"),
        f"sha256 {document['sha256']}",
    ]
