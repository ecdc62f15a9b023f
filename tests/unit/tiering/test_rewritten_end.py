"""End of what rewrites have made of an archive, for the comparison with a disk of before."""

from __future__ import annotations

from pathlib import Path

from service.remote.reading.reader import RemoteReader
from tests.support.world import WORLD
from tests.unit.tiering.test_bucket_work import Work, archived, give, order_of, tell


def test_a_reader_knows_how_far_an_archive_is_written_anew(tmp_path: Path) -> None:
    world = archived(tmp_path)
    (replica,) = world.replicas

    def ends(*offsets: int) -> list[int]:
        entry, reader = world.entry(replica), RemoteReader(world.bucket, WORLD, threads=1)
        assert entry is not None
        try:
            return [reader.rewritten_end(replica.tip, entry.manifest_key, one).result(20) for one in offsets]
        finally:
            reader.close()

    assert ends(0) == [-1]
    give(world, order_of(b"e"))
    tell(world, 1)
    Work(world).round()
    assert ends(0, 7, 8) == [8, 8, -1], "the object of the record with that key"
