"""Query for the records of a partition. [P]"""

from __future__ import annotations

from typing import Final, NamedTuple

from service.console.web.rows import RecordFilter

FROM_START: Final = "start"
FROM_END: Final = "end"
FROM_OFFSET: Final = "offset"
FROM_TIME: Final = "time"


class RecordQuery(NamedTuple):
    """Query for at most `most` records from a position, filtered. `value`: an offset, or ms."""

    topic: str
    partition: int
    where: str = FROM_END
    value: int = 0
    most: int = 50
    filter: RecordFilter = RecordFilter()
