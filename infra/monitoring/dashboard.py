"""Makes the Grafana dashboard: `python infra/monitoring/dashboard.py > infra/monitoring/firn.dashboard.json`.

The picture is this table of rows and panels; a test holds the file to it, and every query to what a node
under load really tells.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

NODES: Final = 'job=~"$job", instance=~"$instance"'
"""The selector of every query; `{}` in the table stands for it."""
RATE: Final = "$__rate_interval"
WIDTH: Final = 24
SOURCE: Final = {"type": "prometheus", "uid": "${source}"}


class Panel(NamedTuple):
    """One picture: `queries` are (expression, legend); `width` is of `WIDTH`, `unit` one of Grafana's."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    help: str = ""
    width: int = 8
    kind: str = "timeseries"
    stacked: bool = False


def _p99(name: str, *by: str) -> str:
    labels = ", ".join(("instance", *by, "le"))
    return f"histogram_quantile(0.99, sum by ({labels}) (rate({name}_bucket{{}}[{RATE}])))"


def _rate(name: str, by: str = "instance") -> str:
    return f"sum by ({by}) (rate({name}{{}}[{RATE}]))"


HITS: Final = _rate("firn_cache_hits_total")

ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    "At a glance": (
        Panel("Nodes", "short", (("sum(up{})", "answer"),), "Nodes that were scraped.", 4, "stat"),
        Panel(
            "Partitions offline",
            "short",
            (('sum(firn_partitions{state="offline"})', "offline"),),
            "More than none is an alert.",
            4,
            "stat",
        ),
        Panel(
            "Upload lag",
            "s",
            (("max(firn_tiering_lag_seconds{})", "oldest"),),
            "Since when the oldest sealed segment waits for its copy.",
            4,
            "stat",
        ),
        Panel(
            "Do not tier",
            "short",
            (("sum(firn_tiering_blocked_partitions{}) or vector(0)", "blocked"),),
            "Partitions.",
            4,
            "stat",
        ),
        Panel(
            "Disk free",
            "percentunit",
            (("min(firn_log_dir_free_bytes{} / firn_log_dir_size_bytes{})", "least"),),
            "Of the fullest log directory.",
            4,
            "stat",
        ),
        Panel(
            "Memory",
            "percentunit",
            (
                (
                    "max(process_resident_memory_bytes{} / on (job, instance) firn_memory_limit_bytes{})",
                    "most",
                ),
            ),
            "Of what a process may have.",
            4,
            "stat",
        ),
    ),
    "Traffic": (
        Panel("Produced", "Bps", ((_rate("firn_produced_bytes_total"), "{{instance}}"),)),
        Panel(
            "Fetched, by tier",
            "Bps",
            ((_rate("firn_fetched_bytes_total", "tier"), "{{tier}}"),),
            "local: from disk and page cache; bucket: from the archive.",
            stacked=True,
        ),
        Panel("Records produced", "rps", ((_rate("firn_produced_records_total"), "{{instance}}"),)),
        Panel("Requests", "reqps", ((_rate("firn_request_handling_seconds_count", "api"), "{{api}}"),)),
        Panel(
            "Answers with an error",
            "ops",
            ((_rate("firn_request_errors_total", "api, error"), "{{api}} {{error}}"),),
        ),
        Panel(
            "Connections",
            "short",
            (
                ("sum by (listener) (firn_connections{})", "{{listener}}"),
                ("sum(firn_fetches_waiting{})", "fetches that wait"),
            ),
        ),
    ),
    "Latency and the loop": (
        Panel(
            "Handling, p99",
            "s",
            ((_p99("firn_request_handling_seconds", "api"), "{{instance}} {{api}}"),),
            "Time in which a request had the loop.",
        ),
        Panel(
            "Waiting for the handler, p99",
            "s",
            ((_p99("firn_request_queue_seconds", "api"), "{{instance}} {{api}}"),),
        ),
        Panel(
            "Answers that had to wait, p99",
            "s",
            ((_p99("firn_request_later_seconds", "api"), "{{instance}} {{api}}"),),
            "Long polls, flushes, the bucket.",
        ),
        Panel(
            "Turns of the loop",
            "s",
            (
                (_p99("firn_loop_turn_seconds"), "{{instance}} p99"),
                ("firn_loop_longest_turn_seconds{}", "{{instance}} longest ever"),
            ),
            "What all clients of a node wait. /turns says who held it.",
        ),
        Panel(
            "The loop at work",
            "percentunit",
            ((_rate("firn_loop_turn_seconds_sum"), "{{instance}}"),),
            "At 100 % the node has no core left.",
        ),
        Panel("CPU", "percentunit", ((_rate("process_cpu_seconds_total"), "{{instance}}"),), "Cores."),
    ),
    "Tiering": (
        Panel("Upload lag", "s", (("firn_tiering_lag_seconds{}", "{{instance}}"),)),
        Panel("Not in the bucket yet", "bytes", (("firn_tiering_lag_bytes{}", "{{instance}}"),)),
        Panel("Copied", "Bps", ((_rate("firn_tiering_copied_bytes_total"), "{{instance}}"),)),
        Panel(
            "Why partitions do not tier",
            "short",
            (("sum by (reason) (firn_tiering_blocked_partitions{})", "{{reason}}"),),
        ),
        Panel(
            "Steps that failed",
            "ops",
            ((_rate("firn_tiering_errors_total", "step"), "{{step}}"),),
            "Each is tried again.",
        ),
        Panel(
            "Segments",
            "short",
            (
                ("sum by (tier) (firn_segments{})", "{{tier}}"),
                ("sum(firn_tiering_lag_segments{})", "not copied yet"),
            ),
        ),
    ),
    "The object store": (
        Panel(
            "Calls",
            "reqps",
            ((_rate("firn_store_call_seconds_count", "client, call"), "{{client}} {{call}}"),),
        ),
        Panel(
            "Calls, p99",
            "s",
            ((_p99("firn_store_call_seconds", "client", "call"), "{{instance}} {{client}} {{call}}"),),
        ),
        Panel(
            "Errors",
            "ops",
            ((_rate("firn_store_errors_total", "client, call, error"), "{{client}} {{call}} {{error}}"),),
        ),
        Panel(
            "Bytes",
            "Bps",
            (
                (_rate("firn_store_sent_bytes_total", "client"), "{{client}} sent"),
                (_rate("firn_store_received_bytes_total", "client"), "{{client}} received"),
            ),
        ),
        Panel(
            "Found in memory",
            "percentunit",
            (
                (
                    f"{HITS} / ({HITS} + {_rate('firn_cache_misses_total')})",
                    "{{instance}}",
                ),
            ),
            "Of what cold reads want.",
        ),
        Panel(
            "Cold reads",
            "ops",
            (
                (_rate("firn_cache_read_ahead_total"), "{{instance}} read ahead"),
                (_rate("firn_cache_second_tries_total"), "{{instance}} second tries"),
                (_rate("firn_cache_failures_total"), "{{instance}} given up"),
                ("firn_cache_downloads{}", "{{instance}} under way"),
            ),
        ),
    ),
    "Disk and memory": (
        Panel("Free", "bytes", (("firn_log_dir_free_bytes{}", "{{instance}} {{directory}}"),)),
        Panel(
            "The ladder of disks that fill up",
            "short",
            (("firn_disk_step{}", "{{instance}} {{directory}}"),),
            "1 uploads first, 2 local copies go early, 3 producers wait, 4 records are refused.",
        ),
        Panel(
            "Logs, by tier",
            "bytes",
            (("sum by (tier) (firn_log_bytes{})", "{{tier}}"),),
            "bucket: whole objects.",
            stacked=True,
        ),
        Panel("Flushes, p99", "s", ((_p99("firn_log_flush_seconds"), "{{instance}}"),)),
        Panel(
            "Memory by owner", "bytes", (("sum by (owner) (firn_memory_bytes{})", "{{owner}}"),), stacked=True
        ),
        Panel("Resident memory", "bytes", (("process_resident_memory_bytes{}", "{{instance}}"),)),
        Panel(
            "Metadata",
            "short",
            (
                ("firn_metadata_topics{}", "{{instance}} topics"),
                ("sum by (state) (firn_partitions{})", "partitions {{state}}"),
            ),
        ),
    ),
}


