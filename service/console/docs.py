"""Writer of docs/metrics.md: `python -m service.console.docs > docs/metrics.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from service.console.families import GROUPS
from service.console.family import Family

_HEAD = """# Metrics

Generated from the table in `service/console/families.py` by `python -m service.console.docs`; a test keeps it
current.

`firn.http.listener=:9464` (or `host:port`) makes a node serve HTTP; without a host on the loopback interface
only. There is no login, so consider that before you open it to others. If it is unset, its modules are not
loaded. `firn dev` sets it.

- `/metrics`: everything below in OpenMetrics text, for Prometheus. Counters are read on request; requests
  within a second get the same text. Values of partitions are summed up, unless
  `firn.metrics.partitions.enable` asks for each of them.
- `/healthz`: 200 while the event loop runs.
- `/readyz`: 200 while the node serves, 503 before and after; `findings` has all that is wrong with the node
  and its cluster, each with severity, since when, meaning, action and heading in [health.md](health.md);
  `checks` has the states of its parts with the words of their findings. What does not keep the node from
  serving, such as an unreachable store or stale metadata, is `degraded`.
- `/turns`: the longest and the latest long turns of the event loop and their cause: API, client and
  partition, or task and line. `cpu_ms` is the CPU time of the loop's thread: if it is much less than
  `took_ms`, other threads or processes used the CPU.
- `/tiering`: partitions that do not tier and failing steps for the whole bucket, each with its reason;
  `?topic=ID` for one topic. `firn tiers TOPIC` shows it.
- `/version`: the version, the commit that it was built from, and whether the kernels are `compiled` or
  `interpreted` (slow).

`firn top` shows a node's metrics as a table and repeats it; `firn top --json` prints them once for programs.

The last column has Kafka's MBean of the same meaning; it may use other units (ms, rates).
"""


def document() -> str:
    """Return the whole page."""
    parts = [_HEAD]
    for name, families in GROUPS.items():
        parts.append(f"\n## {name}\n\n")
        parts.append(_table(families))
    return "".join(parts)


def _table(families: Iterable[Family]) -> str:
    rows = ["| metric | kind | labels | what it is | Kafka |\n|---|---|---|---|---|\n"]
    for one in families:
        name = f"{one.name}_total" if one.kind == "counter" else one.name
        labels = ", ".join(f"`{label}`" for label in one.labels)
        kafka = f"`{one.kafka}`" if one.kafka else ""
        rows.append(f"| `{name}` | {one.kind} | {labels} | {one.help} | {kafka} |\n")
    return "".join(rows)


if __name__ == "__main__":
    sys.stdout.write(document())
