"""Check of one partition in the bucket: its chain, each segment, and the listing's other objects.

A node may commit meanwhile: what HEAD named is then replaced, no longer listed, and deleted after a grace. So
an error counts only where a HEAD that was read *after* it was found still names the object. That is checked a
bounded number of times, each of which reads HEAD, the manifest and a page per level, and not the segments.

Where a page cannot be read its segments come from the listing (`lost_page`). Where the listing does not
decide which they are, all segments in its range are checked one by one, and none of them is called an orphan.
The same holds where HEAD or the manifest cannot be read, unless the metadata's copy tells the manifest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple

from service.base.errors import CorruptionError
from service.base.types import Buffer
from service.inspect.committed import describe_entry
from service.inspect.fsck_report import MAX_LISTED, FsckFinding, FsckReport, PartitionReport
from service.inspect.rewrite_check import check_rewrites
from service.inspect.transaction_check import TransactionCheck
from service.inspect.unnamed_objects import CopyFacts
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
    read_section,
)
from service.remote.reading.partition_listing import ListedManifest, PartitionListing, list_partition
from service.remote.reading.segment_proof import prove_segment
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectInfo, ObjectStore

HEAD_READS: Final = 4
"""How often HEAD is read again, at most, to confirm errors."""


class Subject(NamedTuple):
    """The partition to check, and what is known of it; None: unknown.

    `entry` is the partition's in the newest copy of the metadata. It may be older than HEAD, and is newer
    than HEAD by at most one commit. `copied` is what the copy has of it beside.
    """

    key: HeadKey
    topic: str | None = None
    owners: frozenset[str] | None = None
    """the prefix's cluster and its ancestors"""
    entry: CatalogEntry | None = None
    copied: CopyFacts = CopyFacts()

    @property
    def where(self) -> str:
        return partition_prefix(*self.key)


def check_partition(store: ObjectStore, subject: Subject, *, deep: bool) -> FsckReport:
    """Check one partition. An error counts once HEAD, read again, still names its object."""
    check = _PartitionCheck(store, subject, FsckReport(deep))
    check.run()
    return check.report


