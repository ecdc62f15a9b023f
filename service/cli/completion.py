"""`firn completion`: the script by which a shell completes `firn`'s words; it calls `firn complete`.

The words come from the commands' own parsers, so none is missing or stale.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import Final

SCRIPTS: Final = MappingProxyType(
    {
        "bash": """\
_firn() {
  local IFS=$'\\n'
  COMPREPLY=($("${COMP_WORDS[0]}" complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
  if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]]; then compopt -o nospace; fi
}
complete -o default -F _firn firn
""",
        "zsh": """\
#compdef firn
_firn() {
  local -a found
  found=(${(f)"$("${words[1]}" complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)"})
  if (( ${#found} )); then compadd -Q -- ${found}; else _files; fi
}
if [[ ${funcstack[1]} == _firn ]]; then _firn "$@"; else compdef _firn firn; fi
""",
        "fish": """\
function __firn_words
  set -l words (commandline -opc) (commandline -ct)
  $words[1] complete -- $words[2..-1] 2>/dev/null
end
complete -c firn -a '(__firn_words)'
""",
    }
)
_KEYS: Final = MappingProxyType(
    {
        "--set": ("BROKER_KEYS", "="),
        "--config": ("TOPIC_KEYS", "="),
        "--delete-config": ("TOPIC_KEYS", ""),
        "--append": ("TOPIC_KEYS", "="),
        "--subtract": ("TOPIC_KEYS", "="),
    }
)
"""Options whose value begins with a configuration key, the table of the keys, and what follows a key."""
_POSITIONAL_KEYS: Final = MappingProxyType({"KEY=VALUE": "=", "KEY": ""})
"""Placeholders of arguments that begin with a key of a topic or a broker, and what follows it."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "completion",
        help="print the completion script of a shell",
        description="Print the script that a shell must read for the Tab key to complete commands, options,"
        " their values and configuration keys.",
    )
    parser.add_argument("shell", choices=tuple(SCRIPTS), help="whose")
    parser.set_defaults(run=run)
    complete_parser = subparsers.add_parser("complete")
    complete_parser.add_argument("words", nargs="*")
    complete_parser.set_defaults(run=complete)


def run(args: argparse.Namespace) -> int:
    print(SCRIPTS[args.shell], end="")
    return 0


def complete(args: argparse.Namespace) -> int:
    """Print the candidates for the last word of `firn complete -- WORD…`, one a line."""
    from service.cli.main import build_parser

    for word in candidates(build_parser(), args.words or [""]):
        print(word)
    return 0


def candidates(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """Return the candidates for the last, incomplete word of `words`; none for files and free text."""
    waiting: argparse.Action | None = None
    for word in words[:-1]:
        if waiting is not None:
            waiting = None
        elif word.startswith("-"):
            option = parser._option_string_actions.get(word)
            waiting = option if option is not None and option.nargs != 0 else None
        elif (subparsers := _subparsers(parser)) is not None and word in subparsers.choices:
            parser = subparsers.choices[word]
    begun = words[-1]
    return [word for word in _possible(parser, waiting, begun) if word.startswith(begun)]


def _possible(parser: argparse.ArgumentParser, waiting: argparse.Action | None, begun: str) -> Iterable[str]:
    if waiting is not None:
        if waiting.choices is not None:
            return map(str, waiting.choices)
        return _keys_of(waiting)
    if begun.startswith("-"):
        return sorted(name for name in parser._option_string_actions if name.startswith("--"))
    if (subparsers := _subparsers(parser)) is not None:
        return [choice.dest for choice in subparsers._choices_actions]
    positional = [one for one in parser._actions if not one.option_strings]
    keys = [key for one in positional for key in _positional_keys(one)]
    return keys + [str(choice) for one in positional for choice in one.choices or ()]


def _positional_keys(argument: argparse.Action) -> Iterable[str]:
    end = _POSITIONAL_KEYS.get(str(argument.metavar))
    if end is None:
        return ()
    from service.config import tables

    return [f"{key}{end}" for key in sorted({*tables.TOPIC_KEYS, *tables.BROKER_KEYS})]


def _keys_of(option: argparse.Action) -> Iterable[str]:
    for name, (table, end) in _KEYS.items():
        if name in option.option_strings:
            from service.config import tables

            return [f"{key}{end}" for key in getattr(tables, table)]
    return ()


def _subparsers(
    parser: argparse.ArgumentParser,
) -> argparse._SubParsersAction[argparse.ArgumentParser] | None:
    return next((one for one in parser._actions if isinstance(one, argparse._SubParsersAction)), None)
