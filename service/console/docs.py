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

- `/metrics`: everything below as text for Prometheus: `text/plain; version=0.0.4`, or OpenMetrics for those
  whose `Accept` prefers it; gzip where `Accept-Encoding` allows it. Counters are read on request; requests
  within a second get the same text. Values of partitions are summed up, unless
  `firn.metrics.partitions.enable` asks for each of them, up to `firn.metrics.partitions.max`; of topics there
  are `firn.metrics.topics.max`.
- Lag is told by the broker that coordinates the group: sum over all nodes. An end that is not here (a
  partition that this broker neither leads nor follows in sync) is asked of its leader, in one ListOffsets
  for many partitions, when somebody scrapes and at most every 5 s; a scrape waits a second for it. With an
  authorizer the brokers' principal needs Describe on the topics, or is a super user.
  `firn_group_lag_left_out` says what is missing: groups beyond `firn.metrics.groups.max`, what has no room
  (some 10,000 partitions; all of a group or none), and ends that nobody told within a minute.
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
