"""House rules of every module: purity, size, docstrings, doors to the world; docs name files that exist.

``python -m tests.test_tidy`` prints the file map.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.source import nodes_of, parsed, statements, statements_in

ROOT = Path(__file__).resolve().parents[1]
SERVICE = ROOT / "service"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
ROOMS = {path.parent.name for path in SERVICE.glob("*/__init__.py")}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(SERVICE.rglob("*.py"))
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITIONS = (*FUNCTIONS, ast.ClassDef, ast.Module)


@cache
def trees() -> dict[str, ast.Module]:
    """Every module read: by the worker that runs these tests, not by each that collects them."""
    return {name: parsed(path) for name, path in MODULES.items()}


def docstring(name: str) -> str:
    return ast.get_docstring(trees()[name]) or ""


def first_line(name: str) -> str:
    return docstring(name).partition("\n")[0]


def imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(module, name) of each import that runs; the name is "" where a module is imported as a whole."""
    for node in statements_in(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ((node.module, alias.name) for alias in node.names)
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield from imports(node)


# -- pure modules

IMPURE = {
    "asyncio", "boto3", "botocore", "concurrent", "fcntl", "glob", "http", "logging", "mmap",
    "multiprocessing", "obstore", "os", "queue", "random", "resource", "secrets", "select", "selectors",
    "shutil", "signal", "socket", "ssl", "subprocess", "sys", "tempfile", "threading", "time", "urllib",
}  # fmt: skip
PURE_NAMES = {
    "mmap": {"MAP_ANONYMOUS", "MAP_PRIVATE", "mmap"},
    "pathlib": {"Path", "PurePath"},
    "urllib.parse": {"unquote", "urlsplit"},
    "uuid": {"UUID"},
}
"""Of modules that are partly pure, the names that are: a private mapping of no file is memory."""


@cache
def pure() -> set[str]:
    return {name for name in MODULES if first_line(name).endswith("[P]")}


def test_pure_modules_import_nothing_that_is_not() -> None:
    found = set()
    for name in pure():
        for module, what in imports(trees()[name]):
            if module.startswith("service"):
                target = f"{module}.{what}" if f"{module}.{what}" in MODULES else module
                own = MODULES[target].name == "__init__.py"
                if target not in pure() and not own:
                    found.add((name, target))
            elif module in PURE_NAMES:
                if what not in PURE_NAMES[module]:
                    found.add((name, f"{module}.{what}"))
            elif module.partition(".")[0] in IMPURE:
                found.add((name, module))
    assert not found


def test_the_mark_of_a_pure_module_ends_its_first_line() -> None:
    marked = {name for name in MODULES if "[P]" in docstring(name).partition("\n\n")[0]}
    assert marked == pure()


def test_pure_modules_ask_no_file_system() -> None:
    asking = {
        "absolute",
        "cwd",
        "exists",
        "home",
        "is_dir",
        "is_file",
        "iterdir",
        "mkdir",
        "read_bytes",
        "read_text",
    }
    found = {
        (name, node.attr)
        for name in pure()
        for node in nodes_of(MODULES[name])
        if isinstance(node, ast.Attribute) and node.attr in asking
    }
    assert not found


# -- size

MOST_LINES = 600
MOST_LINES_OF_A_FUNCTION = {
    "service": 75,
    "pyspark_firn": 75,
    "simulator": 75,
    "demo": 75,
    "bench": 75,
    "infra": 75,
    "deploy": 75,
    "tests": 60,
}


@pytest.mark.parametrize("folder", MOST_LINES_OF_A_FUNCTION)
def test_modules_and_functions_are_small(folder: str) -> None:
    found = set()
    paths = [*(ROOT / folder).rglob("*.py")]
    assert paths
    for path in paths:
        text = path.read_text("utf-8")
        if text.count("\n") > MOST_LINES:
            found.add(f"{path.relative_to(ROOT)}")
        if "import cython\n" in text:
            continue  # compiled loops, in which a call costs more than a line
        for node in statements(parsed(path)):
            if isinstance(node, FUNCTIONS):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MOST_LINES_OF_A_FUNCTION[folder]:
                    found.add(f"{path.relative_to(ROOT)}:{node.name}")
    assert not found


MOST_METHODS = 35
LARGE_CLASSES = {
    "service.replication.leader.LeaderState": 36,
}
"""Classes with more methods, and how many; none of these may grow."""


def test_classes_are_small() -> None:
    found = {}
    for name, tree in trees().items():
        for node in statements(tree):
            if isinstance(node, ast.ClassDef):
                methods = sum(isinstance(one, FUNCTIONS) for one in node.body)
                if methods > MOST_METHODS:
                    found[f"{name}.{node.name}"] = methods
    assert not {name: count for name, count in found.items() if count > LARGE_CLASSES.get(name, 0)}
    assert set(found) == set(LARGE_CLASSES), "an exception that is not needed"


# -- counters

READERS = ("service.console.", "service.node.", "service.cli.")
"""Where figures are shown: metrics, pages, health, commands."""
SHOWN_OTHERWISE = {("service.tiering.metrics", "take_over_refused"), ("service.hot.metrics", "erasure_waits")}
"""What the room itself tells, as the reason of an error, and what Erasures answers."""


def reads(tree: ast.AST) -> set[str]:
    """Names of attributes that are read, and not to be written (``x.y[z] += 1``, ``x.y.observe(1)``)."""
    written = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript):
            written.add(id(node.target.value))
        elif isinstance(node, ast.Attribute) and node.attr == "observe":
            written.add(id(node.value))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and id(node) not in written
    }


