"""Lines of `firn` in documents, judged by the command's own parsers and tables of keys."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise

from service.base.errors import ConfigError
from service.cli.main import build_parser
from service.config.keys import ConfigKey
from service.config.overrides import split
from service.config.parsing import parse_value
from service.config.tables import BROKER_KEYS, TOPIC_KEYS
from tests.support.doc_shell import SUBSTITUTED

_LEFT_OUT = re.compile(r"…|\$")
_A_NAME = re.compile(r"[A-Z][A-Z0-9_.-]*[:,]?|T(\[.*\])?|URL")


def is_partial(word: str) -> bool:
    """Return whether a reader has to put something into a word, or a shell has."""
    return _LEFT_OUT.search(word) is not None or word == SUBSTITUTED


def check_firn(words: Sequence[str], *, whole: bool) -> str | None:
    """Return what is wrong with the words behind `firn`, or None.

    `whole`: a command as it is typed, which its parser has to take; otherwise a part, whose actions and
    options have to exist.
    """
    if any(map(is_partial, words)):
        whole = False
    return _walk(words, whole) or (_parse(words) if whole else None) or _check_keys(words)


@cache
def _parser() -> argparse.ArgumentParser:
    parser = build_parser()
    for one in _all(parser):
        one.allow_abbrev = False
    return parser


def _actions(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _all(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for one in _actions(parser).values():
        yield from _all(one)


def _walk(words: Sequence[str], whole: bool) -> str | None:
    """Return the first action or option that does not exist."""
    chain, rest = [_parser()], iter(words)
    for word in rest:
        if word == "--":
            return None
        if word.startswith("-") and not re.fullmatch(r"-|-\d.*", word):
            action = _option(chain, word)
            if action is None:
                return f"'{_path(chain)}' has no option {word.partition('=')[0]}"
            if "=" not in word and action.nargs != 0:
                next(rest, None)
            continue
        known = _actions(chain[-1])
        if not known or is_partial(word) or (not whole and _A_NAME.fullmatch(word)):
            continue
        if word not in known:
            return f"'{_path(chain)}' has no action {word!r}"
        chain.append(known[word])
    return None


def _path(chain: Sequence[argparse.ArgumentParser]) -> str:
    return chain[-1].prog


def _option(chain: Sequence[argparse.ArgumentParser], word: str) -> argparse.Action | None:
    name = word.partition("=")[0]
    for parser in reversed(chain):
        found = parser._option_string_actions.get(name)
        if found is None and not name.startswith("--"):
            found = parser._option_string_actions.get(name[:2])
        if found is not None:
            return found
    return None


def _parse(words: Sequence[str]) -> str | None:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            _parser().parse_args(list(words))
    except SystemExit as e:
        if e.code:
            return said.getvalue().strip().rpartition("\n")[2]
    return None


# -- keys of configuration

_LIBRDKAFKAS = ("produce", "consume")
"""Commands whose `--set` is librdkafka's."""


def _check_keys(words: Sequence[str]) -> str | None:
    """Return the first setting of a node or a topic that does not exist, or has not such a value."""
    if not words or words[0] in _LIBRDKAFKAS:
        return None
    problems = []
    for option, word in pairwise(words):
        if option in ("--set", "--override"):
            problems.append(_check_setting(word, BROKER_KEYS))
        elif option == "--config" and words[0] == "topic":
            problems.append(_check_setting(word, TOPIC_KEYS))
    if tuple(words[:2]) == ("config", "set"):
        owner = next((table for option, table in _OWNERS.items() if option in words), None)
        settings = [word for word in words[2:] if re.match(r"[a-z][a-z0-9._-]*=", word)]
        problems += [_check_setting(word, owner) for word in settings if owner is not None]
    return next((one for one in problems if one is not None), None)


_OWNERS = {"--topic": TOPIC_KEYS, "--broker": BROKER_KEYS, "--broker-defaults": BROKER_KEYS}


def _check_setting(word: str, table: Mapping[str, ConfigKey]) -> str | None:
    name, is_setting, text = word.partition("=")
    if not is_setting or is_partial(name) or name.lower() == "key":
        return None
    try:
        row = table.get(name) or split(name).key
        if not is_partial(text):
            parse_value(row, text)
    except ConfigError as e:
        return f"{name}: {e}"
    return None
