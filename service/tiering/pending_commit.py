"""Commit of one partition that is not settled yet: commit it, have HEAD name it, report it to the partition.

Only the catalog tells what is committed. Everything before the commit may be lost or repeated: it leaves
orphans, never damage. Everything after it is repeated until it succeeds, here or after the next start. Owned
by the event loop.
"""

from __future__ import annotations

from service.base.types import TopicIdPartition
from service.remote.catalog import CatalogResult
from service.tiering.archive_attempt import CommitRefused, LeaderTerm, ManifestProposal, TieringContext
from service.tiering.lifecycle import SegmentState, move
from service.tiering.partition_head import PartitionHead
from service.tiering.steps import CommitStep


class PendingCommit:
    """The last proposal of a partition, until its outcome is known and HEAD names what it committed."""

    def __init__(
        self, tip: TopicIdPartition, context: TieringContext, term: LeaderTerm, head: PartitionHead
    ) -> None:
        self.proposal: ManifestProposal | None = None
        self._tip = tip
        self._context = context
        self._term = term
        self._head = head

    async def settle(self, proposal: ManifestProposal) -> None:
        """Commit `proposal`, again where the outcome is unknown, and publish it. Raises `CommitRefused`."""
        context, tip = self._context, self._tip
        self.proposal = proposal
        self._term.check()
        if proposal.state is SegmentState.PROPOSED:
            result = await context.commits.commit(proposal.commit)
            if result is not CatalogResult.COMMITTED:
                self._refused(proposal, result)
            proposal.state = move(proposal.state, SegmentState.COMMITTED)
            context.probe(CommitStep.COMMITTED, tip)
        entry = proposal.commit.entry
        self._head.committed(entry)
        is_newest = self._head.entry() == entry
        if is_newest:
            await self._head.publish(entry, proposal.chain)
            context.probe(CommitStep.HEAD_WRITTEN, tip)
        # Otherwise another leader has committed a later version meanwhile, and HEAD is its to write.
        proposal.state = move(proposal.state, SegmentState.PUBLISHED)
        self.drop()
        if is_newest:
            context.eraser.schedule(tip, proposal.retired, entry)
        metrics = context.metrics
        metrics.manifests_written += 1
        metrics.segments_copied += len(proposal.copied)
        metrics.bytes_copied += sum(segment.size for segment in proposal.copied)
        metrics.segments_dropped += proposal.dropped_segments
        metrics.bytes_dropped += proposal.dropped_bytes

    def drop(self) -> None:
        """Release the keys of the proposal, if there is one; the chain tells whether they are live."""
        if self.proposal is not None:
            proposal, self.proposal = self.proposal, None
            self._context.eraser.release(proposal.written)
            proposal.ended(proposal.state)

    def _refused(self, proposal: ManifestProposal, result: CatalogResult) -> None:
        """Drop the proposal and raise `CommitRefused`.

        Nothing is deleted here: an earlier call whose answer was lost may have committed, and later versions
        may name these objects. The sweeper decides by the chain.
        """
        proposal.state = move(proposal.state, SegmentState.ABANDONED)
        self.drop()
        if result is CatalogResult.FENCED:
            self._context.metrics.fenced_commits += 1
        raise CommitRefused(f"commit of {proposal.commit.entry.manifest_key}: {result.value}")
