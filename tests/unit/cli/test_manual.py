"""Every command explains itself: what it does, each option, examples that it would take, exit codes."""

from __future__ import annotations

import argparse
import shlex

import pytest

from service.cli.main import build_parser
from service.cli.manual import PAGES, WIDTH, commands

ALL = {one.prog: one for one in commands(build_parser())}


def test_every_command_has_its_page_and_every_page_its_command() -> None:
    assert set(PAGES) == set(ALL)


@pytest.mark.parametrize("name", ALL)
def test_a_command_says_what_it_is_and_what_each_of_its_options_does(name: str) -> None:
    parser = ALL[name]
    text = parser.format_help()
    assert "examples:" in text
    assert "exit codes:" in text
    assert parser.description or name.startswith("firn topic")
    for action in parser._actions:
        explains_itself = isinstance(action, argparse._SubParsersAction) or action.metavar in ("TOPIC",)
        assert action.help or explains_itself, action.dest


EXAMPLES = [
    (name, command)
    for name, page in PAGES.items()
    for command, _ in page.examples
    if command.startswith("firn ")
]


@pytest.mark.parametrize(("name", "command"), EXAMPLES, ids=[command for _, command in EXAMPLES])
def test_examples_are_commands_that_are_taken(name: str, command: str) -> None:
    words = shlex.split(command.partition("|")[0].partition(">")[0])
    args = build_parser().parse_args(words[1:])
    assert name == "firn" or " ".join(words).startswith(name)
    assert callable(args.run)


def test_pages_fit_a_terminal_but_for_commands_that_do_not() -> None:
    assert any(parser.epilog for parser in ALL.values())
    for parser in ALL.values():
        for line in (parser.epilog or "").splitlines():
            assert len(line) <= WIDTH or line.startswith("  firn") or "aws iam" in line, line
