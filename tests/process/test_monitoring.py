"""infra/monitoring: judged by promtool, and by what a node under load tells."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
import yaml

from infra.monitoring.dashboard import dashboard, expressions
from tests.conftest import BRISK
from tests.support.batches import batch
from tests.support.certificates import Authority
from tests.support.clients import Admin, Confluent
from tests.support.faults import Fault, fault_proxy
from tests.support.processes import REPOSITORY, Node, free_port, wait_until
from tests.support.requirements import promtool
from tests.support.scrapes import (
    RULES,
    TARGET,
    Scrape,
    answered,
    grouped_by,
    labels_by_name,
    scrape,
    selectors,
)
from tests.support.stores import moto_server, new_bucket
from tests.support.tiers import settle
from tests.support.wire import RawConnection, produce

FOLDER = REPOSITORY / "infra" / "monitoring"
SCRAPES = 9
OF_CLUSTERS = {
    ("firn_replicas_lag", frozenset({("broker", "2"), *TARGET.items()})): 7.0,
    ("firn_health_findings", frozenset({("finding", "x"), ("severity", "notice"), *TARGET.items()})): 1.0,
}
"""Series of nodes that have followers, or find something wrong; the node of these tests has neither."""
BROKEN = 5
"""Scrapes before the store refuses everything."""
DOCUMENT: dict[str, Any] = yaml.safe_load(RULES.read_text("utf-8"))
ALL_RULES = [rule for group in DOCUMENT["groups"] for rule in group["rules"]]
RECORDED = [rule["record"] for rule in ALL_RULES if "record" in rule]
ALERTS = [rule["alert"] for rule in ALL_RULES if "alert" in rule]


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "rules", "--lint=all", "--lint-fatal", "firn.rules.yml"],
        ["check", "config", "prometheus.yml"],
        ["test", "rules", "firn.rules.test.yml"],
    ],
    ids=["check rules", "check config", "test rules"],
)
def test_promtool_finds_nothing_wrong(arguments: list[str]) -> None:
    done = subprocess.run(
        [str(promtool()), *arguments], cwd=FOLDER, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_scenario_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    scenarios = yaml.safe_load((FOLDER / "firn.rules.test.yml").read_text("utf-8"))["tests"]
    looks = [look for one in scenarios for look in one["alert_rule_test"]]
    for alert in ALERTS:
        fires = {bool(look["exp_alerts"]) for look in looks if look["alertname"] == alert}
        assert fires == {True, False}, alert


def test_every_alert_says_what_it_is_and_what_to_do_and_is_in_the_readme() -> None:
    page = (FOLDER / "README.md").read_text("utf-8")
    for rule in ALL_RULES:
        if "alert" in rule:
            assert set(rule["annotations"]) == {"summary", "action", "runbook_url"}, rule["alert"]
            assert rule["labels"]["severity"] in ("info", "warning", "critical")
            assert f"`{rule['alert']}`" in page


def test_every_alert_leads_to_a_runbook_and_every_runbook_is_of_an_alert() -> None:
    head, *sections = (REPOSITORY / "docs" / "runbooks.md").read_text("utf-8").split("\n## ")
    assert head.startswith("# Runbooks")
    parts = {one.partition("\n")[0]: one for one in sections}
    assert list(parts) == ALERTS
    for rule in ALL_RULES:
        if "alert" not in rule:
            continue
        name = rule["alert"]
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks.md#{name.lower()}"
        words = re.findall(r"\n\*\*(\w+)\.\*\* (.*)", parts[name])
        assert [one for one, _ in words] == ["Symptom", "Check", "Act", "Prevent"], name
        assert all(len(text) > 10 for _, text in words), name
        assert f"Severity: {rule['labels']['severity']}." in parts[name]


def test_errors_that_are_answers_are_no_errors_on_the_dashboard() -> None:
    [asked] = [one for one in expressions() if "firn_store_errors_total" in one]
    assert 'error!~"ObjectNotFound|PreconditionFailed"' in asked


def test_the_dashboard_is_made_of_its_table() -> None:
    assert json.loads((FOLDER / "firn.dashboard.json").read_text("utf-8")) == dashboard()


@pytest.fixture(scope="module")
def scrapes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Scrape]]:
    """Of a node that appends, copies, serves both tiers and meets errors of its store and its clients."""
    folder = tmp_path_factory.mktemp("scraped")
    http = free_port()
    with moto_server(folder) as endpoint, fault_proxy(endpoint) as proxy:
        store = new_bucket(endpoint, "scraped").through(proxy.endpoint)
        listener = {"firn.http.listener": f"127.0.0.1:{http}", "log.flush.interval.messages": "10"}
        node = Node(folder / "node", {**BRISK, **store.node_settings, **listener}, store.env)
        node.settings |= secured(folder, node.bootstrap)
        try:
            node.start()
            admin = Admin(node.bootstrap)
            tiered = {
                "remote_storage_enable": "true",
                "internal_segment_bytes": "20000",
                "local_retention_bytes": "1",
            }
            admin.create("topic", 1, **tiered)
            found = [scrape(http)]
            for round in range(SCRAPES - 1):
                under_load(node, round)
                if round == 3:
                    settle(node.bootstrap, "topic", 0)
                if len(found) == BROKEN:
                    proxy.mode = Fault.UNKNOWN_KEY
                if round == 5:
                    wait_until(
                        "tiering to be blocked",
                        lambda: has(scrape(http), "firn_tiering_blocked_partitions"),
                    )
                time.sleep(1.1)  # whoever asks within a second gets the same text
                found.append(scrape(http))
            yield [{**one, **OF_CLUSTERS} for one in found]
        finally:
            node.close()


def secured(folder: Path, bootstrap: str) -> dict[str, str]:
    """An authorizer, and beside the open listener one with TLS and logins."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return {
        "listeners": f"PLAINTEXT://{bootstrap},SASL_SSL://127.0.0.1:{free_port()}",
        "ssl.keystore.location": Authority().issue().write(folder / "node.pem"),
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f'{module} required user_alice="secret";',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }


