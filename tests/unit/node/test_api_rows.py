"""Each API has one row, which says who serves it, and a handler on each listener that its row names."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from service.controller_server.api_table import CONTROLLER_APIS
from service.metadata.features import cluster_features
from service.network.request import RequestContext
from service.node.quorum_control_plane import MEMBER_APIS
from service.node.standalone_apis import alone_apis
from service.partition.metrics import ServingMetrics
from service.serving.api_table import BROKER_APIS
from service.serving.dispatch import Dispatcher
from service.serving.served_api import Served
from service.wire.api import encode_request, request_module
from service.wire.apis import APIS, ApiKey, ListenerType, RequestEffect, served_on

SIDE: Any = None
TABLES: dict[str, tuple[ListenerType, Mapping[int, Served]]] = {
    "a broker alone": (ListenerType.BROKER, alone_apis(SIDE)),
    "a broker in a cluster": (ListenerType.BROKER, MEMBER_APIS),
    "a controller": (ListenerType.CONTROLLER, CONTROLLER_APIS),
}


def test_every_key_has_one_row() -> None:
    assert list(APIS) == [api.key for api in APIS.values()] == list(ApiKey)


def test_rows_say_what_brokers_and_controllers_serve() -> None:
    """ApiMessageType.ListenerType of 4.3.1, without SASL, ACLs, tokens, SCRAM and quotas; and our own."""
    brokers = {
        0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 19, 20, 21, 22, 23, 32, 33, 35, 37, 42, 43, 44, 45,
        46, 47, 55, 57, 60, 61, 64, 68, 69, 74, 75, 80, 81,
    }  # fmt: skip
    controllers = {
        1, 18, 19, 20, 32, 33, 37, 43, 44, 45, 46, 52, 53, 54, 55, 56, 57, 58, 59, 60, 62, 63, 64, 67, 70, 73,
        80, 81, 82, 20000,
    }  # fmt: skip
    assert {api.key for api in served_on(ListenerType.BROKER)} == brokers
    assert {api.key for api in served_on(ListenerType.CONTROLLER)} == controllers


def test_rows_say_what_is_forwarded_and_what_may_be_sent_again() -> None:
    rows = APIS.values()
    forwardable = {19, 20, 33, 37, 43, 44, 45, 46, 55, 57, 64, 67, 80, 81}
    assert {api.key for api in rows if api.is_forwardable} == forwardable
    safe = {33, 45, 46, 55, 64, 67}
    assert {api.key for api in rows if api.is_forwardable and api.is_safe_again} == safe
    idempotent = {33, 45, 62, 63, 64, 67, 70, 73, 20000}
    assert {api.key for api in rows if api.effect is RequestEffect.IDEMPOTENT} == idempotent
    reads = {1, 2, 3, 9, 10, 15, 16, 18, 23, 32, 35, 46, 55, 59, 60, 61, 69, 74, 75}
    assert {api.key for api in rows if api.effect is RequestEffect.READS} == reads


@pytest.mark.parametrize("where", TABLES)
def test_a_listener_has_a_handler_for_each_row_that_names_it(where: str) -> None:
    listener, table = TABLES[where]
    assert set(table) == {api.key for api in served_on(listener)}
    without = Served().handle
    assert not [key for key, row in table.items() if row.handle is without and not (row.late or row.forwards)]


def test_apis_without_a_broker_handler_are_forwarded() -> None:
    for api in served_on(ListenerType.BROKER):
        assert api.key in BROKER_APIS or (api.is_forwardable and api.key in CONTROLLER_APIS), api.name
    assert not [api.name for api in APIS.values() if api.is_forwardable and api.key not in CONTROLLER_APIS]


def test_a_broker_in_a_cluster_forwards_what_its_rows_say() -> None:
    forwarded = {19, 20, 33, 37, 43, 44, 45, 46, 55, 57, 64, 80, 81}
    assert {key for key, row in MEMBER_APIS.items() if row.forwards} == forwarded


def test_each_handler_of_brokers_answers_one_api() -> None:
    assert len({(row.handle, row.late) for row in BROKER_APIS.values()}) == len(BROKER_APIS)


ANSWERS = {
    ("a broker alone", 0): """
        000000fa0000000700000000002800000000000d00010004001200020001000b00030000000d00080002000a00090001000a
        000a00000006000b00000009000c00000004000d00000005000e00000005000f000000060010000000050012000000040013
        0002000700140001000600150000000200160000000500170002000400200001000400210000000200230001000500250000
        0003002a00000002002b00000002002c00000001002d00000001002e00000000002f00000000003700000002003900000002
        003c00000002003d00000000004000000000004400000001004500000001004a00000001004b000000000050000000010051
        00000000
    """,
    ("a broker alone", 4): """
        000001860000000700002900000000000d000001000400120000020001000b0000030000000d0000080002000a0000090001
        000a00000a0000000600000b0000000900000c0000000400000d0000000500000e0000000500000f00000006000010000000
        0500001200000004000013000200070000140001000600001500000002000016000000050000170002000400002000010004
        00002100000002000023000100050000250000000300002a0000000200002b0000000200002c0000000100002d0000000100
        002e0000000000002f00000000000037000000020000390000000200003c0000000200003d00000000000040000000000000
        44000000010000450000000100004a0000000100004b000000000000500000000100005100000000000000000003002a030e
        67726f75702e76657273696f6e0000000100116d657461646174612e76657273696f6e001e001e000108000000000000004d
        022a03116d657461646174612e76657273696f6e001e001e000e67726f75702e76657273696f6e0001000100
    """,
    ("a broker in a cluster", 0): """
        000000fa0000000700000000002800000000000d00010004001200020001000b00030000000d00080002000a00090001000a
        000a00000006000b00000009000c00000004000d00000005000e00000005000f000000060010000000050012000000040013
        0002000700140001000600150000000200160000000500170002000400200001000400210000000200230001000500250000
        0003002a00000002002b00000002002c00000001002d00000001002e00000000002f00000000003700000002003900000002
        003c00000002003d00000000004000000000004400000001004500000001004a00000001004b000000000050000000010051
        00000000
    """,
    ("a broker in a cluster", 4): """
        000001ec0000000700002900000000000d000001000400120000020001000b0000030000000d0000080002000a0000090001
        000a00000a0000000600000b0000000900000c0000000400000d0000000500000e0000000500000f00000006000010000000
        0500001200000004000013000200070000140001000600001500000002000016000000050000170002000400002000010004
        00002100000002000023000100050000250000000300002a0000000200002b0000000200002c0000000100002d0000000100
        002e0000000000002f00000000000037000000020000390000000200003c0000000200003d00000000000040000000000000
        44000000010000450000000100004a0000000100004b000000000000500000000100005100000000000000000003007d0621
        656c696769626c652e6c65616465722e7265706c696361732e76657273696f6e0000000100156669726e2e636174616c6f67
        2e76657273696f6e00000001000e67726f75702e76657273696f6e00000001000e6b726166742e76657273696f6e00000001
        00116d657461646174612e76657273696f6e001e001e000108000000000000004d023d04116d657461646174612e76657273
        696f6e001e001e000e67726f75702e76657273696f6e00010001000e6b726166742e76657273696f6e0001000100
    """,
    ("a controller", 0): """
        000000be0000000700000000001e000100040012001200000004001300020007001400010006002000010004002100000002
        002500000003002b00000002002c00000001002d00000001002e000000000034000000020035000000010036000000010037
        00000002003800020003003900000002003a00000000003b00000001003c00000002003e00000004003f0000000200400000
        00000043000000000046000000000049000000000050000000010051000000000052000000004e2000000000
    """,
    ("a controller", 4): """
        000001a60000000700001f000100040012000012000000040000130002000700001400010006000020000100040000210000
        00020000250000000300002b0000000200002c0000000100002d0000000100002e0000000000003400000002000035000000
        010000360000000100003700000002000038000200030000390000000200003a0000000000003b0000000100003c00000002
        00003e0000000400003f00000002000040000000000000430000000000004600000000000049000000000000500000000100
        00510000000000005200000000004e2000000000000000000003007d0621656c696769626c652e6c65616465722e7265706c
        696361732e76657273696f6e0000000100156669726e2e636174616c6f672e76657273696f6e00000001000e67726f75702e
        76657273696f6e00000001000e6b726166742e76657273696f6e0000000100116d657461646174612e76657273696f6e001e
        001e000108000000000000004d023d04116d657461646174612e76657273696f6e001e001e000e67726f75702e7665727369
        6f6e00010001000e6b726166742e76657273696f6e0001000100
    """,
}
"""By listener and version, as captured when each listener had a list of keys of its own."""


@pytest.mark.parametrize(("where", "version"), ANSWERS)
def test_api_versions_tells_of_the_rows_of_its_listener(where: str, version: int) -> None:
    image = SimpleNamespace(features={"metadata.version": 30, "group.version": 1}, offset=77)
    metadata = SimpleNamespace(image=image, kraft_version=1)
    node: Any = SimpleNamespace(
        image=image,
        metadata=metadata,
        kraft_version=1,
        supported=cluster_features(),
        metrics=ServingMetrics(),
    )
    message = request_module(ApiKey.API_VERSIONS).ApiVersionsRequest(
        client_software_name="x", client_software_version="1"
    )
    frame = memoryview(encode_request(ApiKey.API_VERSIONS, version, 7, "c", message))[4:]
    answer: Any = Dispatcher(node, TABLES[where][1])(RequestContext(1, "192.0.2.9", 5, "L"), frame)
    [data] = answer.parts
    assert bytes(data) == bytes.fromhex(ANSWERS[where, version])
