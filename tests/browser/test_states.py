"""Pages of a console without data, and while the broker or the store is down."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import NodeFactory
from tests.support.browser import window
from tests.support.clients import Confluent
from tests.support.console import console_node, console_of, fill, readings
from tests.support.processes import free_port, wait_until
from tests.support.stores import moto_server, new_bucket

PAGES = (
    "/",
    "/cluster",
    "/topics",
    "/records",
    "/groups",
    "/group?id=x",
    "/bucket",
    "/cold",
    "/configuration",
)


def test_a_cluster_without_topics_says_how_to_make_one(
    browser: Any, start_node: NodeFactory, tmp_path: Path
) -> None:
    node = start_node(**{"firn.http.listener": f"127.0.0.1:{free_port()}"})
    with console_of(node.bootstrap, tmp_path) as url, window(browser, url) as looking:
        for path in ("/", "/topics", "/records"):
            assert "No topics yet" in looking.text(path)
        assert "No groups yet" in looking.text("/groups")
        assert "No bucket" in looking.text("/bucket")
        looking.open("/cold")
        looking.until_it_says("No cold tier")


@pytest.mark.parametrize("path", PAGES)
def test_a_broker_that_is_down_is_named(browser: Any, tmp_path: Path, path: str) -> None:
    bootstrap = f"127.0.0.1:{free_port()}"
    with console_of(bootstrap, tmp_path) as url, window(browser, url) as looking:
        words = looking.text(path)
        assert "refused" in words.lower()
        assert bootstrap in looking.page.inner_text("footer")
        assert looking.page.locator(".failed").count() == 1


def test_a_broker_that_comes_back_is_shown_again(browser: Any, tmp_path: Path) -> None:
    node = console_node(tmp_path / "node", None)
    try:
        node.start()
        with (
            console_of(node.bootstrap, tmp_path) as url,
            window(browser, url) as looking,
            window(browser, url) as beside,
        ):
            page = looking.open("/")
            looking.until_it_says("ready")
            node.stop()
            looking.until_it_says("does not answer")
            # A page without a part that renews itself, too.
            assert "cannot be read" in beside.text("/configuration")
            node.start()
            wait_until("it is back", lambda: "does not answer" not in page.inner_text("main"))
            beside.until_it_says("log.dirs")
    finally:
        node.close()


def test_a_store_that_is_down_is_named_and_lines_are_drawn_by_offsets(browser: Any, tmp_path: Path) -> None:
    with contextlib.ExitStack() as moto:
        store = new_bucket(moto.enter_context(moto_server(tmp_path)), f"states-{os.getpid()}")
        node = console_node(tmp_path / "node", store)
        try:
            node.start()
            fill(node, partitions=1, count=6_000)
            moto.close()
            # What has to go to the bucket now cannot.
            Confluent().produce(node.bootstrap, "readings", readings(3_000, 1, int(time.time() * 1000), 1000))
            with (
                console_of(node.bootstrap, tmp_path, "--survey-every", "2", env=store.env) as url,
                window(browser, url) as looking,
            ):
                page = looking.open("/topic?name=readings")
                assert "The bucket cannot be read" in page.inner_text("main")
                assert page.locator(".strata .piece").count() >= 2
                looking.open("/bucket")
                looking.until_it_says("The bucket cannot be read")
                looking.open("/")
                looking.until_it_says("the store does not answer")
        finally:
            node.close()