def unread(tree: ast.Module, read: set[str]) -> set[str]:
    """What the classes of a module keep, and neither they read nor is in `read`."""
    kept = set()
    for kind in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        for node in ast.walk(kind):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                kept.add(node.target.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                kept.add(node.attr)
    return kept - read - reads(tree)


def test_each_counter_is_shown() -> None:
    rooms = [name for name in trees() if re.fullmatch(r"service\.\w+\.metrics", name)]
    assert len(rooms) >= 10
    shown = set().union(*(reads(tree) for name, tree in trees().items() if name.startswith(READERS)))
    found = {(name, field) for name in rooms for field in unread(trees()[name], shown)}
    assert found == SHOWN_OTHERWISE


def test_each_sum_is_read_somewhere() -> None:
    added = {
        node.target.attr
        for path in MODULES.values()
        for node in nodes_of(path)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute)
    }
    assert len(added) > 100
    assert not added - set().union(*map(reads, trees().values()))


def test_a_counter_that_nobody_reads_is_found() -> None:
    counting = "class Metrics:\n    shown: int = 0\n    hidden: int = 0\n    times: Histogram = Histogram()\n"
    using = "m.shown += 1\nm.hidden += 1\nm.times.observe(1)\nprint(m.shown)\nm.by_name['x'] += 1\n"
    assert reads(ast.parse(using)) == {"shown", "observe"}
    assert unread(ast.parse(counting), reads(ast.parse(using))) == {"hidden", "times"}


# -- circles of imports

CIRCLES = {
    frozenset({"service.remote.stores.folder_store", "service.remote.stores.obstore_store"}),
}
"""Modules of a room that import each other, some for type annotations or in a function only."""


