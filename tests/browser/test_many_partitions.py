"""Ten thousand partitions: a page of them is as quick as any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.conftest import NodeFactory
from tests.support.browser import window
from tests.support.clients import Admin
from tests.support.console import console_of
from tests.support.processes import free_port

MANY, OTHERS, EACH = 5_000, 5, 1_000
MOST_MS = 300
PAGES = (
    "/", "/cluster", "/topics", "/topic?name=many", "/topic?name=many&partition=4999",
    "/topic?name=many&page=250",
)  # fmt: skip


def test_ten_thousand_partitions_come_a_page_at_a_time(
    browser: Any, start_node: NodeFactory, tmp_path: Path
) -> None:
    """What a page asks and shows does not grow with the topic; how long it takes is printed."""
    node = start_node(**{"firn.http.listener": f"127.0.0.1:{free_port()}"})
    admin = Admin(node.bootstrap)
    admin.create("many", MANY)
    for number in range(OTHERS):
        admin.create(f"other-{number}", EACH)
    with console_of(node.bootstrap, tmp_path) as url, window(browser, url) as looking:
        for path in PAGES:
            took = []
            for _ in range(5):
                page = looking.open(path)
                took.append(page.evaluate("performance.getEntriesByType('navigation')[0].domComplete"))
            print(f"{path}: {min(took):.0f} ms at best, {max(took):.0f} ms at worst")
            assert page.locator("main table tbody tr").count() <= 50
            assert len(page.content()) < 100_000
            assert min(took) < MOST_MS
        assert str(MANY - 1) in looking.text(PAGES[-1])
        assert "No partitions here" in looking.text("/topic?name=many&page=100000")
        assert "10,000" in looking.text("/")
        # The list of all comes in pieces of 2,000 partitions: a topic in several of them is one row.
        assert ["many", "5,000"] in [line.split("\t")[:2] for line in looking.text("/topics").splitlines()]
