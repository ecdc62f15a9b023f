"""Orders to erase keys, their plans and reports: as JSON documents, and as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from service.cli.columns import aligned

if TYPE_CHECKING:
    from service.client.erasures import FoundOrders
    from service.inspect.erase_report import ErasurePlan
    from service.remote.format.erase_codec import ErasureOrder

_MB = 1 << 20
_SOME = 20
_STATES = ("left", "looked_at", "rewritten")


def order_document(order: ErasureOrder) -> dict[str, Any]:
    """Return what an order is, without the hashes of its keys."""
    return {
        "id": str(order.id),
        "keys": order.keys,
        "before_ms": None if order.before_ms < 0 else order.before_ms,
        "topics": [
            {
                "id": str(one.topic_id),
                "name": one.name,
                "ends": list(one.ends),
                "leader_epochs": list(one.leader_epochs),
            }
            for one in order.topics
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


def status_document(row: Mapping[str, Any], found: FoundOrders) -> dict[str, Any]:
    """Return all that is known of one order: its row, and what brokers tell of it."""
    order = row["id"]
    progress = [one for one in found.progress if one["order"] == order]
    sums = {
        what: {state: sum(one[what][state] for one in progress) for state in _STATES}
        for what in ("objects", "bytes")
    }
    problems = [one for one in found.problems if one["order"] == order]
    return {**row, **sums, "problems": problems, "silent": list(found.silent), "away": list(found.away)}


def status_lines(document: Mapping[str, Any]) -> list[str]:
    """Return how far an order is, what is left, and why."""
    from service.base.printable import escaped

    lines = [*list_lines([document]), *_progress(document), *_remains(document)]
    lines += [
        f"{problem['topic']}-{problem['partition']}: {problem['why']}" for problem in document["problems"]
    ]
    return [escaped(one) for one in (*lines, *document["silent"], *document["away"])]


def _progress(row: Mapping[str, Any]) -> Iterator[str]:
    if row["is_restored"]:
        yield "it came back with a restore: its records are not shown"
    if "waits" not in row:
        yield "the keeper of the prefix does not answer: what is left is not known"
        return
    yield f"waits: {row['waits']}"
    yield f"replicas: {row['replicas'] - row['replicas_left']} of {row['replicas']} done"
    yield f"archives: {row['archives'] - row['archives_left']} of {row['archives']} done"
    if row["state"] == "open":
        yield from _open_progress(row)
    for one in row["left"][:_SOME]:
        where = "its archive" if one["broker"] is None else f"broker {one['broker']}"
        yield f"left: {one['topic']}-{one['partition']}: {where}"


def _open_progress(row: Mapping[str, Any]) -> Iterator[str]:
    from service.base.times import time_text

    objects, size = row["objects"], row["bytes"]
    yield (
        f"objects: {objects['looked_at']} looked at ({size['looked_at'] / _MB:.1f} MB), "
        f"{objects['left']} left ({size['left'] / _MB:.1f} MB), "
        f"{objects['rewritten']} written anew ({size['rewritten'] / _MB:.1f} MB)"
    )
    if row["tails"]:
        yield f"tails: {row['tails_clean']} of {row['tails']} have none of the keys"
    if row["cuts_left"]:
        first, last = time_text(row["cuts_from_ms"]), time_text(row["cuts_until_ms"])
        yield (
            f"cuts: {row['cuts_left']} that may have the keys, from {first} to {last}; "
            f"the first complete one after the archives are done replaces them"
        )


def _remains(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield what of a done order is still in the bucket, and until when."""
    from service.base.times import time_text

    if row.get("grace_until_ms") is None:
        return
    yield f"what it dropped stays for readers until {time_text(row['grace_until_ms'])}"
    if row["remaining_objects"]:
        yield f"objects: {row['remaining_objects']} are not deleted yet"
    yield from (f"not deleted yet: {key}" for key in row["remains"][:_SOME])
    if row["versions_left"]:
        until = row["versions_until_ms"]
        when = "no lifecycle rule takes them" if until is None else f"until {time_text(until)}"
        yield f"old versions: {row['versions_left']}, {when}"
    if row["locked_objects"]:
        yield f"under retention: {row['locked_objects']}"
    yield from (f"locked: {words}" for words in row["locked"][:_SOME])


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