def all_imports(name: str) -> set[str]:
    """Modules of the same room that a module imports anywhere, also under TYPE_CHECKING."""
    room = ".".join(name.split(".")[:2]) + "."
    found = set()
    for node in nodes_of(MODULES[name]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            targets = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {target if target in MODULES else node.module for target in targets}
    return {
        module
        for module in found
        if module.startswith(room) and module in MODULES and MODULES[module].name != "__init__.py"
    }


def circles_of(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """Sets of modules of which each reaches each other one."""
    reached: dict[str, set[str]] = {}
    for start, nexts in graph.items():
        seen: set[str] = set()
        queue = [*nexts]
        while queue:
            module = queue.pop()
            if module not in seen:
                seen.add(module)
                queue += graph[module]
        reached[start] = seen
    return {
        frozenset(other for other in seen if start in reached[other])
        for start, seen in reached.items()
        if start in seen
    }


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": set()}
    assert circles_of(graph) == {frozenset({"a", "b", "c"})}


def test_modules_of_a_room_import_each_other_in_one_direction() -> None:
    found = circles_of({name: all_imports(name) for name in MODULES})
    assert not found - CIRCLES
    assert not CIRCLES - found, "an exception that is not needed"


# -- docstrings

WHOLE = re.compile(r"""[.:?!]["`)]*( \[P\])?$""")


def test_docstrings_begin_with_whole_sentences() -> None:
    """The first line of a module, the first paragraph of anything in it."""
    found = []
    for name, tree in trees().items():
        for node in statements(tree):
            if not isinstance(node, DEFINITIONS):
                continue
            text = ast.get_docstring(node)
            if text is None:
                continue
            first = text.partition("\n\n")[0]
            line = first.partition("\n")[0] if isinstance(node, ast.Module) else " ".join(first.split())
            if not WHOLE.search(line):
                found.append(f"{name}:{getattr(node, 'lineno', 1)}: {line}")
    assert not found


def test_every_module_says_what_it_is() -> None:
    assert not [name for name in MODULES if not docstring(name)]


@pytest.mark.parametrize("name", [name for name in MODULES if ">>>" in MODULES[name].read_text("utf-8")])
def test_examples_in_docstrings_are_true(name: str) -> None:
    outcome = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert outcome.failed == 0


# -- docs/architecture.md

FILE_NAMED = re.compile(r"`([a-z0-9_]+/[a-z0-9_/]*(?:\.py)?)`")
FILE_OF_AN_EXAMPLE = re.compile(r"^# ([a-z0-9_]+/[a-z0-9_/]*\.py)(?! \(new\))", re.MULTILINE)
"""the comment above a piece of code that says where it goes"""
MOST_DOC_LINES = 200
PAGES = [ARCHITECTURE, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "design").glob("*.md"))]


def file_map() -> Iterator[str]:
    """Yield the heading of each room and a line for each of its modules."""
    room = ""
    for name, path in MODULES.items():
        parts = path.relative_to(SERVICE).parts
        if len(parts) == 1:
            continue
        if parts[0] != room:
            room = parts[0]
            yield f"\n{room}/  {first_line(f'service.{room}')}"
        if parts[-1] != "__init__.py":
            yield f"  {'/'.join(parts[1:])}: {first_line(name)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_pages_of_the_design_name_are_there(page: Path) -> None:
    text = page.read_text("utf-8")
    named = {name for name in FILE_NAMED.findall(text) if "://" not in name}
    assert named
    named.update(FILE_OF_AN_EXAMPLE.findall(text))
    gone = {name for name in named if not (SERVICE / name).exists() and not (ROOT / name).exists()}
    assert not gone


def test_the_architecture_is_read_in_a_quarter_of_an_hour() -> None:
    assert ARCHITECTURE.read_text("utf-8").count("\n") <= MOST_DOC_LINES


def test_the_picture_of_the_rooms_is_the_one_that_the_build_checks() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (layers,) = (one["layers"] for one in contracts if one.get("containers") == ["service"])
    assert "```text\n" + "\n".join(layers) + "\n```" in ARCHITECTURE.read_text("utf-8")


# -- the world comes by constructor

BELOW_THE_NODE = (
    "client", "controller_client", "controller_server", "hot", "metadata", "network", "node", "partition",
    "remote", "replicas", "serving", "tiering",
)  # fmt: skip
COMPOSES_A_NODE = "service.node.process"
OF_OTHER_PROCESSES = "service.client.blocking_client"
"""Commands, the console and Spark's tasks use it: no room of a node does."""
DOORS: dict[str, set[str] | None] = {
    "concurrent.futures": {"ProcessPoolExecutor", "ThreadPoolExecutor"},
    "concurrent.futures.thread": None,
    "glob": None,
    "os": None,
    "random": None,
    "secrets": None,
    "shutil": None,
    "subprocess": None,
    "tempfile": None,
    "threading": None,
    "time": None,
    "uuid": {"uuid1", "uuid4"},
}
"""Modules, or names of them (None: all), by which the world is reached past `World`."""
CALLS = {"open", "to_thread"}
ON_PATHS = {
    "chmod", "exists", "hardlink_to", "is_dir", "is_file", "iterdir", "mkdir", "read_bytes", "read_text",
    "rmdir", "touch", "unlink", "write_bytes", "write_text",
}  # fmt: skip
"""Calls of a `Path` that go to the disk; a `Disk` has some of the same names."""


def is_a_program(tree: ast.Module) -> bool:
    """Whether it is a process of its own, which takes the world as it finds it."""
    return any(
        isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'" for node in tree.body
    )


