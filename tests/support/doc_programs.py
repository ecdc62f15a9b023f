"""Programs that commands of documents call: which of them exist, and what can be said of their options."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.doc_firn import check_firn, is_partial
from tests.support.processes import REPOSITORY

KAFKA_TOOLS = REPOSITORY / "tests" / "golden" / "docs" / "kafka-tools.json"
"""Options of Apache Kafka 4.3.1's tools; `make docs-commands` compares it with the tools."""
OTHERS = {
    "aws", "cat", "cd", "chmod", "chown", "cp", "curl", "docker", "echo", "eval", "export", "git", "grep",
    "head", "helm", "jq", "kcat", "kubectl", "ls", "mkdir", "mv", "openssl", "pip", "podman", "printf", "rm",
    "seq", "sleep", "source", "spark-submit", "sudo", "systemctl", "tail", "tar", "tee", "terraform", "tr",
    "truncate", "wait", "kill", "unset", "promtool", "mkdocs", "journalctl", "sed", "touch", "apt-get",
    "cut", "pgrep", "sort", "uniq",
}  # fmt: skip
"""Programs and builtins of others, whose options are theirs to know."""
_WRAPPERS = {"sudo", "docker", "kubectl", "podman", "nohup", "env", "exec", "xargs", "watch", "timeout"}
_RUNS_OURS = re.compile(r"(.*/)?bin/firn|firn")
_VIRTUAL = re.compile(r"[\w.-]+/bin/")
"""Programs of a virtual environment that a page has made."""
_PYTHONS = re.compile(r"(.*/)?python(3(\.\d+)?)?")
_KAFKA = re.compile(r"(.*/)?((kafka|connect)-[a-z-]+?)(\.sh)?")
_ROOTS = (REPOSITORY, REPOSITORY / "infra" / "boot", REPOSITORY / "infra" / "roll")
_OTHERS_MODULES = {"grpc_tools", "http", "json", "pip", "venv", "zipfile", "mkdocs"}


def check(words: Sequence[str], *, whole: bool = True) -> str | None:
    """Return what is wrong with a command, or None. `whole`: it is meant to be typed as it is."""
    program, rest = words[0], tuple(words[1:])
    if program in _WRAPPERS:
        return _wrapped(rest, whole=whole)
    if _RUNS_OURS.fullmatch(program):
        return check_firn(rest, whole=whole)
    if program == "make":
        return _make(rest)
    if Path(program).name == "pip":
        return _pip(rest)
    if _PYTHONS.fullmatch(program):
        return _python(rest)
    if program == "pytest":
        return _paths(rest)
    if (tool := _KAFKA.fullmatch(program)) is not None:
        return _kafka(tool[2], rest)
    if "/" in program and not program.startswith(("/", "~")) and not _VIRTUAL.match(program):
        return _script(program, rest)
    if Path(program).name in OTHERS or is_partial(program):
        return None
    return f"what is {program!r}? (tests/support/doc_programs.py has the programs of others)"


def _wrapped(rest: Sequence[str], *, whole: bool) -> str | None:
    """Return what is wrong with the command that a program is to run, where that is one of ours."""
    for index, word in enumerate(rest):
        if _RUNS_OURS.fullmatch(word) and index + 1 < len(rest):
            if rest[index - 1] in ("-u", "-U", "-t", "-n", "-f", "-g", "--user", "--name", "--namespace"):
                continue  # an account, an image, a name
            return check_firn(tuple(rest[index + 1 :]), whole=whole)
    return None


# -- make


@cache
def _makefile() -> str:
    return (REPOSITORY / "Makefile").read_text("utf-8")


def targets() -> set[str]:
    """Return the recipes of the Makefile."""
    return set(re.findall(r"^([a-z][a-z-]*):(?!=)", _makefile(), re.MULTILINE))


def _make(words: Sequence[str]) -> str | None:
    for word in words:
        name, is_variable, _ = word.partition("=")
        if is_variable:
            if not re.search(rf"\$\({name}\b|^{name}\s*\?=", _makefile(), re.MULTILINE):
                return f"make has no variable {name}"
        elif is_partial(word):
            if not any(one.startswith(word.partition("…")[0]) for one in targets()):
                return f"make has nothing like {word}"
        elif word not in targets():
            return f"make has no recipe {word}"
    return None


# -- Python and scripts of the repository


def _python(words: Sequence[str]) -> str | None:
    if "-m" not in words[:3]:
        return None
    module, *rest = words[words.index("-m") + 1 :]
    if is_partial(module):
        return None
    if module == "pytest":
        return _paths(rest)
    if module.partition(".")[0] in _OTHERS_MODULES:
        return None
    for root in _ROOTS:
        place = root.joinpath(*module.split("."))
        if place.with_suffix(".py").is_file():
            return _options(module, rest, place.with_suffix(".py").read_text("utf-8"))
        if (place / "__main__.py").is_file():
            text = "".join(path.read_text("utf-8") for path in sorted(place.glob("*.py")))
            return _options(module, rest, text)
    return f"there is no program {module}"


def _script(program: str, words: Sequence[str]) -> str | None:
    path = REPOSITORY / program
    if not path.is_file():
        return f"there is no {program}"
    beside = [path, *sorted(path.parent.glob("*.py"))]
    return _options(program, words, "".join(one.read_text("utf-8", errors="replace") for one in beside))


def _options(program: str, words: Sequence[str], text: str) -> str | None:
    """Return the first option whose name does not stand in the text of a program."""
    for word in words:
        name = word.partition("=")[0]
        if name.startswith("--") and len(name) > 2 and name not in text:
            return f"{program} has no option {name}"
    return None


def _paths(words: Sequence[str]) -> str | None:
    for word in words:
        stands_for_some = is_partial(word) or re.search(r"[A-Z]", word)
        path = REPOSITORY / word.partition("::")[0]
        if word.startswith("tests/") and not stands_for_some and not path.exists():
            return f"there is no {word}"
    return None


def _pip(words: Sequence[str]) -> str | None:
    on_index = next((word for word in words if re.match(r"firn[_-]log\b(?!.*\.whl)", word)), None)
    return None if on_index is None else "Firn is on no index: `make wheel` makes a file to install"


# -- Kafka's tools


@cache
def kafka_tools() -> dict[str, dict[str, Any]]:
    """Return options and actions of each of Kafka's tools."""
    found: dict[str, dict[str, Any]] = json.loads(KAFKA_TOOLS.read_text("utf-8"))
    return found


def _kafka(tool: str, words: Sequence[str]) -> str | None:
    known = kafka_tools().get(tool)
    if known is None:
        return f"Apache Kafka 4.3.1 has no {tool}"
    actions = set(known["actions"])
    for word in words:
        name = word.partition("=")[0]
        if name.startswith("-") and not re.fullmatch(r"-\d+|-", name):
            if name not in known["options"]:
                return f"{tool} has no option {name}"
        elif actions and words.index(word) == 0 and word not in actions and not is_partial(word):
            return f"{tool} has no action {word}"
    return None
