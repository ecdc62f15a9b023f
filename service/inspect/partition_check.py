"""Check of one partition in the bucket: its chain, each segment, and what the listing has besides.

A node may commit while this walks: what HEAD named is replaced then, listed no more, and gone after a grace.
So what is wrong counts only where a HEAD that was read *after* it was seen still names it. That is asked in a
bounded number of looks, each of which reads HEAD, the manifest and a page per level, and not the segments.

Where a page cannot be read its segments come from the listing (`lost_page`), and where that does not say
which they are, all in its range are checked one by one, and none of them is called an orphan. So it is
where HEAD or the manifest cannot be read, unless the metadata's copy tells the manifest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple

from service.base.errors import CorruptionError
from service.base.types import Buffer
from service.inspect.committed import has_words
from service.inspect.fsck_report import MAX_LISTED, Finding, FsckReport, PartitionReport
from service.remote.catalog import NO_VERSION, CatalogEntry
from service.remote.format.keys import (
    HeadKey,
    ManifestKey,
    PageKey,
    ParsedKey,
    SegmentKey,
    parse_key,
    partition_prefix,
)
from service.remote.format.manifest import Child, Load, Manifest, ManifestPage, PageRef, SegmentEntry
from service.remote.format.manifest_codec import Head
from service.remote.format.segment_object import Footer
from service.remote.reading.chain_proof import (
    ReportError,
    check_identity,
    head_is_gone,
    proved_footer,
    proved_segments,
)
from service.remote.reading.lost_page import recover_page
from service.remote.reading.object_reader import (
    Chain,
    entry_of,
    open_chain,
    open_footer,
    open_head,
    open_page,
    open_published,
)
from service.remote.reading.partition_listing import ListedManifest, PartitionListing, list_partition
from service.remote.reading.segment_proof import prove_segment
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectInfo, ObjectStore

LOOKS: Final = 4
"""How often HEAD is read again, at most, for what was found wrong under the one before."""


class Subject(NamedTuple):
    """What is checked, and what is known of it: None where nobody says.

    `entry` is the partition's in the newest copy of the metadata. It may be older than HEAD, and is never
    newer than HEAD by more than one commit.
    """

    key: HeadKey
    topic: str | None = None
    cluster_id: str | None = None
    entry: CatalogEntry | None = None

    @property
    def where(self) -> str:
        return partition_prefix(*self.key)


def check_partition(store: ObjectStore, subject: Subject, *, deep: bool) -> FsckReport:
    """One partition. What is wrong counts once HEAD, read again, still names it."""
    check = _PartitionCheck(store, subject, FsckReport(deep, subject.cluster_id))
    check.run()
    return check.report


class _PartitionCheck:
    """One chain beside the listing of its partition. Both rise by offset, so they are merged."""

    def __init__(self, store: ObjectStore, subject: Subject, report: FsckReport) -> None:
        self.report = report
        self._store = store
        self._subject = subject
        self._infos: Iterator[ObjectInfo] = iter(())
        self._held: ObjectInfo | None = None
        self._listing: PartitionListing | None = None
        self._pages: set[str] = set()
        self._manifest: Manifest | None = None
        self._unknown: list[PageRef] = []
        """pages of which nothing says what they listed"""
        self._recovered: list[PageRef] = []
        """pages of higher levels whose segments are known, and the pages in between are not"""
        self._names_all = True
        """whether what the chain does not name is nobody's: False where a newer one may be committed"""
        self._firsts: tuple[ListedManifest, ...] = ()
        """first manifests, of which one may have been committed, where nothing else can have been"""
        self._unjudged = 0
        self._doubts: list[Finding] = []
        self._more_doubts = 0
        """how many beside those, which are as many as a report lists"""
        self._wrong: dict[str, SegmentEntry] = {}
        """segments in which something was found wrong, by key"""

    def run(self) -> None:
        seen = _head(self._store, self._subject.key)
        self._infos = self._store.list(self._subject.where)
        chain = self._chain(self._doubt, self.report.note)
        if chain is not None:
            self._walk(chain)
        else:
            self._without_chain()
        if self._unjudged:
            self.report.note(
                self._subject.where,
                f"{self._unjudged} objects are neither live nor orphans for sure, as what would name them "
                f"cannot be read (firn repair)",
            )
        self._confirm(seen)
        if not self.report.is_clean:
            self.report.error_count += self._more_doubts
        self._spare_committed(seen)

    def _doubt(self, where: str, what: str) -> None:
        if len(self._doubts) < MAX_LISTED:
            self._doubts.append(Finding(where, what))
        else:
            self._more_doubts += 1

    # -- which chain

    def _chain(self, error: ReportError, note: ReportError) -> Chain | None:
        """What HEAD names; what the metadata's copy does where that is newer, or HEAD says nothing."""
        subject, entry = self._subject, self._subject.entry
        chain, problem = None, None
        try:
            chain = open_published(self._store, subject.key)
        except (ObjectNotFound, CorruptionError) as e:
            problem = f"HEAD, or the manifest that it names, cannot be read: {e}"
            error(subject.where, problem)
            self._names_all = False
        if entry is not None and (chain is None or chain.head.version <= entry.version):
            chain = self._compared(chain, problem, entry, error, note)
        elif entry is not None and chain is not None and chain.manifest.end_offset < entry.end_offset:
            note(
                subject.where,
                f"version {chain.head.version} ends before {chain.manifest.end_offset}; {has_words(entry)}",
            )
        if chain is not None:
            check_identity(
                chain, subject.key, cluster_id=subject.cluster_id, topic=subject.topic, error=error
            )
        return chain

    def _compared(
        self,
        chain: Chain | None,
        problem: str | None,
        entry: CatalogEntry,
        error: ReportError,
        note: ReportError,
    ) -> Chain | None:
        """The chain to go by where the metadata's copy has this `entry`, which HEAD is not ahead of.

        HEAD is written right after a commit: it may be one behind, where the committed manifest is there.
        """
        where = self._subject.where
        if chain is not None and chain.key == entry.manifest_key:
            return chain
        version = chain.head.version if chain is not None else NO_VERSION
        if chain is not None and version == entry.version:
            error(where, f"HEAD names {chain.key} under the version of another manifest: {has_words(entry)}")
            self._names_all = False
            return chain
        committed: Chain | None = None
        unreadable = ""
        try:
            committed = open_chain(self._store, entry.manifest_key)
        except (ObjectNotFound, CorruptionError) as e:
            unreadable = f"; {e}"
        if problem is None and committed is not None and version + 1 == entry.version:
            note(where, f"HEAD has yet to be written: {has_words(entry)}")
            return committed
        self._names_all = False
        if problem is None and chain is None:
            error(where, f"HEAD is gone: {has_words(entry)}{unreadable}")
        elif problem is None and chain is not None:
            error(
                where,
                f"rolled back: HEAD names version {version}, which ends before "
                f"{chain.manifest.end_offset}; {has_words(entry)}{unreadable}",
            )
        return committed if committed is not None else chain

    def _without_chain(self) -> None:
        """Nothing says what is live: each segment is checked by itself."""
        listing = self._listed_partition()
        if self._names_all and self._subject.entry is None:
            newest = listing.newest_version
            if newest > NO_VERSION + 1:
                self._doubt(self._subject.where, head_is_gone(newest))
            elif newest:
                self._firsts = tuple(listing.manifests)
                self.report.note(
                    self._subject.where,
                    "no HEAD, and a first manifest: not committed, or HEAD has yet to be written",
                )
            else:
                self.report.note(self._subject.where, "no HEAD: nothing of it was ever published")
                for info in self._infos:
                    self.report.orphan(info.key, info.size)
                return
        self._names_all = False
        for info in self._infos:
            self._unnamed(info)

    # -- the walk

    def _walk(self, chain: Chain) -> None:
        self._manifest = manifest = chain.manifest
        row = PartitionReport(
            manifest.topic,
            str(manifest.topic_id),
            manifest.partition,
            manifest.version,
            manifest.start_offset,
            manifest.end_offset,
        )
        self.report.partitions.append(row)
        load = partial(self._load, manifest)
        for entry in proved_segments(chain, load, self._doubt, partial(self._recover, manifest)):
            row.segments += 1
            row.size_bytes += entry.size
            size = self._listed(entry.key) if entry.owner is None else None
            row.records += self._segment(manifest, entry, size)
        self._rest(chain)

    def _load(self, manifest: Manifest, ref: PageRef) -> ManifestPage:
        self._pages.add(ref.key)
        return open_page(self._store, ref, manifest)

    def _recover(
        self, manifest: Manifest, ref: PageRef, masked: tuple[int, int]
    ) -> tuple[SegmentEntry, ...] | None:
        """The segments of a page that cannot be read, where the listing tells them."""
        try:
            found = recover_page(self._store, self._listed_partition(), manifest, ref, masked).entries
        except CorruptionError as e:
            self.report.note(ref.key, f"cannot be made anew: {e}")
            self._unknown.append(ref)
            return None
        self._recovered.append(ref)
        return found

    def _segment(self, manifest: Manifest, entry: SegmentEntry, size: int | None) -> int:
        """Check one live segment; its records."""
        self.report.segments += 1
        wrong = self._why_wrong(manifest, entry, size)
        if isinstance(wrong, str):
            self._doubt(entry.key, wrong)
            self._wrong[entry.key] = entry
            return 0
        self.report.records += wrong.record_count
        self.report.batches += wrong.batch_count
        return wrong.record_count

    def _why_wrong(self, manifest: Manifest, entry: SegmentEntry, size: int | None) -> Footer | str:
        """The footer of a segment that is as its manifest says, or what is wrong with it."""
        try:
            if size is None:
                size = self._size(entry.key)  # it may have come after its place in the listing was read
            footer = proved_footer(
                self._store, entry, size, cluster_id=manifest.cluster_id, topic=manifest.topic
            )
            if self.report.deep:
                prove_segment(entry, footer, partial(self._read, entry.key))
        except (ObjectNotFound, CorruptionError) as e:
            return str(e)
        return footer

    def _size(self, key: str) -> int | None:
        try:
            return self._store.head(key).size
        except ObjectNotFound:
            return None

    def _listed(self, key: str) -> int | None:
        """Size of `key` in the listing; what the listing has before it is not named by the chain."""
        while True:
            info = self._held if self._held is not None else next(self._infos, None)
            self._held = None
            if info is None:
                return None
            if info.key == key:
                return info.size
            if info.key > key:
                self._held = info
                return None
            self._unnamed(info)

    def _rest(self, chain: Chain) -> None:
        """What the listing has after the last segment: HEAD, manifests, pages and more orphans."""
        held = [self._held] if self._held is not None else []
        for info in (*held, *self._infos):
            parsed = parse_key(info.key)
            is_page = isinstance(parsed, PageKey) and info.key in self._pages
            if isinstance(parsed, HeadKey) or info.key == chain.key or is_page:
                continue
            if isinstance(parsed, ManifestKey) and parsed.version > chain.manifest.version:
                self.report.note(info.key, "newer than HEAD: not committed, or HEAD has yet to be written")
            self._unnamed(info)

    def _unnamed(self, info: ObjectInfo) -> None:
        """An object that no readable document names: an orphan, unless an unreadable one may name it."""
        parsed = parse_key(info.key)
        is_between = isinstance(parsed, PageKey) and any(_may_list(ref, parsed) for ref in self._recovered)
        if isinstance(parsed, HeadKey) or is_between:
            return
        if self._names_all and not any(_may_list(ref, parsed) for ref in self._unknown):
            self.report.orphan(info.key, info.size)
            return
        self._unjudged += 1
        if isinstance(parsed, SegmentKey):
            self._lone_segment(parsed, info.key)

    def _lone_segment(self, parsed: SegmentKey, key: str) -> None:
        """Check a segment by its own footer."""
        try:
            footer = open_footer(self._store, key)
            if self.report.deep:
                prove_segment(entry_of(footer), footer, partial(self._read, key))
        except (ObjectNotFound, CorruptionError) as e:
            if self._may_be_live(parsed, key):
                self._doubt(key, str(e))
            else:
                self.report.note(key, f"{e}; an upload that was never committed")

    def _may_be_live(self, parsed: SegmentKey, key: str) -> bool:
        """Return whether a manifest that may have been committed names the segment, or cannot be read."""
        if not self._firsts:
            return True  # what was committed is not known
        for one in self._firsts:
            try:
                manifest = open_chain(self._store, one.key).manifest
            except (ObjectNotFound, CorruptionError):
                return True
            if _is_named(manifest, partial(self._load, manifest), parsed, key) is not False:
                return True
        return False

    def _read(self, key: str, position: int, length: int) -> Buffer:
        data = self._store.get_range(key, position, length)
        self.report.checked_bytes += len(data)
        return data

    def _listed_partition(self) -> PartitionListing:
        if self._listing is None:
            self._listing = list_partition(self._store, self._subject.key)
        return self._listing

    # -- what was wrong is looked at again

    def _confirm(self, seen: Head | str) -> None:
        """Say what was found wrong, where HEAD still names it."""
        for _ in range(LOOKS):
            if not self._doubts:
                return
            head = _head(self._store, self._subject.key)
            if head == seen:
                self._say(self._doubts)
                return
            seen = head
            self._doubts = self._still_doubted()
        for where, what in self._doubts:
            self.report.note(where, f"not judged, as HEAD moved at each of {LOOKS} looks: {what}")

    def _still_doubted(self) -> list[Finding]:
        """What is left to look at again, as HEAD has moved; says what the chain of now names all the same."""
        found: list[Finding] = []
        chain = self._chain(lambda where, what: found.append(Finding(where, what)), lambda where, what: None)
        if chain is not None:
            load = partial(self._load, chain.manifest)
            if not all(_is_object(one.where) for one in self._doubts):
                told: list[Finding] = []
                for _ in proved_segments(chain, load, lambda *one: told.append(Finding(*one))):
                    pass
                found += [one for one in told if not _is_object(one.where)]
        named: list[Finding] = []
        for one in self._doubts:
            parsed = parse_key(one.where)
            if not isinstance(parsed, (SegmentKey, PageKey)):
                continue
            is_named = _is_named(chain.manifest, load, parsed, one.where) if chain is not None else None
            if is_named:
                named.append(one)
            elif is_named is None:
                found.append(one)
        self._say(named)
        return found

    def _say(self, doubts: Iterable[Finding]) -> None:
        """These are errors, but for segments in which nothing is wrong any more."""
        for where, what in doubts:
            entry = self._wrong.get(where)
            if entry is not None and self._manifest is not None:
                again = self._why_wrong(self._manifest, entry, None)
                if not isinstance(again, str):
                    continue
            self.report.error(where, what)
            for row in self.report.partitions:
                row.errors += 1

    def _spare_committed(self, seen: Head | str) -> None:
        """Take what was committed since the chain was read off the list of orphans."""
        if not self.report.orphans or _head(self._store, self._subject.key) == seen:
            return
        chain = self._chain(lambda where, what: None, lambda where, what: None)
        if chain is None:
            return
        load = partial(self._load, chain.manifest)
        for one in tuple(self.report.orphans):
            parsed = parse_key(one.key)
            if one.key == chain.key or (
                isinstance(parsed, (SegmentKey, PageKey))
                and _is_named(chain.manifest, load, parsed, one.key) is not False
            ):
                self.report.no_orphan(one)


