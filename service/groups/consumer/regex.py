"""Regular expressions in subscriptions: checked on arrival, resolved in steps, cached in the group. [P]

They are RE2 expressions (`base/name_pattern.py`), as in Kafka: matched against the whole name.

An expression is resolved when it is new, again when there are new topics, and every
``group.consumer.regex.refresh.interval.ms``; all of a group's together, and at most every 10 s. Source:
Apache Kafka ``TopicRegexResolver``, ``GroupMetadataManager.maybeUpdateRegularExpressions``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from service.base.errors import RequestError
from service.base.name_pattern import compile_name_pattern
from service.base.steps import Steps
from service.groups.consumer.group import ConsumerGroup, ConsumerGroupMember, is_under_way

REFRESH_MIN_INTERVAL_MS: Final = 10_000
_WHAT: Final = "SubscribedTopicRegex"
_TOPICS_A_STEP: Final = 100


class Resolution(NamedTuple):
    """Topics that match each expression, with the version of the topics and the time (ms) of the match."""

    topics: dict[str, frozenset[str]]
    version: int
    timestamp: int


def resolution(
    regexes: Iterable[str],
    names: Iterable[str],
    version: int,
    timestamp: int,
    may_describe: Callable[[str], bool] | None = None,
) -> Steps[Resolution]:
    """Match the names with each expression; one that does not compile, which the checks exclude, matches
    none. Names for which `may_describe` returns False are as if there were none."""
    patterns, found = [], {}
    for regex in regexes:
        yield
        found[regex] = set[str]()
        try:
            patterns.append((compile_name_pattern(regex, _WHAT), found[regex]))
        except RequestError:
            continue
    names = list(names)
    for start in range(0, len(names), _TOPICS_A_STEP):
        piece = names[start : start + _TOPICS_A_STEP]
        if may_describe is not None:
            yield
            piece = [name for name in piece if may_describe(name)]
        for pattern, matching in patterns:
            yield
            matching.update([name for name in piece if pattern.fullmatch(name)])
    return Resolution({regex: frozenset(topics) for regex, topics in found.items()}, version, timestamp)


class RegexChange(NamedTuple):
    """Effect of a member's change on the group's expressions.

    `resolved`: the member's expression is resolved, so the targets can be made at once. `dropped`: an
    expression without subscribers. `to_resolve`: all expressions to resolve now.
    """

    changed: bool = False
    resolved: bool = False
    dropped: str | None = None
    to_resolve: tuple[str, ...] = ()


class Freshness(NamedTuple):
    """Inputs of the decision to resolve again: the version with the newest topic, the interval and the
    time."""

    new_topics: int
    refresh_interval_ms: int
    now_ms: int


def regex_change(
    group: ConsumerGroup, old: ConsumerGroupMember, new: ConsumerGroupMember, fresh: Freshness
) -> RegexChange:
    """Return the effect of a member's change. Raises `RequestError` INVALID_REGULAR_EXPRESSION for a new
    expression that does not compile."""
    change = RegexChange()
    is_new = False
    if old.regex != new.regex:
        dropped = old.regex if old.regex and group.regex_members.get(old.regex) == 1 else None
        resolved = False
        if new.regex:
            if new.regex not in group.regex_members:
                compile_name_pattern(new.regex, _WHAT)
                is_new = True
            else:
                resolved = new.regex in group.regexes
        elif old.regex:
            resolved = True
        change = RegexChange(True, resolved, dropped)
    if not is_new and not group.regex_members:
        return change
    return change._replace(to_resolve=_to_resolve(group, old, new, is_new, fresh))


def _to_resolve(
    group: ConsumerGroup, old: ConsumerGroupMember, new: ConsumerGroupMember, is_new: bool, fresh: Freshness
) -> tuple[str, ...]:
    if is_under_way(group.volatile.resolving_until_ms, fresh.now_ms):
        return ()
    # Ignore a time in the future: it was written before the clock was set back.
    resolved_ms = (resolved.timestamp for resolved in group.regexes.values())
    last_ms = max((at for at in resolved_ms if at <= fresh.now_ms), default=None)
    if last_ms is not None and fresh.now_ms <= last_ms + REFRESH_MIN_INTERVAL_MS:
        return ()
    counts = dict(group.regex_members)
    if old.regex != new.regex:
        if old.regex:
            counts[old.regex] = counts.get(old.regex, 1) - 1
        if new.regex:
            counts[new.regex] = counts.get(new.regex, 0) + 1
    regexes = tuple(sorted(regex for regex, count in counts.items() if count > 0))
    due = (
        is_new
        or len(regexes) != len(group.regexes)
        or group.volatile.resolved_at < fresh.new_topics
        or last_ms is None
        or fresh.now_ms > last_ms + fresh.refresh_interval_ms
    )
    return regexes if due else ()
