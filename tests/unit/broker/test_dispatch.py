"""Every API that the wire knows is answered, by one handler each, and by ports of the controller alone."""

from __future__ import annotations

import ast
from pathlib import Path

from service.broker import handlers
from service.broker.tables import BROKER_APIS, CONTROLLER_KEYS, Served, controller_apis
from service.wire.api import APIS, ApiKey

FOLDER = Path(handlers.__file__).parent


def test_each_api_has_one_row_on_the_wire_and_one_in_the_broker() -> None:
    assert set(BROKER_APIS) == set(APIS)
    assert len({(row.handle, row.late) for row in BROKER_APIS.values()}) == len(APIS)


def test_no_handler_knows_the_controller_itself() -> None:
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.module != "service.metadata.controller.controller", path
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) != ("broker", "controller"), path
