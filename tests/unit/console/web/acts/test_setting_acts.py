"""Previews of changed settings: values of passwords are nowhere in them, and what was seen decides."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

import pytest

from service.base.errors import ConfigError
from service.client.admin_models import ConfigEntry, TopicInfo
from service.console.web.acts import setting_acts
from service.console.web.acts.act import ActPreview, ActWorld

WORLD = ActWorld(lambda: 0, lambda _: 0)
SECRET = "hunter2"


class Entries:
    """A cluster that has these settings."""

    def __init__(self, *entries: ConfigEntry) -> None:
        self._entries = entries

    def entries(self, kind: int, name: str) -> list[ConfigEntry]:
        assert (kind, name) == (4, "3")
        return list(self._entries)


def entry(
    name: str, value: str | None, *, is_sensitive: bool = False, read_only: bool = False
) -> ConfigEntry:
    return ConfigEntry(name, value, 5, 2, read_only, is_sensitive, "", ())


def preview(monkeypatch: pytest.MonkeyPatch, cluster: Entries, **values: str) -> ActPreview:
    monkeypatch.setattr(setting_acts, "alter_settings", lambda *_, **__: None)
    act = setting_acts.BROKER_SETTINGS.make({"broker": "3", **values}, WORLD)
    return act.preview(cast("Any", cluster))


def test_passwords_are_hidden_also_where_nobody_knows_whether_it_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Entries(
        entry("ssl.key.password", None, is_sensitive=True),
        entry("threads", "1"),
        entry("dirs", "", read_only=True),
    )
    found = preview(
        monkeypatch, cluster, set=f"ssl.key.password={SECRET}\nnew.key={SECRET}\nthreads=2", unset="dirs"
    )
    assert found.rows == (
        ("ssl.key.password", "[hidden]", "[hidden]"),
        ("new.key", "not set", "[hidden]"),
        ("threads", "1", "2"),
        ("dirs", '""', "back to the default"),
    )
    assert found.items == (
        "broker 3: ssl.key.password=[hidden]",
        "broker 3: new.key=[hidden]",
        "broker 3: threads=2",
        "broker 3: dirs",
    )
    assert found.notes == ("dirs is read at the start of a node: it takes effect with a restart.",)
    assert SECRET not in repr(found)
    assert found.word == "3"


def test_another_value_or_source_is_another_preview(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen(one: ConfigEntry) -> object:
        return preview(monkeypatch, Entries(one, entry("other", "x")), set="threads=2").seen

    before = seen(entry("threads", "1"))
    assert before == seen(entry("threads", "1"))
    assert before != seen(entry("threads", "3"))
    assert before != seen(entry("threads", "1")._replace(source=2))


def test_another_topic_of_the_name_is_another_preview(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its settings may be the same ones; they are those of another topic."""

    class Topics:
        def __init__(self, number: int) -> None:
            self._id = UUID(int=number)

        def entries(self, *_: object) -> list[ConfigEntry]:
            return [entry("retention.ms", "1")]

        def topics(self, names: list[str]) -> list[TopicInfo]:
            return [TopicInfo(names[0], self._id, ())]

    monkeypatch.setattr(setting_acts, "alter_settings", lambda *_, **__: None)
    act = setting_acts.TOPIC_SETTINGS.make({"topic": "orders", "set": "retention.ms=2"}, WORLD)
    first, again, other = (act.preview(cast("Any", Topics(number))).seen for number in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "No setting is named"),
        ({"set": "a=1", "unset": "a"}, "a is to be set, and to go back to its default"),
        ({"broker": "x", "set": "a=1"}, "Broker is a number"),
        ({"broker": "-1", "set": "a=1"}, "Broker is a number"),
    ],
)
def test_changes_that_make_no_sense_are_refused(values: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        setting_acts.BROKER_SETTINGS.make(values, WORLD)
