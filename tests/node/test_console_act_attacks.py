"""Attacks on the console's acts: foreign forms, ended sessions, replays, odd bodies, names like paths."""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self
from urllib.parse import quote, urlencode
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import ConfigError, RequestError
from service.base.rate import RateLimit
from service.client.admin_models import PartitionInfo, TopicInfo
from service.console.web import guard
from service.console.web.acts import change_desk, routes
from service.console.web.kafka_desk import KafkaDesk
from service.console.web.settings import ConsoleSettings
from tests.support.certificates import Authority
from tests.support.console_thread import ConsoleThread
from tests.support.processes import free_port, wait_until
from tests.support.signed_in import FORM, TOKEN, SignedIn, ask, confirmation, hidden


class FakeCluster:
    """A cluster with a topic of any name, which notes what it is told to change."""

    done: list[tuple[Any, ...]]
    cluster_id = "c"
    topic_id = UUID(int=1)
    refuses: Exception | None = None
    hangs: threading.Event | None = None

    def __init__(self, bootstrap: str, *_: object) -> None:
        self.first_address = bootstrap

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is open."""

    def describe(self) -> Any:
        return SimpleNamespace(cluster_id=FakeCluster.cluster_id)

    def topics(self, names: list[str]) -> list[TopicInfo]:
        if FakeCluster.hangs is not None:
            FakeCluster.hangs.wait(10)
        return [TopicInfo(names[0], FakeCluster.topic_id, (PartitionInfo(0, 1, (1,), (1,)),))]

    def delete_topic(self, name: str, topic_id: UUID) -> None:
        if FakeCluster.refuses is not None:
            raise FakeCluster.refuses
        FakeCluster.done.append(("deleted", name, topic_id))


@pytest.fixture(scope="module")
def console() -> Iterator[ConsoleThread]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(change_desk, "ChangingCluster", FakeCluster)
        # What else the console asks finds nobody, and acts would hear of it.
        patch.setattr(KafkaDesk, "_refuse_in_vain", lambda _: None)
        with ConsoleThread(f"127.0.0.1:{free_port()}", token=TOKEN, allow_changes=True) as running:
            yield running


@pytest.fixture
def somebody(console: ConsoleThread, monkeypatch: pytest.MonkeyPatch) -> SignedIn:
    for name, value in (("done", []), ("cluster_id", "c"), ("topic_id", UUID(int=1))):
        monkeypatch.setattr(FakeCluster, name, value, raising=False)
    for name in ("refuses", "hangs"):
        monkeypatch.setattr(FakeCluster, name, None)
    return SignedIn(console.url)


DELETE = "/change/delete-topic"


def body(session: SignedIn, **fields: str) -> str:
    """Return a form as it would be sent to delete a topic."""
    return urlencode({"csrf": hidden(session.get(DELETE), "csrf"), "topic": "orders", **fields})


FOREIGN: tuple[dict[str, str | None], ...] = (
    {"Origin": "http://evil.example", "Sec_Fetch_Site": "cross-site"},
    {"Origin": "http://evil.example", "Sec_Fetch_Site": None},
    {"Origin": "null", "Sec_Fetch_Site": None},
    {"Origin": None, "Sec_Fetch_Site": None},
    {"Origin": None, "Sec_Fetch_Site": "same-site"},
    {"Origin": None, "Sec_Fetch_Site": None, "Referer": "http://evil.example/"},
    {"Sec_Fetch_Site": "cross-site"},
)


def test_a_form_of_another_site_does_nothing(somebody: SignedIn) -> None:
    shown = somebody.preview("delete-topic", topic="orders")
    for headers in FOREIGN:
        for path, sent in (
            (DELETE, body(somebody)),
            ("/change/confirm", urlencode(confirmation(shown, "orders"))),
        ):
            assert somebody.ask("POST", path, sent, **headers).status == 403
    assert FakeCluster.done == []
    referer = {"Origin": None, "Sec_Fetch_Site": None, "Referer": f"{somebody.url}{DELETE}"}
    sent = urlencode(confirmation(shown, "orders"))
    assert somebody.ask("POST", "/change/confirm", sent, **referer).status == 303
    assert FakeCluster.done == [("deleted", "orders", UUID(int=1))]


def test_a_form_needs_the_token_of_its_own_session(somebody: SignedIn, console: ConsoleThread) -> None:
    other = SignedIn(console.url)
    shown = somebody.preview("delete-topic", topic="orders")
    theirs = hidden(other.get(DELETE), "csrf")
    for token in ("", "x", theirs, theirs.upper(), hidden(shown, "csrf")[:-1], "é"):
        for path, fields in (
            (DELETE, {"topic": "orders"}),
            ("/change/confirm", confirmation(shown, "orders")),
        ):
            answer = somebody.ask("POST", path, urlencode(fields | {"csrf": token}))
            assert (answer.status, "the form is of another session" in answer.text) == (403, True)
        without = urlencode({"topic": "orders"})
        assert somebody.ask("POST", DELETE, without).status == 403
    # Nor is a preview anybody else's.
    found = other.post("/change/confirm", confirmation(shown, "orders") | {"csrf": theirs})
    assert (found.status, "No such preview" in found.text) == (404, True)
    plan = hidden(shown, "plan")
    assert other.get(f"/change/result?id={plan}").status == 404
    assert FakeCluster.done == []


def test_a_confirmation_that_is_sent_again_does_nothing_more(somebody: SignedIn) -> None:
    shown = somebody.preview("delete-topic", topic="orders")
    wrong = somebody.confirm(shown, "order")
    assert (wrong.status, "What was typed is not what stands there." in wrong.text) == (400, True)
    assert FakeCluster.done == []
    first = somebody.confirm(wrong, "orders")
    for typed in ("orders", "something else"):
        assert somebody.confirm(shown, typed).text == first.text
    assert len(FakeCluster.done) == 1
    # Going back to the preview's address only shows a form.
    assert somebody.get(DELETE).status == 200


def test_an_ended_session_does_nothing(somebody: SignedIn, console: ConsoleThread) -> None:
    shown = somebody.preview("delete-topic", topic="orders")
    sent = urlencode(confirmation(shown, "orders"))
    assert somebody.ask("POST", "/logout", "").status == 303
    answer = somebody.ask("POST", "/change/confirm", sent)
    assert (answer.status, "Nothing was done: the session has ended." in answer.text) == (401, True)
    assert (
        ask(console.url, "POST", "/change/confirm", sent, Content_Type=FORM, Origin=console.url).status == 401
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guard, "SESSION_MS", 0)
        late = SignedIn(console.url)
    assert late.ask("GET", DELETE).status == 401
    assert late.ask("POST", DELETE, urlencode({"topic": "orders"})).status == 401
    assert FakeCluster.done == []


def test_nothing_is_done_by_get_or_another_method(somebody: SignedIn) -> None:
    shown = somebody.preview("delete-topic", topic="orders")
    query = urlencode(confirmation(shown, "orders"))
    for method, status in (("GET", 405), ("HEAD", 405), ("PUT", 405), ("DELETE", 405), ("OPTIONS", 405)):
        answer = somebody.ask(method, f"/change/confirm?{query}")
        assert answer.status == status
        assert "POST" in answer.headers["allow"]
    assert somebody.ask("POST", "/change/result", query).status == 405
    assert somebody.ask("POST", "/topics", query).status == 405
    assert somebody.ask("POST", f"/change/confirm?{query}", "").status == 400
    assert FakeCluster.done == []


def test_the_token_is_no_part_of_an_address(somebody: SignedIn, console: ConsoleThread) -> None:
    for path in (f"{DELETE}?token={TOKEN}", f"/login?token={TOKEN}&to={DELETE}"):
        assert ask(console.url, "GET", path).status == 401
    signed = ask(console.url, "POST", "/login", urlencode({"token": TOKEN, "to": DELETE}), Content_Type=FORM)
    assert (signed.status, signed.headers["location"]) == (303, DELETE)
    assert "SameSite=Strict" in signed.headers["set-cookie"]
    assert "HttpOnly" in signed.headers["set-cookie"]
    for to in ("/change/confirm", "/change/result", "//evil.example/change/delete-topic"):
        sent = urlencode({"token": TOKEN, "to": to})
        assert ask(console.url, "POST", "/login", sent, Content_Type=FORM).headers["location"] == "/"
    shown = somebody.preview("delete-topic", topic="orders")
    done = somebody.ask("POST", "/change/confirm", urlencode(confirmation(shown, "orders")))
    assert re.fullmatch(r"/change/result\?id=[0-9a-f]{64}", done.headers["location"])
    assert somebody.cookie.partition("=")[2] not in done.headers["location"] + shown.source
    assert hidden(shown, "csrf") not in done.headers["location"]


def test_no_page_of_acts_is_framed_or_tells_others_where_it_was(somebody: SignedIn) -> None:
    shown = somebody.preview("delete-topic", topic="orders")
    result = f"/change/result?id={hidden(shown, 'plan')}"
    for answer in (
        somebody.ask("GET", DELETE),
        somebody.ask("GET", result),
        somebody.ask("POST", DELETE, body(somebody)),
        somebody.ask("POST", DELETE, body(somebody, csrf="x")),
        somebody.ask("POST", "/change/confirm", urlencode(confirmation(shown, "no"))),
        somebody.ask("POST", "/change/confirm", urlencode(confirmation(shown, "orders"))),
    ):
        policy = answer.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in policy
        assert "form-action 'self'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cache-control"] == "no-store"
        # Not "no-referrer": with that a browser does not tell where a form comes from.
        assert answer.headers["referrer-policy"] == "same-origin"


def raw(url: str, request: bytes) -> bytes:
    """Send bytes as they are; return what comes back until the connection ends, or nothing more comes."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(request)
        connection.settimeout(2)
        found = b""
        try:
            while piece := connection.recv(65_536):
                found += piece
        except TimeoutError:
            return found
        return found


