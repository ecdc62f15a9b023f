"""Pages as HTML, whatever those say who are shown in them: sound, of known elements, and never longer."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser
from types import MappingProxyType
from typing import Any

import pytest

from service.client.admin_models import ClusterInfo, ConfigEntry, NodeInfo
from service.client.cluster_health import (
    BrokerLoad,
    MetadataReplica,
    NodeState,
    PartitionProblem,
    PartitionState,
    PartitionSummary,
    QuorumInfo,
    ReassignmentInfo,
    UnhealthyPartition,
)
from service.console.figures import Between, Figures
from service.console.web.costs import Prices
from service.console.web.frame import PageContext, login_page
from service.console.web.history import NodeSample
from service.console.web.pages import (
    bucket,
    cluster,
    cold,
    configuration,
    group,
    groups,
    overview,
    records,
    topic,
    topics,
)
from service.console.web.rows import Decoded
from service.console.web.survey import ExpiredOrphan, Findings, TopicSum
from service.console.web.tier_layout import BUCKET, DISK, RetentionEdge, TierBlock, TierLayout
from service.console.web.topic_rows import TopicSummary
from service.groups.admin_models import CONSUMER, GroupInfo, GroupRow, MemberInfo, PartitionProgress
from service.health.findings import Finding, Severity
from service.records.decode import Record

NAMES = ("console.css", "console.js", "uPlot.css", "uPlot.js", "icon.svg")
ASSETS = MappingProxyType({name: f"/static/{name}" for name in NAMES})
NOW = 1_790_000_000_000
EVIL = "\"'><script>alert(1)</script><img src=x onerror=alert(1)></title></textarea>\u202e\x00&lt;"
VOID = {"br", "hr", "img", "input", "link", "meta"}
ALLOWED = {
    "a", "b", "body", "button", "caption", "code", "datalist", "dd", "details", "div", "dl", "dt",
    "figcaption", "figure", "footer", "form", "h1", "h2", "head", "header", "html", "input", "label", "li",
    "link", "main", "meta", "nav", "ol", "option", "p", "polyline", "pre", "rect", "script", "section",
    "select", "span", "summary", "svg", "table", "tbody", "td", "textarea", "tfoot", "th", "thead", "time",
    "title", "tr", "ul",
}  # fmt: skip


class Checked(HTMLParser):
    """Elements must close as they open, be known, and carry neither script nor style."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.scripts: list[str | None] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ALLOWED, tag
        named = dict(attrs)
        assert not [name for name in named if name.startswith("on") or name == "style"]
        for name in ("href", "src", "action"):
            assert (named.get(name) or "/").startswith(("/", "#")), named
        if tag == "script":
            self.scripts.append(named.get("src"))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def context(words: str) -> PageContext:
    return PageContext(words, f"s3://{words}", ASSETS, NOW, words, True, allows_changes=True)


def look(words: str) -> NodeSample:
    said = words.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\x00", "")
    text = f"""\
firn_cache_hits_total 3
firn_store_call_seconds_bucket{{client="{said}",call="{said}",le="0.1"}} 4
firn_store_call_seconds_count{{client="{said}",call="{said}"}} 4
firn_store_errors_total{{client="{said}",call="{said}",error="{said}"}} 1
firn_store_reachable{{client="{said}"}} 0
firn_memory_bytes{{owner="{said}"}} 7
firn_tiering_blocked_partitions{{reason="{said}"}} 2
"""
    health = {"ready": False, "checks": {words: {"state": "failed", "why": words}}}
    figures = Figures(1.0, text, health, [{"took_ms": 9.5, "ended_s_ago": 3, "who": words}])
    return NodeSample(1, f"http://{words}", words, Between(None, figures), None)


def line(words: str) -> TierLayout:
    blocks = (
        TierBlock(BUCKET, 0, 10, 100, 1, 1, 2, words),
        TierBlock(BUCKET, 10, 20, None, None, None, None, ""),
        TierBlock(DISK, 15, 30, 50, 1, None, 9, words, True),
    )
    edge = RetentionEdge("retention.ms", "5", 3.5)
    return TierLayout(
        0, -1, (1, 2), (1,), 0, 15, 20, 30, blocks, 1, 2, 3, 4, 5, 6, 7, 8, (edge,), True, (words,)
    )


def a_topic(words: str) -> str:
    found = topic.TopicPage(
        words,
        words,
        {"retention.ms": words},
        [line(words)],
        words,
        1,
        None,
        True,
        True,
        None,
        words,
        3,
        False,
    )
    return topic.render(context(words), found)