def expressions() -> Iterator[str]:
    """Every query, as it stands in the file."""
    for panels in ROWS.values():
        for panel in panels:
            for expression, _ in panel.queries:
                yield selected(expression)


def selected(expression: str) -> str:
    """The expression for the nodes that are chosen: each selector takes `NODES` besides."""
    return expression.replace("{}", f"{{{NODES}}}").replace('{state="', f'{{{NODES}, state="')


def dashboard() -> dict[str, Any]:
    """The whole document, in Grafana's schema 39 (version 10 and later)."""
    panels: list[dict[str, Any]] = []
    down = 0
    for title, row in ROWS.items():
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False,
                       "gridPos": {"x": 0, "y": down, "w": WIDTH, "h": 1}, "panels": []})  # fmt: skip
        down += 1
        across, height = 0, 4 if row[0].kind == "stat" else 8
        for one in row:
            if across + one.width > WIDTH:
                across, down = 0, down + height
            place = {"x": across, "y": down, "w": one.width, "h": height}
            panels.append({"id": len(panels) + 1, "gridPos": place, **_panel(one)})
            across += one.width
        down += height
    return {
        "title": "Firn",
        "uid": "firn-nodes",
        "description": "Nodes of Firn, from their /metrics. Made by infra/monitoring/dashboard.py.",
        "tags": ["firn"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": list(_variables())},
        "annotations": {"list": []},
        "links": [],
        "panels": panels,
    }


def _panel(panel: Panel) -> dict[str, Any]:
    custom: dict[str, Any] = {"fillOpacity": 10, "showPoints": "never"}
    if panel.stacked:
        custom["stacking"] = {"mode": "normal", "group": "A"}
    made: dict[str, Any] = {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(65 + n), "datasource": SOURCE, "expr": selected(expression), "legendFormat": legend}
            for n, (expression, legend) in enumerate(panel.queries)
        ],
    }  # fmt: skip
    if panel.kind == "timeseries":
        made["fieldConfig"]["defaults"]["custom"] = custom
        made["options"] = {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi"},
        }
    else:
        made["options"] = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value"}
    return made


def _variables() -> Iterator[dict[str, Any]]:
    yield {
        "name": "source",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
    }
    for name, query in (
        ("job", "label_values(firn_metadata_offset, job)"),
        ("instance", 'label_values(firn_metadata_offset{job=~"$job"}, instance)'),
    ):
        yield {
            "name": name, "type": "query", "datasource": SOURCE, "query": query, "definition": query,
            "refresh": 2, "sort": 1, "multi": True, "includeAll": True,
            "current": {"text": "All", "value": "$__all"},
        }  # fmt: skip


if __name__ == "__main__":
    json.dump(dashboard(), sys.stdout, indent=1)
    sys.stdout.write("\n")