def test_bodies_are_limited_before_they_are_read(
    somebody: SignedIn, console: ConsoleThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "BODY_S", 0.1)
    head = (
        f"POST {DELETE} HTTP/1.1\r\nHost: {console.url.removeprefix('http://')}\r\n"
        f"Cookie: {somebody.cookie}\r\nOrigin: {console.url}\r\n"
    )
    kind = f"Content-Type: {FORM}\r\n"
    for headers, status in (
        (f"{kind}Content-Length: 65537\r\n", 413),
        (f"{kind}Content-Length: 99999999999\r\n", 413),
        (f"{kind}Transfer-Encoding: chunked\r\n", 411),
        (f"{kind}Content-Length: 10\r\n", 408),
        (f"{kind}", 411),
        ("Content-Type: text/plain\r\nContent-Length: 3\r\n", 415),
        ("Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 3\r\n", 415),
        (f"Content-Type: {FORM}; charset=utf-16\r\nContent-Length: 3\r\n", 415),
        # Two lengths, or a length and pieces: what one end takes for a body is a request for the other.
        (f"{kind}Content-Length: 3\r\nContent-Length: 4\r\n", 400),
        (f"{kind}Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", 400),
        (f"{kind}Content-Length: +3\r\n", 400),
        (f"{kind}Content-Length : 3\r\n", 400),
    ):
        found = raw(console.url, f"{head}{headers}Connection: close\r\n\r\n".encode())
        assert found.split(b" ", 2)[1:2] == [str(status).encode()], (headers, found[:200])
    assert FakeCluster.done == []


