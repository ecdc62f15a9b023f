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


ANSWERS: Final = 'error!~"ObjectNotFound|PreconditionFailed"'
"""Leaves out errors of the store that are answers, as the alert does: it is not there, or was changed."""
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
            "Written, by topic",
            "Bps",
            ((_rate("firn_topic_produced_bytes_total", "topic"), "{{topic}}"),),
            "(others): topics beyond firn.metrics.topics.max.",
        ),
        Panel(
            "Read by consumers, by topic",
            "Bps",
            ((_rate("firn_topic_fetched_bytes_total", "topic"), "{{topic}}"),),
        ),
        Panel(
            "Records, by topic",
            "rps",
            (
                (_rate("firn_topic_produced_records_total", "topic"), "{{topic}} written"),
                (_rate("firn_topic_fetched_records_total", "topic"), "{{topic}} read"),
            ),
        ),
        Panel(
            "Connections",
            "short",
            (
                ("sum by (listener) (firn_connections{})", "{{listener}}"),
                ("sum(firn_fetches_waiting{})", "fetches that wait"),
                ("sum(firn_produces_waiting{})", "produce requests that wait"),
            ),
        ),
    ),
    "Cluster": (
        Panel(
            "Active controllers",
            "short",
            (("sum(firn_quorum_is_leader{})", "controllers"),),
            "One in each cluster.",
            4,
            "stat",
        ),
        Panel(
            "Brokers fenced",
            "short",
            (('max(firn_cluster_brokers{state="fenced"})', "fenced"),),
            "Down, or starting.",
            4,
            "stat",
        ),
        Panel(
            "Without leader",
            "short",
            (("max(firn_cluster_partitions_without_leader{})", "partitions"),),
            "Partitions that nobody can write or read.",
            4,
            "stat",
        ),
        Panel(
            "Not at the preferred leader",
            "short",
            (("max(firn_cluster_preferred_imbalance{})", "partitions"),),
            "Partitions.",
            4,
            "stat",
        ),
        Panel(
            "Reassigning",
            "short",
            (("max(firn_cluster_partitions_reassigning{})", "partitions"),),
            "Partitions.",
            4,
            "stat",
        ),
        Panel(
            "Unclean elections",
            "short",
            (("max(increase(firn_cluster_unclean_elections_total{}[1h]))", "in an hour"),),
            "More than none may have lost records.",
            4,
            "stat",
        ),
        Panel(
            "Elections of leaders",
            "ops",
            ((f"max by (job) (rate(firn_cluster_leader_elections_total{{}}[{RATE}]))", "{{job}}"),),
        ),
        Panel(
            "Findings",
            "short",
            (
                (
                    "max by (finding, severity) (firn_health_findings{}) > 0 or vector(0)",
                    "{{severity}} {{finding}}",
                ),
            ),
            "What the nodes find wrong with themselves and their cluster: docs/health.md.",
        ),
        Panel(
            "Running",
            "s",
            (
                (
                    "time() - process_start_time_seconds{} + on (job, instance) group_left (version) "
                    "(0 * firn_build_info{})",
                    "{{instance}} {{version}}",
                ),
            ),
            "Since its start, and the version.",
        ),
    ),
    "Replication": (
        Panel(
            "Not as replicated as they should be",
            "short",
            (
                ("sum(firn_replicas_under_replicated{})", "under-replicated"),
                ("sum(firn_replicas_under_min_isr{})", "under min ISR: refuse acks=all"),
                ("sum(firn_replicas_at_min_isr{})", "at min ISR"),
                ("sum(firn_replicas_resting{})", "not fetched: no room"),
            ),
            "Partitions.",
        ),
        Panel(
            "Lag of replicas",
            "short",
            (("max by (broker) (firn_replicas_lag{})", "on broker {{broker}}"),),
            "Records that a replica lacks at most, of one partition.",
        ),
        Panel(
            "Changes of the ISR",
            "ops",
            (
                (_rate("firn_isr_shrinks_total"), "{{instance}} shrinks"),
                (_rate("firn_isr_expands_total"), "{{instance}} expands"),
            ),
        ),
        Panel(
            "Replicated",
            "Bps",
            (
                (_rate("firn_replication_received_bytes_total"), "{{instance}} received"),
                (_rate("firn_replication_sent_bytes_total"), "{{instance}} sent"),
            ),
        ),
        Panel(
            "Partitions of several replicas",
            "short",
            (
                ("firn_replicas_led{}", "{{instance}} leads"),
                ("firn_replicas_followed{}", "{{instance}} follows"),
            ),
        ),
        Panel(
            "Cut below the high watermark",
            "short",
            (
                (
                    f"increase(firn_replication_cuts_below_high_watermark_total{{}}[{RATE}])",
                    "{{instance}}",
                ),
            ),
            "After an unclean election: committed records are gone.",
        ),
    ),
    "Quorum": (
        Panel(
            "Lag of voters",
            "short",
            (("max by (voter) (firn_quorum_voter_lag{})", "voter {{voter}}"),),
            "Records of the metadata log; the leader tells it.",
        ),
        Panel(
            "Epoch",
            "short",
            (("max by (job) (firn_quorum_epoch{})", "{{job}}"),),
            "Each election has the next.",
        ),
        Panel(
            "Metadata log",
            "short",
            (
                ("firn_quorum_high_watermark{}", "{{instance}} high watermark"),
                ("firn_metadata_offset{}", "{{instance}} applied"),
            ),
        ),
    ),
    "Groups": (
        Panel(
            "Lag, by group and topic",
            "short",
            (("sum by (group, topic) (firn_group_topic_lag{})", "{{group}} {{topic}}"),),
            "Records between committed offset and high watermark.",
        ),
        Panel(
            "Partitions that are furthest behind",
            "short",
            (("topk(10, firn_group_lag{})", "{{group}} {{topic}}-{{partition}}"),),
        ),
        Panel("Members", "short", (("sum by (group) (firn_group_members{})", "{{group}}"),)),
        Panel("Groups", "short", (("sum by (protocol, state) (firn_groups{})", "{{protocol}} {{state}}"),)),
        Panel("Rebalances", "ops", ((_rate("firn_group_rebalances_total", "protocol"), "{{protocol}}"),)),
        Panel("Offsets committed", "ops", ((_rate("firn_group_offset_commits_total"), "{{instance}}"),)),
        Panel("Commits, p99", "s", ((_p99("firn_group_write_seconds"), "{{instance}}"),)),
        Panel(
            "Without a lag of their own",
            "short",
            (("sum by (what) (firn_group_lag_left_out{})", "{{what}}"),),
            "Beyond firn.metrics.groups.max, or ends that are not known.",
        ),
    ),
    "Transactions": (
        Panel(
            "Open",
            "short",
            (
                ("sum(firn_transaction_open{})", "open"),
                ("sum(firn_partitions_with_late_transactions{})", "partitions with one that is late"),
            ),
        ),
        Panel("Oldest", "s", (("firn_transaction_oldest_seconds{}", "{{instance}}"),)),
        Panel(
            "Ended",
            "ops",
            (
                (_rate("firn_transaction_ends_total"), "{{instance}}"),
                (_rate("firn_transaction_timeouts_total"), "{{instance}} for their timeout"),
            ),
        ),
        Panel(
            "From decision to completion, p99", "s", ((_p99("firn_transaction_end_seconds"), "{{instance}}"),)
        ),
        Panel(
            "Markers",
            "short",
            (
                ("firn_transaction_markers_waiting{}", "{{instance}} wait"),
                ("firn_transaction_markers_without_leader{}", "{{instance}} without a leader"),
            ),
        ),
        Panel(
            "Questions to other coordinators that failed",
            "ops",
            ((_rate("firn_transaction_verification_failures_total"), "{{instance}}"),),
        ),
    ),
    "Latency and the loop": (
        Panel(
            "Requests, p99",
            "s",
            ((_p99("firn_request_seconds", "api"), "{{instance}} {{api}}"),),
            "Up to the response; a Fetch may wait for records.",
        ),
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
            (
                (
                    f"sum by (client, call, error) (rate(firn_store_errors_total{{{ANSWERS}}}[{RATE}]))",
                    "{{client}} {{call}} {{error}}",
                ),
            ),
            "Without those that are answers: ObjectNotFound and PreconditionFailed.",
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
    chosen = expression.replace("{}", f"{{{NODES}}}").replace("{error", f"{{{NODES}, error")
    return chosen.replace('{state="', f'{{{NODES}, state="')


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
