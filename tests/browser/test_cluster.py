"""The page of the cluster: who is away, what is not whole, what moves; with and without a script."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.browser import Window, window
from tests.support.console import console_of
from tests.support.limping import EASY, LONE, STRICT, Limping, limping
from tests.support.replicas import wait_in_sync


@pytest.fixture(scope="module")
def shown(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Limping]]:
    """URL of a console, and the cluster that it shows."""
    folder = tmp_path_factory.mktemp("limping")
    with limping(folder) as found:
        # The first of its addresses is that of the node that has died.
        addresses = f"{found.cluster.members[found.dead].bootstrap},{found.alive}"
        with console_of(addresses, folder, "--survey-every", "0") as url:
            yield url, found


def rows(looking: Window, part: str) -> list[list[str]]:
    """Cells of a part's table."""
    found: list[list[str]] = looking.page.evaluate(
        "part => [...document.querySelectorAll(`#live-${part} tbody tr`)]"
        ".map(row => [...row.cells].map(cell => cell.innerText))",
        part,
    )
    return found


@pytest.mark.parametrize("script", [True, False])
def test_the_cluster_page_lists_offline_nodes_unhealthy_and_moving_partitions(
    browser: Any, shown: tuple[str, Limping], script: bool
) -> None:
    url, found = shown
    with window(browser, url, java_script_enabled=script) as looking:
        words = looking.text("/cluster")
        assert found.cluster.plan.cluster_id in words
        assert "1 fenced" in words
        nodes = {row[0]: row for row in rows(looking, "cluster-nodes")}
        assert set(nodes) == {"1", "2", "3"}
        for node, row in nodes.items():
            assert row[1] == "broker, controller"
            assert row[2] == f"zone-{'abc'[int(node) - 1]}"
            assert row[3] == ("fenced" if int(node) == found.dead else "ok")
            assert "CONTROLLER://" in row[4]
        dead = nodes[str(found.dead)]
        assert (dead[5], dead[6]) == ("0", "3")
        quorum = rows(looking, "quorum")
        assert [row[0] for row in quorum] == ["1", "2", "3"]
        assert [row[1] for row in quorum].count("leader") == 1
        ill = rows(looking, "ill")
        assert [row[0] for row in ill[:3]] == [f"{STRICT}-{n}" for n in range(3)]
        assert {row[1] for row in ill[:3]} == {"under min ISR"}
        assert [row[0] for row in ill[3:]] == [f"{EASY}-{n}" for n in range(6)]
        assert {row[1] for row in ill[3:]} == {"under-replicated"}
        assert all(str(found.dead) not in row[4].split(", ") for row in ill)
        (moving,) = rows(looking, "moving")
        assert (moving[0], moving[2], moving[3]) == (f"{LONE}-0", str(found.dead), "–")


@pytest.mark.parametrize("width", [360, 900, 1280])
def test_no_screen_scrolls_sideways(browser: Any, shown: tuple[str, Limping], width: int) -> None:
    with window(browser, shown[0]) as looking:
        looking.page.set_viewport_size({"width": width, "height": 740})
        page = looking.open("/cluster")
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_keys_lead_to_it_and_it_to_nodes_and_partitions(browser: Any, shown: tuple[str, Limping]) -> None:
    with window(browser, shown[0]) as looking:
        page = looking.open("/")
        page.keyboard.press("g")
        page.keyboard.press("n")
        looking.until_it_says("Unhealthy")
        page.click(f"a:has-text('{STRICT}-1')")
        looking.until_it_says(STRICT)
        assert f"name={STRICT}&partition=1" in page.url


def test_the_cluster_page_updates_itself_when_the_cluster_recovers(
    browser: Any, shown: tuple[str, Limping]
) -> None:
    """Last: the cluster does not limp any more."""
    url, found = shown
    with window(browser, url) as looking:
        looking.open("/cluster")
        looking.until_it_says("1 fenced")
        found.cluster.members[found.dead].start()
        for topic in (STRICT, EASY, LONE):
            wait_in_sync(found.cluster, topic)
        looking.until_it_says("all ok")
        looking.until_it_says("All replicas of all partitions are in sync.")
        looking.until_it_says("None is under way.")
        assert "0" in rows(looking, "cluster-nodes")[0][8]