@pytest.mark.parametrize(
    "sent",
    [
        "",
        "a",
        "&".join(f"f{n}=1" for n in range(17)),
        "csrf=1&csrf=2",
        "topic=%ff",
        "topic=\xff",
        "csrf=%ed%a0%80",
    ],
)
def test_bodies_that_are_no_form_are_refused(somebody: SignedIn, sent: str) -> None:
    assert somebody.ask("POST", DELETE, sent.encode("latin-1")).status == 400


def test_fields_that_a_form_does_not_have_and_long_ones_are_refused(somebody: SignedIn) -> None:
    for fields, said in (
        ({"topic": "a", "partitions": "3"}, "The form has a field that is not of it"),
        ({"topic": "x" * 250}, "Topic: 250 characters are too many, 249 are taken"),
        ({"topic": ""}, "Topic is missing"),
        ({}, "Topic is missing"),
    ):
        found = somebody.preview("delete-topic", **fields)
        assert (found.status, said in found.text) == (400, True)


@pytest.mark.parametrize(
    "name",
    ["../../etc/passwd", "/static/console.js", "//evil.example/", "a?b=c&d#e", "javascript:alert(1)", ".."],
)
def test_a_name_that_looks_like_a_path_is_a_name(somebody: SignedIn, name: str) -> None:
    assert (
        f'value="{name.replace("&", "&amp;")}"'
        in somebody.get(f"{DELETE}?topic={quote(name, safe='')}").source
    )
    result = somebody.act("delete-topic", name, topic=name)
    assert f"The topic {name} is deleted." in result.text
    assert FakeCluster.done == [("deleted", name, UUID(int=1))]
    assert not [
        one
        for one in re.findall(r'(?:href|action)="([^"]*)"', result.source)
        if not one.startswith(("/", "#"))
    ]
    for path in (
        f"/change/{quote(name, safe='')}",
        "/change/",
        "/change",
        "/change/confirm/x",
        "/change/../change/x",
    ):
        assert somebody.ask("GET", path).status in (400, 404)


