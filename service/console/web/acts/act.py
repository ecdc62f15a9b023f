"""Values of all acts: what one would do, what it has done, and the form that asks for it. [P]"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError, StorageError
from service.base.printable import escaped
from service.wire.errors import WireError

if TYPE_CHECKING:
    from service.client.admin import ChangingCluster

MOST_ROWS: Final = 200
"""Rows of a preview that a page shows; the others are counted."""
LOST: Final = (OSError, StorageError, WireError)
"""Errors after which nobody knows what a broker has done."""
UNDECIDED: Final = frozenset(
    {
        ErrorCode.request_timed_out,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.coordinator_not_available,
        ErrorCode.kafka_storage_error,
        ErrorCode.network_exception,
        ErrorCode.unknown_server_error,
    }
)
"""Codes of brokers that have begun, or whose controller has: what was asked for may be done all the same."""
_LONGEST_WORD: Final = 249
_PREFIX: Final = 40


class ActPreview(NamedTuple):
    """Preview of an act. It is carried out as it is here, or not at all.

    `word` is typed to confirm it; `items` name in the audit log what changes. An act is not carried out where
    `seen`, what it depends on, has become another meanwhile. `chosen` is the act's own.
    """

    word: str
    items: tuple[str, ...]
    facts: tuple[tuple[str, str], ...] = ()
    head: tuple[str, ...] = ()
    rows: Sequence[tuple[str, ...]] = ()
    """the first ones; `more`: how many there are besides"""
    more: int = 0
    notes: tuple[str, ...] = ()
    seen: object = None
    chosen: Any = None


class ActOutcome(NamedTuple):
    """Result of an act: what it has done, and which parts of it were refused.

    `link`, words and a path, is where to look. `undecided`: parts of which nobody knows.
    """

    words: str
    problems: tuple[str, ...] = ()
    link: tuple[str, str] | None = None
    items: tuple[str, ...] = ()
    """for the audit log, if they are not those of the preview"""
    undecided: tuple[str, ...] = ()


class Act(ABC):
    """One change that somebody asks for. Both methods block and raise `FirnError` and `OSError`.

    `event` and `event_words` are those of the audit log. `verb` says what the button does.
    """

    event: ClassVar[str]
    event_words: ClassVar[str]
    verb: ClassVar[str]

    @abstractmethod
    def preview(self, cluster: ChangingCluster) -> ActPreview:
        """Return what the act would do now; the cluster checks it as far as it can, and changes nothing."""

    @abstractmethod
    def carry_out(self, cluster: ChangingCluster, preview: ActPreview) -> ActOutcome:
        """Do what `preview` says."""


class ActWorld(NamedTuple):
    """Environment of acts: the time, and a number below another by chance."""

    now_ms: Callable[[], int]
    draw: Callable[[int], int]


class ActField(NamedTuple):
    """A field of a form. `kind`: ``text``, ``number``, ``lines``, or ``choice`` of `options`."""

    name: str
    label: str
    kind: str = "text"
    hint: str = ""
    most: int = _LONGEST_WORD
    options: tuple[tuple[str, str], ...] = ()
    required: bool = False


class ActForm(NamedTuple):
    """A form for one kind of act. `make` raises `ConfigError` for fields that make no sense.

    `page` is the entry of the navigation; `most_bytes` bounds what a browser sends.
    """

    name: str
    title: str
    page: str
    lead: str
    fields: tuple[ActField, ...]
    make: Callable[[Mapping[str, str], ActWorld], Act]
    most_bytes: int = 64 << 10


def may_be_done(error: BaseException) -> bool:
    """Return whether what a broker was asked for may be done in spite of this error.

    >>> [may_be_done(RequestError(code)) for code in (ErrorCode.request_timed_out, ErrorCode.invalid_request)]
    [True, False]
    """
    return isinstance(error, LOST) or (isinstance(error, RequestError) and error.code in UNDECIDED)


def first_rows(rows: Collection[tuple[str, ...]]) -> tuple[tuple[tuple[str, ...], ...], int]:
    """Return the rows that are shown, and how many are not."""
    return tuple(islice(rows, MOST_ROWS)), max(len(rows) - MOST_ROWS, 0)


def word_of(name: str) -> str:
    """Return what is typed to confirm a change of the thing with this name.

    Names that others chose may be empty, long, or have characters that nobody can type.

    >>> word_of("orders"), word_of("a\\u202eb"), word_of(""), len(word_of("x" * 1000))
    ('orders', 'a\\\\u202eb', '(the empty id)', 40)
    """
    shown = " ".join(escaped(name).split())
    if not shown:
        return "(the empty id)"
    return shown if len(shown) <= _LONGEST_WORD else shown[:_PREFIX].strip()


def is_confirmed(typed: str, word: str) -> bool:
    """Return whether `typed` confirms the change of a thing whose word is `word`."""
    return " ".join(typed.split()) == word