def doors_of(tree: ast.Module) -> set[str]:
    """What a module reaches past its world, as dotted names."""
    found = set()
    for module, what in imports(tree):
        if module in DOORS:
            names = DOORS[module]
            if names is None or what in names or not what:
                found.add(module)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        callee = node.func
        if isinstance(callee, ast.Name) and callee.id in CALLS:
            found.add(callee.id)
        elif isinstance(callee, ast.Attribute):
            owner = callee.value
            last = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            if callee.attr in CALLS - {"open"} or (
                callee.attr in ON_PATHS and not last.strip("_").endswith("disk")
            ):
                found.add(callee.attr)
    return found


def test_the_world_comes_by_constructor() -> None:
    assert {*BELOW_THE_NODE} <= ROOMS
    found = {}
    for name, tree in trees().items():
        room = name.partition(".")[2].partition(".")[0]
        if name in (COMPOSES_A_NODE, OF_OTHER_PROCESSES) or is_a_program(tree):
            continue
        if room in {*BELOW_THE_NODE} - {"client"}:
            assert OF_OTHER_PROCESSES not in {module for module, _ in imports(tree)}, name
        if room in BELOW_THE_NODE or name == "service.base.files":
            found[name] = doors_of(tree)
    assert not {name: doors for name, doors in found.items() if doors}


# -- the loop's turns

WITHOUT_A_LOOP_OF_PEERS = {"cli", "config", "console", "inspect", "pipelines", "records", "spark", "wire"}
OUTSIDE_THE_QUEUES = {
    "service.base.turn_queues": "the queues themselves",
    "service.node.process": "the end of the process, when nobody is served any more",
    "service.network.server": "the end of the server",
    "service.remote.reading.computation": "calls on a thread of its own, not on the loop",
}


def shares_of_turns(tree: ast.AST) -> list[str]:
    """Calls that give what may be many a share of the loop's next turn each: `call_soon`, and `sleep(0)`."""
    found = []
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.func.attr == "call_soon" or ast.unparse(node) == "asyncio.sleep(0)":
            found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


def test_callbacks_of_many_use_a_queue_of_the_loops_turns() -> None:
    assert ROOMS >= WITHOUT_A_LOOP_OF_PEERS
    assert {*OUTSIDE_THE_QUEUES} <= {*MODULES}
    found = {}
    for name, tree in trees().items():
        room = name.partition(".")[2].partition(".")[0]
        if room not in WITHOUT_A_LOOP_OF_PEERS and (calls := shares_of_turns(tree)):
            found[name] = calls
    assert not {name: calls for name, calls in found.items() if name not in OUTSIDE_THE_QUEUES}
    assert set(found) == set(OUTSIDE_THE_QUEUES), "an exception that is not needed"


# -- facts about an API

TABLES_OF_APIS = {
    "service.controller_server.api_table": "the handlers of controllers' listeners",
    "service.metadata.raft.messages_out": "which API carries an event of the quorum's machine",
    "service.serving.api_table": "the handlers of brokers' listeners",
    "service.spark.tail.broker_connections": "the lowest versions that the tail takes of any broker",
    "service.wire.apis": "the rows",
}
TABLE_KEYS = 3


def api_keys_in(node: ast.AST) -> set[str]:
    """The API keys that a collection names: as elements, as keys or values, or first in each element."""
    if isinstance(node, ast.Dict):
        elements: list[Any] = [*node.keys, *node.values]
    elif isinstance(node, (ast.Set, ast.List, ast.Tuple)):
        elements = [*node.elts]
    else:
        return set()
    for at, one in enumerate(elements):
        inner = one.args if isinstance(one, ast.Call) else getattr(one, "elts", ())
        elements[at] = inner[0] if inner else one
    return {
        one.attr for one in elements if isinstance(one, ast.Attribute) and ast.unparse(one.value) == "ApiKey"
    }


def test_facts_of_an_api_stand_in_its_row() -> None:
    """A list of APIs elsewhere has to be kept like the rows: `Api` gets a field instead."""
    found = [
        name
        for name, path in MODULES.items()
        for node in nodes_of(path)
        if len(api_keys_in(node)) >= TABLE_KEYS
    ]
    assert sorted(found) == sorted(TABLES_OF_APIS), "once in each, and no exception that is not needed"


if __name__ == "__main__":
    print("\n".join(file_map()))
