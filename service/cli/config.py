"""`firn config`: explains a node's configuration file, shows and changes settings while nodes run."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from typing import TYPE_CHECKING

from service.cli.arguments import add_json_option
from service.cli.columns import aligned
from service.cli.config_entries import add_entries
from service.cli.server import add_set_option, given_config

if TYPE_CHECKING:
    from service.config.explaining import ConfigExplanation


_WIDEST = 40
_INDENT = "    "


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
        " its effect; with firn.processes what each process has of its own. Settings of the environment"
        " (FIRN_…) count as they do for a node. Starts nothing.",
    )
    explain.add_argument(
        "config", nargs="?", metavar="CONFIG.properties", help="settings, in Java's .properties syntax"
    )
    add_set_option(explain)
    add_json_option(explain)
    explain.set_defaults(run=_explain)
    add_entries(actions)


def _explain(args: argparse.Namespace) -> int:
    from service.base.control_groups import usable_cores
    from service.config.explaining import explain

    found = explain(given_config(args), usable_cores())
    if args.json:
        document = {
            "would_start": not found.problems,
            "keys": [one._asdict() for one in found.keys],
            "problems": list(map(str, found.problems)),
            "warnings": found.warnings,
            "processes": [one._asdict() for one in found.processes],
        }
        print(json.dumps(document, indent=2))
    else:
        _print(found)
    return 1 if found.problems else 0


def _print(found: ConfigExplanation) -> None:
    import shutil
    import textwrap

    from service.base.printable import escaped
    from service.config.explaining import KeyOutcome

    width = max(60, min(110, shutil.get_terminal_size().columns))
    rows = [
        (one.key, _short("(hidden)" if one.value is None else one.value), one.outcome, _short(one.default))
        for one in found.keys
    ]
    head, *lines = aligned([("key", "value", "here", "default"), *rows])
    print(head)
    for line, one in zip(lines, found.keys, strict=True):
        effect = textwrap.wrap(escaped(one.effect), width, initial_indent=_INDENT, subsequent_indent=_INDENT)
        print(line, *effect, sep="\n")
    together = [str(one) for one in found.problems if one.key is None]
    for title, texts in (("problems", together), ("warnings", found.warnings)):
        if texts:
            print(f"\n{title}:", *texts, sep="\n")
    _print_processes(found)
    counts = Counter(one.outcome for one in found.keys)
    print(f"\n{len(found.keys)} keys:", ", ".join(f"{counts[one]} {one}" for one in KeyOutcome))


def _print_processes(found: ConfigExplanation) -> None:
    """Print what each of several processes has, a line for each setting that is not the file's."""
    from service.base.printable import escaped

    for one in found.processes:
        print(
            f"\nprocess {one.number} of {len(found.processes)}: node {one.node_id}, {' and '.join(one.roles)}"
        )
        rows = ((key, "(left out)" if value is None else value) for key, value in one.settings.items())
        print(
            *(f"{_INDENT}{key}={escaped(value)}" for key, value in rows),
            sep="\n",
            end="\n" * bool(one.settings),
        )


def _short(text: str | None) -> str:
    text = text or "-"
    return text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"
