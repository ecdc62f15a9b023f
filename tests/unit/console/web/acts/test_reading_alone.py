"""Code that changes something is apart: a console that only reads does not even load it."""

from __future__ import annotations

import ast

from tests.support.source import nodes_of
from tests.test_tidy import MODULES, imports, trees

ACTS = "service.console.web.acts"


def test_only_acts_know_a_request_that_changes_something() -> None:
    changing = {"ChangingCluster", "produce_batch", "alter_settings", "commit_offsets", "add_partitions"}
    found = {
        name
        for name, path in MODULES.items()
        if name.startswith("service.console")
        for node in nodes_of(path)
        if isinstance(node, ast.ImportFrom) and changing & {one.name for one in node.names}
    }
    assert found
    assert {name for name in found if not name.startswith(ACTS)} == set()


def test_no_module_loads_acts_but_the_server_where_they_are_allowed() -> None:
    loading = {
        name
        for name, tree in trees().items()
        if not name.startswith(ACTS)
        for module, _ in imports(tree)
        if module.startswith(ACTS)
    }
    assert loading == {"service.console.web.server"}
    at_start = ast.Module(
        [node for node in trees()["service.console.web.server"].body if not isinstance(node, ast.ClassDef)],
        [],
    )
    assert not [module for module, _ in imports(at_start) if module.startswith(ACTS)]
