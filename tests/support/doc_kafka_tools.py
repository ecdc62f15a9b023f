"""Options and actions of Apache Kafka's tools, as they tell them: ``python -m tests.support.doc_kafka_tools``
writes the file that documents are compared with."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.support.doc_programs import KAFKA_TOOLS
from tests.support.kafka_tools import run_tool

SCRIPTS = {
    "kafka-acls": "acls",
    "kafka-broker-api-versions": "broker-api-versions",
    "kafka-client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-configs": "configs",
    "kafka-console-consumer": "console-consumer",
    "kafka-console-producer": "console-producer",
    "kafka-consumer-groups": "consumer-groups",
    "kafka-consumer-perf-test": "consumer-perf",
    "kafka-delegation-tokens": "delegation-tokens",
    "kafka-delete-records": "delete-records",
    "kafka-dump-log": "dump-log",
    "kafka-features": "features",
    "kafka-get-offsets": "get-offsets",
    "kafka-groups": "groups",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "log-dirs",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-producer-perf-test": "producer-perf",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-server-start": "server",
    "kafka-storage": "storage",
    "kafka-topics": "topics",
    "kafka-transactions": "transactions",
}
"""Of each script of Kafka's bin/ the name or class that `run_tool` knows."""
WITHOUT_HELP = {
    "connect-distributed": (),
    "connect-mirror-maker": ("--clusters",),
    "connect-standalone": (),
    "kafka-server-stop": ("--process-role", "--node-id"),
}
_OPTION = re.compile(r"(?<![\w-])(--?[a-z][\w.-]*)")
_LISTED = re.compile(r"^    ([a-z][A-Za-z-]+)(?: {2,}|$)", re.MULTILINE)
_ACTIONS = re.compile(r"\{([a-z][\w-]*(?:,[a-z][\w-]*)*)\}")


def told() -> dict[str, Any]:
    """Ask every tool; return options and actions by script."""
    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(SCRIPTS, pool.map(_ask, SCRIPTS.values()), strict=True))
    found |= {name: {"actions": [], "options": sorted(options)} for name, options in WITHOUT_HELP.items()}
    return dict(sorted(found.items()))


def _ask(tool: str) -> dict[str, Any]:
    text = _help(tool)
    actions = sorted(_actions(text))
    texts = [text, *(_help(tool, action) for action in actions)]
    names = {name.rstrip(".") for one in texts for name in _OPTION.findall(one)}
    return {"actions": actions, "options": sorted(name for name in names if not name.endswith("-"))}


def _actions(text: str) -> set[str]:
    """Return the actions of a tool by its help, in either form that argparse4j writes."""
    if "\ncommands:" in text:
        return set(_LISTED.findall(text.partition("\ncommands:")[2]))
    if "positional arguments" in text:
        return {one for found in _ACTIONS.findall(text) for one in found.split(",")}
    return set()


def _help(tool: str, *action: str) -> str:
    done = run_tool(tool, *action, "--help")
    return (done.stdout + done.stderr).decode()


if __name__ == "__main__":
    KAFKA_TOOLS.parent.mkdir(parents=True, exist_ok=True)
    KAFKA_TOOLS.write_text(json.dumps(told(), indent=1) + "\n")
