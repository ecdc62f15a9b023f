"""Cuts, `CUT` and ancestors: what is written is read, and nothing else is."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from crc32c import crc32c

from service.base.errors import CorruptionError, UnknownVersion
from service.remote.format.ancestors import Ancestor
from service.remote.format.cut_codec import (
    Cut,
    CutRef,
    Cuts,
    ErasureRef,
    PartitionCut,
    TailRef,
    decode_cut,
    decode_cuts,
    encode_cut,
    encode_cuts,
    open_cut,
)
from service.remote.format.documents import seal
from service.remote.format.manifest_codec import (
    ClusterFile,
    decode_cluster,
    decode_topics,
    encode_cluster,
    encode_topics,
)
from service.remote.format.metadata_ref import MetadataRef
from service.remote.format.stamp import Stamp, Writer

TOPIC = UUID(int=1)
ONE = UUID(int=7)
STAMP = Stamp(1_700_000_100_000, Writer(2, UUID(int=5), "firn test"))
METADATA = MetadataRef(f"metadata/00000000000000000064-0000000003-{ONE}.checkpoint", 64, 3, 3702, 77)
TAIL = TailRef(f"tail/00000000000000000008-00-0000000002-{ONE}.tail", 500, 400, 9)
CUT = Cut(
    "cluster",
    9,
    1_700_000_100_000,
    True,
    METADATA,
    80,
    3,
    (TAIL,),
    {
        TOPIC: (
            PartitionCut(4, 10, 200, 190, 200, 150, 4, 12, False),
            PartitionCut(-1, 0, 0, 0, 0, 0, -1, 0, True),
        ),
        UUID(int=2): (PartitionCut(0, 0, 5, 5, 5, 0, 0, 0, False),),
    },
    STAMP,
)


def reference(number: int, is_exact: bool = True, is_complete: bool = True) -> CutRef:
    return CutRef(number, f"cut/{number:020d}-{ONE}.json.gz", 300, 5, 1000 * number, is_exact, is_complete)


CUTS = Cuts(
    "cluster",
    (reference(1), reference(2), reference(3, is_exact=False), reference(4, is_complete=False)),
    (ErasureRef(ONE, f"erase/{ONE}.json.gz", 10, 3),),
    STAMP,
)


def test_a_cut_is_read_as_it_was_written() -> None:
    data = encode_cut(CUT)
    assert decode_cut(data) == CUT
    ref = CutRef(9, f"cut/{9:020d}-{ONE}.json.gz", len(data), crc32c(data), CUT.at_ms, True, True)
    assert open_cut(data, ref) == CUT
    for other in (ref._replace(at_ms=1), ref._replace(crc32c=1), ref._replace(is_exact=False)):
        with pytest.raises(CorruptionError):
            open_cut(data, other)


def test_a_cut_says_which_one_it_follows() -> None:
    for follows in (0, 8, None):
        assert decode_cut(encode_cut(CUT._replace(follows=follows))).follows == follows
    for follows in (-1, 9):
        with pytest.raises(ValueError, match=f"follows: {follows} is not an integer from 0 to 8"):
            encode_cut(CUT._replace(follows=follows))


def test_the_cuts_that_are_kept_are_told_by_their_kind() -> None:
    found = decode_cuts(encode_cuts(CUTS))
    assert found == CUTS
    assert found.newest.cut == 4
    assert found.complete is not None
    assert found.complete.cut == 3
    assert found.exact is not None
    assert found.exact.cut == 2
    none = Cuts("cluster", (reference(4, is_complete=False),))
    assert decode_cuts(encode_cuts(none)).complete is None
    assert none.exact is None


def test_every_flipped_bit_and_every_other_length_of_both_is_noticed() -> None:
    for data, decode in ((encode_cut(CUT), decode_cut), (encode_cuts(CUTS), decode_cuts)):
        for bit in range(8 * len(data)):
            damaged = bytearray(data)
            damaged[bit // 8] ^= 1 << bit % 8
            # Some bits of gzip mean nothing to who inflates it; CUT has a checksum of all of them.
            try:
                found = decode(bytes(damaged))
            except UnknownVersion:
                pytest.fail(f"bit {bit} makes another version of it")
            except CorruptionError:
                continue
            assert decode is decode_cut
            assert found == CUT
        for length in range(len(data)):
            with pytest.raises(CorruptionError):
                decode(data[:length])
        with pytest.raises(CorruptionError):
            decode(data + b" ")


def written(document: dict[str, Any]) -> bytes:
    packer = zlib.compressobj(wbits=31)
    return packer.compress(json.dumps(document).encode()) + packer.flush()


def inflated() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(zlib.decompress(encode_cut(CUT), wbits=31))
    return found


def _column(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        document["topics"][str(TOPIC)][name][0] = value

    return change


def test_members_and_columns_of_tomorrow_are_passed_over() -> None:
    document = inflated()
    document["another"] = 1
    document["topics"][str(TOPIC)]["another"] = ["x"]
    document["tails"][0].append("x")
    assert decode_cut(written(document)) == CUT


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda d: d.update(format="firn-head"), id="other format"),
        pytest.param(lambda d: d.update(format_version=3), id="later version"),
        pytest.param(lambda d: d.update(cut=0), id="cut 0"),
        pytest.param(lambda d: d.update(is_exact=1), id="1 for true"),
        pytest.param(lambda d: d.update(metadata_end=63), id="metadata that ends before its snapshot"),
        pytest.param(lambda d: d.update(metadata_epoch=2), id="metadata of an older epoch than its snapshot"),
        pytest.param(lambda d: d["metadata"].update(key="metadata/x"), id="no key of metadata"),
        pytest.param(lambda d: d["tails"].append(d["tails"][0]), id="a tail twice"),
        pytest.param(lambda d: d["tails"].append(["tail/x", 2, 1, 0]), id="no key of a tail"),
        pytest.param(lambda d: d.update(cut=7), id="a tail of a later cut"),
        pytest.param(lambda d: d["tails"][0].__setitem__(2, 500), id="a footer behind the tail"),
        pytest.param(lambda d: d["tails"][0].__setitem__(1, True), id="a size of true"),
        pytest.param(lambda d: d["topics"].update({"x": d["topics"][str(TOPIC)]}), id="no topic id"),
        pytest.param(lambda d: d["topics"][str(TOPIC)].pop("waits"), id="a column is missing"),
        pytest.param(lambda d: d["topics"][str(TOPIC)]["end"].pop(), id="columns of other lengths"),
        pytest.param(_column("waits", 0), id="0 for false"),
        pytest.param(_column("end", 189), id="stable beyond the end"),
        pytest.param(_column("start", 191), id="start beyond stable"),
        pytest.param(_column("saved_high", 201), id="more at level 1 than at all"),
        pytest.param(_column("leader_epoch", -2), id="leader epoch -2"),
        pytest.param(_column("end", 1 << 53), id="an offset beyond the format"),
    ],
)
def test_cuts_that_cannot_be_are_refused(change: Callable[[dict[str, Any]], None]) -> None:
    document = inflated()
    assert decode_cut(written(document)) == CUT
    change(document)
    with pytest.raises(CorruptionError):
        decode_cut(written(document))


def test_cuts_that_readers_would_refuse_are_not_written() -> None:
    with pytest.raises(ValueError, match="tail"):
        encode_cut(CUT._replace(cut=7))
    for kept in ((), (reference(2), reference(1)), (reference(1), reference(1))):
        with pytest.raises(ValueError, match="CUT names"):
            encode_cuts(Cuts("cluster", kept))


def test_as_many_cuts_as_are_kept_fit() -> None:
    far = (1 << 53) - 300
    kept = tuple(reference(n)._replace(at_ms=far, stored_size=1 << 24) for n in range(far, far + 256))
    erasures = tuple(
        ErasureRef(UUID(int=n), f"erase/{UUID(int=n)}.json.gz", 1 << 24, 1 << 31) for n in range(64)
    )
    data = encode_cuts(Cuts("c" * 40, kept, erasures, STAMP))
    assert len(data) < 65_536
    with pytest.raises(ValueError, match="256"):
        encode_cuts(Cuts("c", (reference(1), *kept)))


def test_a_later_version_of_the_list_of_cuts_is_told_from_damage() -> None:
    fields = json.loads(encode_cuts(CUTS))
    del fields["document_crc32c"]
    with pytest.raises(UnknownVersion):
        decode_cuts(seal({**fields, "format_version": 3}))


def test_ancestors_are_kept_in_both_documents_and_passed_over_by_who_knows_none() -> None:
    ancestors = (Ancestor("older", 9, 1000), Ancestor("oldest", 4, 500))
    cluster = ClusterFile("cluster", STAMP, ancestors=ancestors)
    assert decode_cluster(encode_cluster(cluster)) == cluster
    assert decode_topics(encode_topics("cluster", 4, (), ancestors=ancestors)).ancestors == ancestors
    assert b"ancestors" not in encode_cluster(cluster._replace(ancestors=()))
    fields = json.loads(encode_cluster(cluster))
    del fields["document_crc32c"]
    for row in ({"cluster_id": "a", "until_cut": 0, "claimed_ms": 1}, fields["ancestors"][0], 7):
        with pytest.raises(CorruptionError):
            decode_cluster(seal({**fields, "ancestors": [*fields["ancestors"], row]}))
    with pytest.raises(ValueError, match="64"):
        encode_cluster(cluster._replace(ancestors=tuple(Ancestor(str(n), 1, 1) for n in range(65))))


@pytest.mark.parametrize(
    "change",
    [
        {"key": f"erase/{UUID(int=8)}.json.gz"},
        {"key": f"erase/{ONE}.json"},
        {"key": "erase/"},
        {"key": f"cut/{1:020d}-{ONE}.json.gz"},
        {"id": str(UUID(int=8))},
        {"id": None},
        {"stored_size": 0},
        {"stored_size": (1 << 24) + 1},
        {"crc32c": -1},
        {"crc32c": 1 << 32},
    ],
    ids=str,
)
def test_an_order_to_erase_is_named_by_its_own_key(change: dict[str, Any]) -> None:
    document = json.loads(encode_cuts(CUTS))
    del document["document_crc32c"]
    decode_cuts(seal(document))
    document["erasures"][0].update(change)
    with pytest.raises(CorruptionError):
        decode_cuts(seal(document))
    document = json.loads(encode_cuts(CUTS))
    del document["document_crc32c"]
    document["erasures"] *= 65
    with pytest.raises(CorruptionError):
        decode_cuts(seal(document))