def some_records(words: str) -> str:
    data = words.encode()
    rows = (
        Record(1, NOW, 0, data, data * 300, ((words, data), (b"\xff", None))),
        Record(2, -1, 0, None, b"", ()),
    )
    found = records.FoundRecords(
        rows, (records.FetchTiming("bucket", 0, 5, 1.5),), 0, 5, 9, 1, 3, 2, True, words
    )
    form = records.Form(words, words, "offset", words, 50, words, "auto")
    return records.render(context(words), records.Records(form, [words], found, None))


def merged_records(words: str) -> str:
    data = words.encode()
    rows = (
        records.PlacedRecord(0, Record(1, NOW, 0, data, data, ((words, data),)), True),
        records.PlacedRecord(7, Record(2, -1, 0, None, b"", ()), False),
    )
    found = records.MergedRecords(rows, (), {0: 1, 7: 2}, False, 2, 3, (words,), left_out=True, end=9)
    decoded = {(0, 1, "value"): Decoded(words, words), (7, 2, "value"): Decoded(None, words)}
    form = records.Form(words, "", "end", words, 50, words, "auto", True)
    return records.render(context(words), records.Records(form, [words], found, decoded=decoded))


def a_bucket(words: str) -> str:
    found = Findings(
        NOW, {words: TopicSum(words, words, 1, 2, 3, 4, 5), "x": TopicSum(words, None)}, listed=5
    )
    found.orphans, found.orphan_count, found.problems = [ExpiredOrphan(words, 1, 2)], 1, [words]
    found.by_class[words] = 10**9
    found.foreign_objects = 1
    settings = bucket.Settings(1, 2, [words], words, words, [words])
    fsck = bucket.Fsck(words, 1, False, True, 1, 2, [(words, words)], 1, 0)
    shown = bucket.BucketPage(
        words, words, found, False, words, settings, False, Prices(currency=words), [look(words)], fsck, words
    )
    return bucket.render(context(words), shown)


def some_findings(words: str) -> tuple[Finding, ...]:
    return tuple(
        Finding(severity, words, since_ms, words, words, words, words)
        for severity in Severity
        for since_ms in (None, NOW - 5000)
    )


def an_overview(words: str) -> str:
    cluster = ClusterInfo(words, 1, (NodeInfo(1, words, 9, words, False), NodeInfo(2, words, 9, None, False)))
    nodes = [look(words)]
    series = {name: [1.0, 2.0] for name in ("t", "produced", "lag_bytes")}
    found = overview.Overview(cluster, words, 0, 0, nodes, some_findings(words), series)
    return overview.render(context(words), found)


def all_topics(words: str) -> str:
    rows = [TopicSummary(words, words, 3, 1, 1)]
    settings = {words: {"retention.ms": words, "cleanup.policy": words}}
    return topics.render(context(words), topics.TopicsPage(rows, settings, {}, 1, 90, 90, words, None))


def some_keys(words: str) -> str:
    one = ConfigEntry(
        words, words, 4, 2, True, False, f"`{words}` {words}", ((words, words, 5), (words, None, 77))
    )
    found = configuration.Configuration([1, 2], 1, words, [one], "", False, None)
    return configuration.render(context(words), found)


def all_groups(words: str) -> str:
    rows = [GroupRow(words, 1, words, words, words)]
    return groups.render(context(words), groups.GroupsPage(rows, 1, 90, 90, words, (words,), None))


def a_group(words: str) -> str:
    some = ((words, tuple(range(20))),) * 9
    members = (
        MemberInfo(words, words, words, words, words, True, 3, (words,) * 9, words, some, ()),
        MemberInfo(words, None, None, "", "", False, None, (), None, (), None, words),
    )
    positions = (
        PartitionProgress(words, 0, 5, 9, words),
        PartitionProgress(words, 1, None, 9, None),
        PartitionProgress(words, 2, 5, None, "m"),
    )
    info = GroupInfo(GroupRow(words, 1, words, words, words), words, 3, 2, members, positions, 7)
    lags = {(words, 0): [(1000, 1), (2000, 9), (3000, 4)]}
    return group.render(context(words), group.GroupPage(words, info, lags))


def a_quorum(nodes: int) -> QuorumInfo:
    def one(node: int, ago_ms: int) -> MetadataReplica:
        return MetadataReplica(node, None, 1000 - ago_ms, NOW - ago_ms, NOW - ago_ms)

    voters = (one(1, 0), one(2, 250), MetadataReplica(3, None, None, None, None))
    return QuorumInfo(1, 7, 990, voters, tuple(one(node, 40) for node in range(4, nodes)))


def some_ill(words: str, count: int) -> tuple[UnhealthyPartition, ...]:
    state = PartitionState(5, -1, 3, (1, 2), (), (2,), (1,), (1,))
    return tuple(
        UnhealthyPartition(tuple(PartitionProblem)[n % 3], words, state._replace(partition=n), 2)
        for n in range(count)
    )