def _head(store: ObjectStore, key: HeadKey) -> Head | str:
    """What HEAD says, or why it says nothing: to tell whether it has changed."""
    try:
        return open_head(store, key)
    except (ObjectNotFound, CorruptionError) as e:
        return str(e)


def _is_object(where: str) -> bool:
    """Whether an error is of a segment or a page, not of the chain as a whole."""
    return isinstance(parse_key(where), (SegmentKey, PageKey))


def _may_list(ref: PageRef, parsed: ParsedKey | None) -> bool:
    """Whether the page that `ref` names may list the object."""
    if not isinstance(parsed, (SegmentKey, PageKey)):
        return False
    if isinstance(parsed, PageKey) and parsed.level >= ref.level:
        return False
    return ref.base_offset <= parsed.base_offset and parsed.last_offset <= ref.last_offset


def _is_named(manifest: Manifest, load: Load, parsed: SegmentKey | PageKey, key: str) -> bool | None:
    """Whether the chain names the object; None where a page that may name it cannot be read."""
    if parsed.last_offset < manifest.start_offset:
        return False
    children: Iterable[Child] = manifest.children
    while True:
        holds = (one for one in children if one.base_offset <= parsed.last_offset <= one.last_offset)
        child = next(holds, None)
        if child is None or child.key == key:
            return child is not None
        if not isinstance(child, PageRef):
            return False
        try:
            children = load(child).children
        except (ObjectNotFound, CorruptionError):
            return None