def test_a_name_that_a_browsers_form_would_change_is_not_filled_in(somebody: SignedIn) -> None:
    """A field of one line loses its line ends: `billing` would go where `billing\\n` was looked at."""
    for name, shown in (("billing%0A", r"billing\n"), ("a%0D", r"a\r"), ("a%00b", r"a\x00b")):
        for form, field in (("delete-group", "group"), ("delete-topic", "topic")):
            found = somebody.get(f"/change/{form}?{field}={name}")
            assert f"a browser's form cannot carry {shown}." in found.text
            assert f'name="{field}" value=""' in found.source
    assert "retention.ms=1\nb=2" in somebody.get("/change/topic-settings?set=retention.ms%3D1%0Ab%3D2").source


def test_an_act_that_would_do_something_else_by_now_is_not_done(somebody: SignedIn) -> None:
    shown = somebody.preview("delete-topic", topic="orders")
    FakeCluster.topic_id = UUID(int=2)
    changed = somebody.confirm(shown, "orders")
    assert "it is not any more as the preview showed it" in changed.text
    assert FakeCluster.done == []
    assert "The topic orders is deleted." in somebody.confirm(changed, "orders").text
    assert FakeCluster.done == [("deleted", "orders", UUID(int=2))]
    shown = somebody.preview("delete-topic", topic="orders")
    FakeCluster.cluster_id = "d"
    assert "the brokers are those of another cluster now: d" in somebody.confirm(shown, "orders").text
    assert len(FakeCluster.done) == 1


def test_refusals_and_lost_answers_are_told_in_words_and_in_the_log(
    somebody: SignedIn, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "firn.audit")
    code = ErrorCode.topic_authorization_failed
    for error, said, outcome in (
        (
            RequestError(code, "topic orders: TOPIC_AUTHORIZATION_FAILED"),
            "not done: topic orders: this user may not do that with the topic (TOPIC_AUTHORIZATION_FAILED)",
            "refused (TOPIC_AUTHORIZATION_FAILED)",
        ),
        (
            TimeoutError("b:1 did not answer in time"),
            "No answer: it may have been done.",
            "unknown (TimeoutError)",
        ),
        (
            ConnectionResetError("closed"),
            "No answer: it may have been done.",
            "unknown (ConnectionResetError)",
        ),
        # The broker answers, and does not know itself: its controller's answer was lost.
        (
            RequestError(ErrorCode.request_timed_out, "topic orders: REQUEST_TIMED_OUT"),
            "No answer: it may have been done.",
            "unknown (REQUEST_TIMED_OUT)",
        ),
        (
            RequestError(ErrorCode.not_enough_replicas_after_append, "orders-0: x"),
            "No answer: it may have been done.",
            "unknown (NOT_ENOUGH_REPLICAS_AFTER_APPEND)",
        ),
        (ZeroDivisionError("secret"), "a bug of the console: see its log", "unknown (a bug)"),
    ):
        FakeCluster.refuses = error
        caplog.clear()
        result = somebody.act("delete-topic", "orders", topic="orders")
        assert said in result.text
        (record,) = [one for one in caplog.records if one.name == "firn.audit"]
        line = record.audit  # type: ignore[attr-defined]
        assert line == {
            "event": "topics-deleted",
            "count": 1,
            "items": [f"orders [id={UUID(int=1)}]"],
            "outcome": outcome,
            "session": line["session"],
            "host": "127.0.0.1",
            "request": line["request"],
        }
        text = record.getMessage()
        assert text == (
            f"topics deleted (1): orders [id={UUID(int=1)}]; {outcome};"
            f" by session {line['session']} from 127.0.0.1, request {line['request']}"
        )
        assert f"Request {line['request']} in the log" in result.text
        for secret in (TOKEN, somebody.cookie.partition("=")[2]):
            assert secret not in text


def test_a_cluster_that_hangs_holds_no_page(somebody: SignedIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_desk, "WAIT_S", 0.1)
    shown = somebody.preview("delete-topic", topic="orders")
    FakeCluster.hangs = release = threading.Event()
    began = time.monotonic()
    found = somebody.preview("delete-topic", topic="orders")
    assert (found.status, "the cluster has not answered within 0.1 s" in found.text) == (503, True)
    result = somebody.confirm(shown, "orders")
    assert "It is under way." in result.text
    assert somebody.confirm(shown, "orders").text == result.text
    for _ in range(2):
        somebody.preview("delete-topic", topic="orders")
    many = somebody.preview("delete-topic", topic="orders")
    assert (many.status, "there are many acts at the moment" in many.text) == (429, True)
    assert time.monotonic() - began < 5
    release.set()
    path = f"/change/result?id={hidden(shown, 'plan')}"
    wait_until("it is done", lambda: "The topic orders is deleted." in somebody.get(path).text)
    assert len(FakeCluster.done) == 1