def a_cluster(words: str, *, nodes: int = 5, ill: int = 4, moving: int = 2, age_ms: int = 0) -> str:
    listed = [
        NodeState(
            n,
            ("broker", "controller"),
            words,
            (words, words),
            (None, False, True)[n % 3],
            ("", "ok", "fenced")[n % 3],
        )
        for n in range(1, nodes)
    ]
    shares = {n: BrokerLoad(1, 2, 3, 1, 1) for n in range(1, nodes)}
    counted = PartitionSummary(
        9, 100_000, 12, 34, 56, 7, 8, 3 * ill, shares, some_ill(words, min(ill, cluster.MOST_ILL))
    )
    under_way = tuple(ReassignmentInfo(words, n, (1, 2, 3), (3,), (1,)) for n in range(moving))
    found = cluster.ClusterPage(
        words, listed, a_quorum(nodes), False, counted, age_ms, under_way,
        some_findings(words) if words != "c" else (),
    )  # fmt: skip
    return cluster.render(context(words), found)


PAGES: dict[str, Callable[[str], str]] = {
    "cluster": a_cluster,
    "nothing, cluster": lambda words: cluster.render(context(words), cluster.ClusterPage(problem=words)),
    "nothing of it, cluster": lambda words: cluster.render(
        context(words), cluster.ClusterPage(words, is_alone=True)
    ),
    "overview": an_overview,
    "topics": all_topics,
    "topic": a_topic,
    "records": some_records,
    "merged records": merged_records,
    "bucket": a_bucket,
    "cold": lambda words: cold.render(context(words), cold.ColdPage([look(words)], words)),
    "configuration": some_keys,
    "groups": all_groups,
    "group": a_group,
    "login": lambda words: login_page(context(words), words, words),
    "nothing, overview": lambda words: overview.render(
        context(words), overview.Overview(None, words, None, None, (), (), {})
    ),
    "nothing, topics": lambda words: topics.render(
        context(words), topics.TopicsPage((), {}, {}, 1, 0, 0, words, words)
    ),
    "nothing, topic": lambda words: topic.render(context(words), topic.TopicPage(words, problem=words)),
    "nothing, groups": lambda words: groups.render(
        context(words), groups.GroupsPage((), 1, 0, 0, words, (words,), None)
    ),
    "no such group": lambda words: group.render(
        context(words), group.GroupPage(words, None, problem=words, status=404)
    ),
    "nothing, records": lambda words: records.render(
        context(words), records.Records(records.Form(words), [words], None, words)
    ),
    "nothing, bucket": lambda words: bucket.render(
        context(words),
        bucket.BucketPage(
            words, words, None, True, words, None, True, Prices(), (), bucket.Fsck(words, problem=words)
        ),
    ),
    "nothing, cold": lambda words: cold.render(context(words), cold.ColdPage((), words)),
    "nothing, configuration": lambda words: configuration.render(
        context(words), configuration.Configuration((), None, words, (), words, True, words)
    ),
}


@pytest.mark.parametrize("page", PAGES)
def test_names_of_others_are_text_on_every_page(page: str) -> None:
    evil, tame = Checked(PAGES[page](EVIL)), Checked(PAGES[page]("tame"))
    assert evil.scripts == tame.scripts
    assert all(src is not None and src.startswith("/static/") for src in evil.scripts)
    assert "\u202e" not in evil.words
    assert "\x00" not in evil.words


def test_missing_data_is_explained_on_the_page() -> None:
    found = PAGES["nothing, overview"]("why not")
    assert "The cluster does not answer" in found
    assert "why not" in found
    assert "The bucket cannot be read" in PAGES["nothing, bucket"]("down")
    assert "cannot be shown" in PAGES["nothing, topic"]("gone")


def test_answers_of_a_store_are_not_its_errors() -> None:
    text = """\
firn_cache_hits_total 3
firn_store_call_seconds_count{client="tiering",call="get_tagged"} 30
firn_store_errors_total{client="tiering",call="get_tagged",error="ObjectNotFound"} 20
firn_store_errors_total{client="tiering",call="get_tagged",error="PreconditionFailed"} 4
"""

    def page(more: str) -> str:
        figures = Figures(1.0, text + more, {}, [])
        sample = NodeSample(1, "http://x", "1", Between(None, figures), None)
        return cold.render(context("x"), cold.ColdPage([sample], None))

    assert "badge warn" not in page("")
    failed = 'firn_store_errors_total{client="tiering",call="get_tagged",error="StoreUnavailable"} 2\n'
    assert '<span class="badge warn">2</span>' in page(failed)


def test_a_node_that_reads_nothing_from_the_bucket_is_one_line() -> None:
    figures = Figures(1.0, "firn_cache_hits_total 0\nfirn_cache_misses_total 0\n", {}, [])
    sample = NodeSample(1, "http://x", "1", Between(None, figures), None)
    found = Checked(cold.render(context("x"), cold.ColdPage([sample], None))).words
    assert "No record has been read from the bucket since the node started." in found


