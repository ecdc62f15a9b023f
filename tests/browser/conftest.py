"""A console with something to show, and a browser to look at it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.support.browser import chromium_of
from tests.support.console import Scene, console_node, console_of, fill
from tests.support.requirements import need_browser
from tests.support.stores import Store, moto_server, new_bucket


class Shown(NamedTuple):
    """A console, and what it shows."""

    url: str
    scene: Scene
    store: Store


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with chromium_of() as found:
        yield found


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """A node with records in both tiers, and its console."""
    need_browser()
    folder = tmp_path_factory.mktemp("shown")
    with moto_server(folder) as endpoint:
        store = new_bucket(endpoint, f"browser-{os.getpid()}")
        node = console_node(folder / "node", store)
        try:
            node.start()
            scene = fill(node)
            with console_of(node.bootstrap, folder, "--survey-every", "2", env=store.env) as url:
                yield Shown(url, scene, store)
        finally:
            node.close()