def test_an_act_that_is_under_way_when_the_console_ends_is_told_as_unknown(
    somebody: SignedIn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "firn.audit")
    monkeypatch.setattr(change_desk, "WAIT_S", 0.1)
    release = threading.Event()
    with ConsoleThread(f"127.0.0.1:{free_port()}", token=TOKEN, allow_changes=True) as ending:
        shown = (session := SignedIn(ending.url)).preview("delete-topic", topic="orders")
        FakeCluster.hangs = release
        assert "It is under way." in session.confirm(shown, "orders").text
    release.set()
    (record,) = [one for one in caplog.records if one.name == "firn.audit"]
    assert record.audit["outcome"] == "unknown (the console ended)"  # type: ignore[attr-defined]


def test_acts_and_previews_come_at_a_limited_rate(
    somebody: SignedIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_desk, "ACTS", RateLimit(1, 0))
    shown = somebody.preview("delete-topic", topic="orders")
    for _ in range(3):
        answer = somebody.ask("POST", "/change/confirm", urlencode(confirmation(shown, "orders")))
        if answer.status != 303:
            break
        shown = somebody.preview("delete-topic", topic="orders")
    assert (answer.status, answer.headers["retry-after"].isdigit()) == (429, True)
    monkeypatch.setattr(change_desk, "ACTS", RateLimit(1000, 1))
    assert "The topic orders is deleted." in somebody.confirm(shown, "orders").text


def test_a_program_with_the_token_needs_a_form_of_a_session_too(
    somebody: SignedIn, console: ConsoleThread
) -> None:
    bearer: dict[str, str | None] = {"Authorization": f"Bearer {TOKEN}", "Origin": console.url}
    sent = urlencode({"topic": "orders"})
    answer = ask(console.url, "POST", DELETE, sent, Content_Type=FORM, **bearer)
    assert (answer.status, "Open the form first" in answer.text) == (403, True)
    answer = ask(console.url, "GET", DELETE, **bearer)
    assert (answer.status, "firn_session=" in answer.headers["set-cookie"]) == (200, True)
    assert FakeCluster.done == []


def test_a_console_with_https_takes_no_form_of_a_page_without(somebody: SignedIn, tmp_path: Path) -> None:
    """Somebody in the middle can serve a page for the same name and port, but not over HTTPS."""
    certificate = Authority().issue().write(tmp_path / "console.pem")
    bootstrap = f"127.0.0.1:{free_port()}"
    with ConsoleThread(bootstrap, token=TOKEN, allow_changes=True, certificate=certificate) as sealed:
        session = SignedIn(sealed.url)
        shown = session.preview("delete-topic", topic="orders")
        sent = urlencode(confirmation(shown, "orders"))
        plain = sealed.url.replace("https://", "http://")
        assert session.ask("POST", "/change/confirm", sent, Origin=plain).status == 403
        assert FakeCluster.done == []
        assert "The topic orders is deleted." in session.confirm(shown, "orders").text


def test_a_console_that_reads_has_no_form_and_no_address_of_an_act() -> None:
    paths = [f"/change/{name}" for name in (*(form.name for form in routes.FORMS), "confirm", "result")]
    with ConsoleThread(f"127.0.0.1:{free_port()}", token=TOKEN) as reading:
        somebody = SignedIn(reading.url)
        for path in paths:
            assert somebody.ask("GET", path).status == 404
            assert somebody.ask("POST", path, "x=1").status == 405
        for path in ("/", "/topics", "/topic?name=a", "/groups", "/group?id=a", "/configuration", "/records"):
            source = somebody.get(path).source
            assert re.findall(r'<form[^>]*method="post"[^>]*action="([^"]*)"', source) == ["/logout"]
            assert "/change/" not in source


def test_changes_are_not_allowed_without_a_token() -> None:
    ConsoleSettings("b:1", token=TOKEN, allow_changes=True).check()
    for token in (None, "short"):
        with pytest.raises(ConfigError, match="token"):
            ConsoleSettings("b:1", token=token, allow_changes=True).check()