def test_keys_with_default_values_are_folded_unless_searched_for() -> None:
    def page(**changed: Any) -> str:
        keys = [ConfigEntry(f"k{n}", "1", 5 if n else 4, 2, False, False, "", ()) for n in range(3)]
        found = configuration.Configuration([1, 2], 1, None, keys, "", False, None)
        return configuration.render(context("x"), found._replace(**changed))

    assert "2 keys with default values" in page()
    assert "<details" not in page(wanted="k")
    # A node that does not answer leaves the way to the others.
    assert 'href="/configuration?node=2"' in page(problem="away", entries=())


def test_days_and_costs_are_of_what_is_chosen() -> None:
    words = Checked(a_bucket("orders")).words
    assert "Days of orders" in words
    assert "Orphans" in words


def test_sensitive_values_are_not_shown() -> None:
    """Neither as the value nor among the settings that it comes before."""
    one = ConfigEntry(
        "a.key", "s3cret", 4, 9, True, True, "", (("a.key", "s3cret", 4), ("b", "old-s3cret", 5))
    )
    text = configuration.render(
        context(""), configuration.Configuration([1], 1, None, [one], "", False, None)
    )
    assert "s3cret" not in text
    assert "hidden" in text


def test_a_key_leads_to_the_form_that_changes_it_but_not_with_a_password() -> None:
    keys = [
        ConfigEntry("a", "1&2", 4, 2, False, False, "", ()),
        ConfigEntry("b.password", "s3cret", 4, 9, False, True, "", ()),
        ConfigEntry("c", "3", 4, 2, True, False, "", ()),
    ]
    found = configuration.Configuration([1], 1, None, keys, "", False, None)
    text = configuration.render(context("x"), found)
    assert 'href="/change/broker-settings?broker=1&amp;set=a%3D1%262"' in text
    assert 'href="/change/broker-settings?broker=1&amp;set=b.password%3D"' in text
    assert "set=c" not in text
    reading = configuration.render(context("x")._replace(allows_changes=False), found)
    assert "/change/" not in reading
    assert 'href="/change/topic-settings?topic=t&amp;set=a%3D1%262"' in configuration.render(
        context("x"), found._replace(topic="t")
    )


def test_a_group_says_how_far_it_is_and_how_its_lag_went() -> None:
    text = a_group("orders")
    words = Checked(text).words
    assert "1 to 4, at most 9, in 2.0 s" in words
    assert "7 more partitions were not queried." in words
    assert "does not exist" in words
    assert "does not parse" in words
    assert "orders 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 8 more" in words
    assert 'href="/group?id=orders"' in all_groups("orders")


def test_ten_thousand_groups_are_a_page_of_fifty() -> None:
    found = [GroupRow(f"g{n}", 1, "Stable", CONSUMER, "consumer") for n in range(10_000)]
    text = groups.render(
        context("x"), groups.GroupsPage(found[: groups.PER_PAGE], 1, 10_000, 10_000, "", (), None)
    )
    assert text.count("<tr>") == groups.PER_PAGE + 1
    assert "Page 1 of 200" in text


def test_a_huge_group_has_a_page_that_is_not() -> None:
    every = tuple(range(1000))
    members = tuple(
        MemberInfo(f"m{n}", None, None, "c", "h", False, 1, ("t",), None, (("t", every),), ())
        for n in range(1000)
    )
    positions = tuple(PartitionProgress("t", n, 1, 2, "m0") for n in range(2000))
    info = GroupInfo(GroupRow("g", 1, "Stable", CONSUMER, "consumer"), "uniform", 1, 1, members, positions)
    text = group.render(context("x"), group.GroupPage("g", info))
    assert len(text) < 200_000
    assert "800 more members" in text
    assert "Page 1 of 20" in text


def test_the_cluster_page_lists_offline_voters_and_unhealthy_partitions() -> None:
    text = a_cluster("c")
    words = Checked(text).words
    assert "led by 1" in words
    assert "3 voters, 1 away" in words
    assert "Epoch 7, high watermark 990." in words
    assert "8 more unhealthy partitions." in words
    assert "100,000" in words
    assert 'href="/topic?name=c&amp;partition=3"' in text
    assert "250.0 ms ago" in words
    assert "40 s ago" in Checked(a_cluster("c", age_ms=40_000)).words
    assert "All replicas of all partitions are in sync." in a_cluster("c", ill=0)
    assert "None is under way." in a_cluster("c", moving=0)


def test_a_huge_cluster_has_a_page_that_is_not() -> None:
    text = a_cluster("c", nodes=1_000, ill=50_000, moving=100_000)
    assert len(text) < 400_000
    assert "799 more nodes" in text
    assert "99,900 more reassignments" in text
