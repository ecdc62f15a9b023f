"""Properties made typed values, key by key, with every mistake told at once. [P]"""

from __future__ import annotations

from collections.abc import Mapping

from service.base.errors import ConfigError
from service.config.keys import ConfigKey, Value, did_you_mean
from service.config.tables import TOPIC_KEYS, refusal


def parse(
    given: Mapping[str, str], keys: Mapping[str, ConfigKey], what: str, problems: list[str]
) -> dict[str, Value]:
    """A value for each of `keys`; a line in `problems` for each of `given` that will not do."""
    values = {key.name: key.default for key in keys.values()}
    for name, text in given.items():
        if name not in keys:
            reason = refusal(name)
            if reason is None and name in TOPIC_KEYS:
                reason = (
                    f"a topic key; its default is set by {TOPIC_KEYS[name].synonyms[0].name}"
                    if (TOPIC_KEYS[name].synonyms)
                    else "a topic key; it is set on topics only"
                )
            problems.append(
                f"{name}: refused: {reason}"
                if reason
                else f"{name}: unknown {what}{did_you_mean(name, keys)}"
            )
            continue
        try:
            values[name] = keys[name].parse(text)
        except ConfigError as e:
            problems.append(str(e))
    return values
