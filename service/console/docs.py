"""Makes docs/metrics.md of the table: `python -m service.console.docs > docs/metrics.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from service.console.families import GROUPS, Family

_HEAD = """# Metrics

Made from the table in `service/console/families.py` by `python -m service.console.docs`; a test keeps it
current.

`firn.http.listener=:9464` (or `host:port`) has a node serve HTTP: without a host on the loopback interface
alone. There is no login, so think before you open it to others. Unset, nothing of it is loaded. `firn dev`
switches it on.

- `/metrics`: everything below in OpenMetrics text, as Prometheus scrapes it. Counters are read when asked,
  and whoever asks within a second gets the same text. What goes with partitions is summed up, unless
  `firn.metrics.partitions.enable` asks for each of them.
- `/healthz`: 200 while the event loop turns.
- `/readyz`: 200 when the node serves, 503 before and after; `checks` says of logs, metadata and store how
  they are. A store that is away is `degraded`, with the reason: hot data is served all the same.
- `/turns`: the longest and the latest long turns of the event loop and who held it: API, client and
  partition, or task and line. `cpu_ms` is the CPU time of the loop's thread in it: where it is much less than
  `took_ms`, the machine was busy with something else.
- `/tiering`: which partitions do not tier and which steps for the whole bucket fail, each with its reason;
  `?topic=ID` for one topic. `firn tiers TOPIC` shows it.
- `/version`: the version, and the commit that it was built of.

`firn top` shows a node's figures as a table that renews itself, `firn top --json` once for programs.

Kafka's MBean of the same meaning stands beside each; it may count in other units (ms, rates).
"""


def document() -> str:
    """The whole page."""
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