class _PartitionCheck:
    """The check of one chain beside its partition's listing. Both ascend by offset, so they are merged."""

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
        """unreadable pages whose segments are unknown"""
        self._recovered: list[PageRef] = []
        """unreadable pages whose segments are known; lower pages between them are not"""
        self._names_all = True
        """True if an object that the chain does not name is an orphan; False: a newer chain may exist"""
        self._firsts: tuple[ListedManifest, ...] = ()
        """manifests of the first version, where only one of these can have been committed"""
        self._unjudged = 0
        self._awaited = 0
        """objects that may have been made for a rewrite under way"""
        self._doubts: list[FsckFinding] = []
        self._more_doubts = 0
        """number of doubts beyond those that a report lists"""
        self._wrong: dict[str, SegmentEntry] = {}
        """segments with errors, by key"""
        self._transactions = TransactionCheck()

    def run(self) -> None:
        head = _head(self._store, self._subject.key)
        self._infos = self._store.list(self._subject.where)
        chain = self._chain(self._doubt, self.report.note)
        if chain is not None:
            self._walk(chain)
        else:
            self._without_chain()
        if self._unjudged:
            self.report.note(
                self._subject.where,
                f"{self._unjudged} objects may be live or orphans, as the documents that would name them "
                f"cannot be read (firn repair)",
            )
        if (intent := self._subject.copied.intent) is not None and self._awaited:
            self.report.note(
                self._subject.where,
                f"{self._awaited} objects may be of the rewrite {intent.rewrite_id} of offsets "
                f"{intent.base_offset} to {intent.last_offset}, which is under way",
            )
        self._confirm(head)
        if not self.report.is_clean:
            self.report.error_count += self._more_doubts
        self._spare_committed(head)

    def _doubt(self, where: str, what: str) -> None:
        if len(self._doubts) < MAX_LISTED:
            self._doubts.append(FsckFinding(where, what))
        else:
            self._more_doubts += 1

    # -- which chain

    def _chain(self, error: ReportError, note: ReportError) -> Chain | None:
        """Return the chain that HEAD names, or the metadata copy's where it is newer or HEAD unreadable."""
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
                f"version {chain.head.version} ends before {chain.manifest.end_offset}; "
                f"{describe_entry(entry)}",
            )
        if chain is not None:
            check_identity(chain, subject.key, owners=subject.owners, topic=subject.topic, error=error)
        return chain

    def _compared(
        self,
        chain: Chain | None,
        problem: str | None,
        entry: CatalogEntry,
        error: ReportError,
        note: ReportError,
    ) -> Chain | None:
        """Return the chain to check where the metadata's copy has this `entry`, and HEAD is not ahead of it.

        HEAD is written right after a commit: it may be one behind, where the committed manifest exists.
        """
        where = self._subject.where
        if chain is not None and chain.key == entry.manifest_key:
            return chain
        version = chain.head.version if chain is not None else NO_VERSION
        if chain is not None and version == entry.version:
            other = describe_entry(entry)
            error(where, f"HEAD names {chain.key} under the version of another manifest: {other}")
            self._names_all = False
            return chain
        committed: Chain | None = None
        unreadable = ""
        try:
            committed = open_chain(self._store, entry.manifest_key)
        except (ObjectNotFound, CorruptionError) as e:
            unreadable = f"; {e}"
        if problem is None and committed is not None and version + 1 == entry.version:
            note(where, f"HEAD has yet to be written: {describe_entry(entry)}")
            return committed
        self._names_all = False
        if problem is None and chain is None:
            error(where, f"HEAD is gone: {describe_entry(entry)}{unreadable}")
        elif problem is None and chain is not None:
            error(
                where,
                f"rolled back: HEAD names version {version}, which ends before "
                f"{chain.manifest.end_offset}; {describe_entry(entry)}{unreadable}",
            )
        return committed if committed is not None else chain

    def _without_chain(self) -> None:
        """Check each segment by itself, as nothing tells which are live."""
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
                self.report.note(self._subject.where, "no HEAD: no manifest of it was ever published")
                for info in self._infos:
                    self.report.orphan(info.key, info.size)
                return
        self._names_all = False
        for info in self._infos:
            self._unnamed(info)

    # -- the walk along the chain

    def _walk(self, chain: Chain) -> None:
        self._manifest = manifest = chain.manifest
        row = PartitionReport(
            manifest.topic,
            str(manifest.topic_id),
            manifest.partition,
            manifest.version,
            manifest.start_offset,
            manifest.end_offset,
            last_epoch=manifest.last_epoch,
        )
        self.report.partitions.append(row)
        load = partial(self._load, manifest)
        is_rewritten = False
        for entry in proved_segments(chain, load, self._doubt, partial(self._recover, manifest)):
            is_rewritten = is_rewritten or entry.generation > 0
            self.report.rewritten += entry.generation > 0
            row.segments += 1
            row.size_bytes += entry.size
            size = self._listed(entry.key) if entry.owner is None else None
            row.records += self._segment(manifest, entry, size)
        if is_rewritten:
            check_rewrites(self._store, manifest, load, self._doubt)
        self._walk_rest(chain)

    def _load(self, manifest: Manifest, ref: PageRef) -> ManifestPage:
        self._pages.add(ref.key)
        return open_page(self._store, ref, manifest)

    def _recover(
        self, manifest: Manifest, ref: PageRef, masked: tuple[int, int]
    ) -> tuple[SegmentEntry, ...] | None:
        """Return the segments of an unreadable page, where the listing tells them."""
        try:
            found = recover_page(self._store, self._listed_partition(), manifest, ref, masked).entries
        except CorruptionError as e:
            self.report.note(ref.key, f"cannot be made again: {e}")
            self._unknown.append(ref)
            return None
        self._recovered.append(ref)
        return found

    def _segment(self, manifest: Manifest, entry: SegmentEntry, size: int | None) -> int:
        """Check one live segment; return the number of its records."""
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
        """Return the footer of a segment that matches its manifest entry, or what is wrong with it."""
        try:
            if size is None:
                size = self._size(entry.key)  # it may have been written after the listing passed its place
            owners = {manifest.cluster_id, *(self._subject.owners or ())}
            footer = proved_footer(self._store, entry, size, owners=owners, topic=manifest.topic)
            if self.report.deep:
                self._prove(entry, footer)
        except (ObjectNotFound, CorruptionError) as e:
            return str(e)
        return footer

    def _prove(self, entry: SegmentEntry, footer: Footer) -> None:
        """Read all of a segment: its batches, and whether its transactions are theirs (invariant X12)."""

        check = self._transactions
        check.begin(footer, lambda name: read_section(self._store, entry.key, footer.sections[name]))
        prove_segment(entry, footer, partial(self._read, entry.key), on_pieces=check.add)
        check.finish()

    def _size(self, key: str) -> int | None:
        try:
            return self._store.head(key).size
        except ObjectNotFound:
            return None

    def _listed(self, key: str) -> int | None:
        """Return the size of `key` in the listing; objects listed before it are not named by the chain."""
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

    def _walk_rest(self, chain: Chain) -> None:
        """Check the listing after the last segment: HEAD, manifests, pages and more orphans."""
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
        """Report an object that no readable document names: an orphan, unless an unreadable one may."""
        parsed = parse_key(info.key)
        is_between = isinstance(parsed, PageKey) and any(_may_list(ref, parsed) for ref in self._recovered)
        if isinstance(parsed, HeadKey) or is_between:
            return
        if self._names_all and self._subject.copied.is_awaited(parsed):
            self._awaited += 1
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
            return True  # the committed manifest is unknown
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

    # -- confirmation of errors

    def _confirm(self, known_head: Head | str) -> None:
        """Report the doubts as errors, where a HEAD read later than `known_head` still names the objects."""
        for _ in range(HEAD_READS):
            if not self._doubts:
                return
            head = _head(self._store, self._subject.key)
            if head == known_head:
                self._report_errors(self._doubts)
                return
            known_head = head
            self._doubts = self._recheck()
        for where, what in self._doubts:
            self.report.note(where, f"not judged, as HEAD moved at each of {HEAD_READS} reads: {what}")

    def _recheck(self) -> list[FsckFinding]:
        """Compare the doubts with the new chain, as HEAD has moved; return those still undecided.

        Doubts about objects that the new chain names are reported as errors.
        """
        found: list[FsckFinding] = []
        chain = self._chain(
            lambda where, what: found.append(FsckFinding(where, what)), lambda where, what: None
        )
        if chain is not None:
            load = partial(self._load, chain.manifest)
            if not all(_is_object(one.where) for one in self._doubts):
                errors: list[FsckFinding] = []
                for _ in proved_segments(chain, load, lambda *one: errors.append(FsckFinding(*one))):
                    pass
                found += [one for one in errors if not _is_object(one.where)]
        named: list[FsckFinding] = []
        for one in self._doubts:
            parsed = parse_key(one.where)
            if not isinstance(parsed, (SegmentKey, PageKey)):
                continue
            is_named = _is_named(chain.manifest, load, parsed, one.where) if chain is not None else None
            if is_named:
                named.append(one)
            elif is_named is None:
                found.append(one)
        self._report_errors(named)
        return found

    def _report_errors(self, doubts: Iterable[FsckFinding]) -> None:
        """Report the doubts as errors, except segments that are whole by now."""
        for where, what in doubts:
            entry = self._wrong.get(where)
            if entry is not None and self._manifest is not None:
                again = self._why_wrong(self._manifest, entry, None)
                if not isinstance(again, str):
                    continue
            self.report.error(where, what)
            for row in self.report.partitions:
                row.errors += 1

    def _spare_committed(self, known_head: Head | str) -> None:
        """Take objects that were committed since the chain was read off the list of orphans."""
        if not self.report.orphans or _head(self._store, self._subject.key) == known_head:
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
    """Return HEAD, or why it cannot be read; used to detect changes."""
    try:
        return open_head(store, key)
    except (ObjectNotFound, CorruptionError) as e:
        return str(e)


def _is_object(where: str) -> bool:
    """Return whether an error is of a segment or a page, not of the chain as a whole."""
    return isinstance(parse_key(where), (SegmentKey, PageKey))


def _may_list(ref: PageRef, parsed: ParsedKey | None) -> bool:
    """Return whether the page that `ref` names may list the object."""
    if not isinstance(parsed, (SegmentKey, PageKey)):
        return False
    if isinstance(parsed, PageKey) and parsed.level >= ref.level:
        return False
    return ref.base_offset <= parsed.base_offset and parsed.last_offset <= ref.last_offset


def _is_named(manifest: Manifest, load: Load, parsed: SegmentKey | PageKey, key: str) -> bool | None:
    """Return whether the chain names the object; None where a page that may name it cannot be read."""
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
