"""Settings of KIP-848 groups, and of a single group."""

from __future__ import annotations

import pytest

from service.base.errors import ConfigError
from service.groups.consumer_config import ConsumerConfig, MigrationPolicy, check_group_settings


def test_kafkas_defaults_are_sound() -> None:
    ConsumerConfig().check()


@pytest.mark.parametrize(
    ("about", "message"),
    [
        (
            {"max_session_timeout_ms": 44_000},
            "group.consumer.max.session.timeout.ms must be greater than or equal to "
            "group.consumer.min.session.timeout.ms",
        ),
        (
            {"session_timeout_ms": 44_999},
            "group.consumer.session.timeout.ms must be greater than or equal to "
            "group.consumer.min.session.timeout.ms",
        ),
        (
            {"heartbeat_interval_ms": 15_001},
            "group.consumer.heartbeat.interval.ms must be less than or equal to "
            "group.consumer.max.heartbeat.interval.ms",
        ),
        (
            {"heartbeat_interval_ms": 50_000, "max_heartbeat_interval_ms": 60_000},
            "group.consumer.heartbeat.interval.ms must be less than group.consumer.session.timeout.ms",
        ),
    ],
)
def test_a_brokers_contradictions_are_refused(about: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError) as e:
        ConsumerConfig(**about).check()  # type: ignore[arg-type]
    assert str(e.value) == message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"consumer.size": "1"}, "Unknown group config name: consumer.size"),
        (
            {"consumer.session.timeout.ms": "long"},
            "Invalid value long for configuration consumer.session.timeout.ms: Not a number of type INT",
        ),
        (
            {"consumer.session.timeout.ms": "44999"},
            "consumer.session.timeout.ms must be greater than or equal to "
            "group.consumer.min.session.timeout.ms",
        ),
        (
            {"consumer.heartbeat.interval.ms": "15001"},
            "consumer.heartbeat.interval.ms must be less than or equal to "
            "group.consumer.max.heartbeat.interval.ms",
        ),
        (
            {"consumer.assignment.interval.ms": "-1"},
            "consumer.assignment.interval.ms must be greater than or equal to "
            "group.consumer.min.assignment.interval.ms",
        ),
    ],
)
def test_invalid_group_settings_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as e:
        check_group_settings(settings, ConsumerConfig())
    assert str(e.value) == message


def test_a_groups_session_is_longer_than_its_heartbeats_are_apart() -> None:
    config = ConsumerConfig(min_session_timeout_ms=1_000)
    with pytest.raises(ConfigError, match="must be greater than consumer"):
        check_group_settings({"consumer.session.timeout.ms": "5000"}, config)
    check_group_settings({"consumer.session.timeout.ms": "5001"}, config)


def test_group_settings_outside_changed_bounds_are_clamped() -> None:
    config = ConsumerConfig()
    key = "consumer.session.timeout.ms"
    assert config.effective(key, {}) == 45_000
    assert config.effective(key, {key: "50000"}) == 50_000
    assert config.effective(key, {key: "1"}) == 45_000
    assert config.effective(key, {key: "99999"}) == 60_000


def test_policies_say_which_ways_groups_may_turn() -> None:
    assert [(p.value, p.upgrades, p.downgrades) for p in MigrationPolicy] == [
        ("bidirectional", True, True),
        ("upgrade", True, False),
        ("downgrade", False, True),
        ("disabled", False, False),
    ]
