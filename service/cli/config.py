"""`firn config`: explains a node's configuration file, shows and changes settings while nodes run."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from service.cli.columns import aligned
from service.cli.config_entries import add_entries
from service.cli.server import add_set_option, given_properties

if TYPE_CHECKING:
    from service.config.explaining import ExplainedKey


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "config",
        help="explain, show and change settings",
        description="Explain the settings of a node's file, and show and change those of topics, brokers,"
        " groups and loggers while they run (docs/configuration.md).",
    )
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    explain = actions.add_parser(
        "explain",
        help="explain a configuration file",
        description="Explain a node's configuration file: what becomes of each of its keys here, its default,"
        " its effect. Starts nothing.",
    )
    explain.add_argument("config", metavar="CONFIG.properties", help="settings, in Java's .properties syntax")
    add_set_option(explain)
    explain.add_argument("--json", action="store_true", help="print one JSON document")
    explain.set_defaults(run=_explain)
    add_entries(actions)


def _explain(args: argparse.Namespace) -> int:
    from service.config.explaining import KeyOutcome, explain

    found = explain(given_properties(args))
    if args.json:
        print(json.dumps({"keys": [one._asdict() for one in found]}, indent=2))
    else:
        _print(found)
    return 1 if any(one.outcome is KeyOutcome.REFUSED for one in found) else 0


def _print(found: list[ExplainedKey]) -> None:
    rows = [(one.key, one.outcome.value, one.value or "-", one.default or "-", one.effect) for one in found]
    print("\n".join(aligned([("key", "here", "value", "default", "effect"), *rows])))