def has(one: Scrape, name: str) -> bool:
    return any(found == name for found, _ in one)


def under_load(node: Node, round: int) -> None:
    with RawConnection(node.bootstrap) as connection:
        for _ in range(30):
            assert produce(connection, "topic", 0, batch([bytes(1000)])).error_code == 0
        assert produce(connection, "nowhere", 0, batch([b"a"])).error_code != 0
    for start in {
        30 * round,
        0 if round == 4 else 30 * round,
    }:  # the first ones are in the bucket alone by then
        assert len(Confluent().read(node.bootstrap, "topic", 0, start, start + 30)) == 30
    consumer = confluent_kafka.Consumer({"bootstrap.servers": node.bootstrap, "group.id": "group"})
    consumer.commit(offsets=[confluent_kafka.TopicPartition("topic", 0, 30 * round)], asynchronous=False)
    consumer.close()


def every_expression() -> list[str]:
    rules = [str(rule["expr"]) for rule in ALL_RULES]
    return [*rules, *expressions()]


def test_every_metric_and_label_that_is_asked_for_is_told(scrapes: list[Scrape]) -> None:
    told = labels_by_name(scrapes)
    unknown: set[str] = set()
    for expression in every_expression():
        for name, labels in selectors(expression):
            unknown |= {f"{name}{{{label}}}" for label in labels - told.get(name, set())}
            if name not in told:
                unknown.add(name)
        every_label = set[str]().union(*(told.get(name, set()) for name, _ in selectors(expression)))
        if not any(name in expression for name in RECORDED):
            unknown |= {f"{label} in {expression}" for label in grouped_by(expression) - every_label}
    assert not unknown


def test_every_query_of_the_dashboard_and_every_recording_has_an_answer(
    scrapes: list[Scrape], tmp_path: Path
) -> None:
    asked = [filled_in(expression) for expression in expressions()]
    found = answered(promtool(), tmp_path, scrapes, [*asked, *RECORDED])
    assert [one for one in (*asked, *RECORDED) if one not in found] == []


def test_no_alert_fires_on_a_node_that_is_well(scrapes: list[Scrape], tmp_path: Path) -> None:
    """But those about the machine, which may be short of disk and slow wherever this runs."""
    groups = [group for group in DOCUMENT["groups"] if group["name"] not in ("firn.disk", "firn.loop")]
    alerts = {rule["expr"]: rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    assert len(alerts) > 15
    well, ill = scrapes[:BROKEN], scrapes
    assert {alerts[one] for one in answered(promtool(), tmp_path, well, alerts)} == set()
    assert "FirnTieringBlocked" in {alerts[one] for one in answered(promtool(), tmp_path, ill, alerts)}


def filled_in(expression: str) -> str:
    """As Grafana asks, with every node chosen."""
    return expression.replace("$__rate_interval", "1m").replace("$job", ".+").replace("$instance", ".+")
