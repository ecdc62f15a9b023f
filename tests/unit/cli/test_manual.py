"""Every command explains itself: what it does, each option, examples that it would take, exit codes."""

from __future__ import annotations

import argparse
import shlex

import pytest

from service.cli.main import build_parser, main
from service.cli.manual import PAGES, WIDTH, commands

PARSER = build_parser()
ALL = {one.prog: one for one in commands(PARSER)}


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


WITHOUT_JSON = {
    "firn server": "runs a node until it is ended",
    "firn dev": "runs nodes until it is ended",
    "firn console": "serves pages until it is ended",
    "firn format": "says what kafka-storage says; firn dump --json shows what it wrote",
    "firn random-uuid": "prints an id and nothing else",
    "firn produce": "prints nothing",
    "firn consume": "prints records: --format json",
    "firn bucket policy": "prints a policy, which is JSON",
    "firn pipeline archive": "prints nothing on stdout",
    "firn pipeline replay": "prints nothing on stdout",
    "firn completion": "prints a script",
}


def test_help_and_version_are_words_too(capsys: pytest.CaptureFixture[str]) -> None:
    for words, beginning in (
        (["help"], "usage: firn [-h]"),
        (["help", "topic", "delete"], "usage: firn topic delete [-h]"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
        assert capsys.readouterr().out.startswith(beginning)
    assert main(["version"]) == 0
    assert capsys.readouterr().out.startswith("firn 0.")


def test_every_command_has_json_or_a_reason_why_not() -> None:
    below = {name.rpartition(" ")[0] for name in ALL}
    options = {name: one._option_string_actions for name, one in ALL.items() if name not in below}
    assert {name for name, known in options.items() if "--json" not in known} == set(WITHOUT_JSON)


EXAMPLES = [
    (name, command)
    for name, page in PAGES.items()
    for command, _ in page.examples
    if command.startswith("firn ")
]


@pytest.mark.parametrize(("name", "command"), EXAMPLES, ids=[command for _, command in EXAMPLES])
def test_examples_are_commands_that_are_taken(name: str, command: str) -> None:
    words = shlex.split(command.partition("|")[0].partition(">")[0])
    args = PARSER.parse_args(words[1:])
    assert name == "firn" or " ".join(words).startswith(name)
    assert callable(args.run)


def test_pages_fit_a_terminal_but_for_commands_that_do_not() -> None:
    assert any(parser.epilog for parser in ALL.values())
    for parser in ALL.values():
        for line in (parser.epilog or "").splitlines():
            assert len(line) <= WIDTH or line.startswith("  firn") or "aws iam" in line, line
