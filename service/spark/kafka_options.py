"""Options of jobs that move here from Spark's Kafka source. [P]

Most are options of this source, too. Those that have no effect here are accepted with a warning, so that a
job moves by changing its format and its address; those that would be missed are refused with the alternative
(those that begin with ``kafka.`` by `config/client`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from service.base.errors import ConfigError

_BOOTSTRAP: Final = ("bootstrap.servers", "kafka.bootstrap.servers")
_NO_GROUP: Final = "there is no consumer group, Spark keeps the offsets and nothing is committed to brokers"
_NO_FETCH: Final = "requests that fail are repeated by the source's own rules"
MEANINGLESS: Final = {
    "kafka.group.id": _NO_GROUP,
    "groupidprefix": _NO_GROUP,
    "fetchoffset.numretries": _NO_FETCH,
    "fetchoffset.retryintervalms": _NO_FETCH,
}
"""Lower-case names -> why they have no effect."""
_OF_STREAMS: Final = frozenset({"maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay"})


def is_meaningless(name: str) -> bool:
    """Return whether an option of this name is accepted and has no effect."""
    return name.lower() in MEANINGLESS


def ignored_option_warnings(raw: Mapping[str, str]) -> list[str]:
    """Return a warning for each option that is accepted and has no effect."""
    return [
        f"option {name} means nothing here: {MEANINGLESS[name]}"
        for name in sorted(map(str.lower, raw))
        if name in MEANINGLESS
    ]


def check_moved(raw: Mapping[str, str], *, streaming: bool) -> None:
    """Raise `ConfigError`, with the remedy, for options of Spark's Kafka source that this one cannot take."""
    given = {name.lower() for name in raw}
    for name in sorted(given & _OF_STREAMS) if not streaming else ():
        raise ConfigError(f"option {name} is for streams: a batch reads all that its offsets or times name")
    if given.isdisjoint({"url", "path"}) and not given.isdisjoint(_BOOTSTRAP):
        raise ConfigError(
            "option url is missing: what is archived is read straight from the bucket, and brokers are asked "
            "for the rest alone. Add url, as firn.remote.url is in the brokers' settings: s3://bucket/prefix"
        )
