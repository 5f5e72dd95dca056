"""The server in the driver: who gets an answer, and that it always comes to an end."""

from __future__ import annotations

import base64
import contextlib
import gzip
import http.client
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from chandy.coordinator.config import CheckpointConfig
from chandy.coordinator.errors import ConfigError, SetupError
from chandy.coordinator.listening import Page, address
from chandy.coordinator.monitor import connections
from chandy.coordinator.monitor.facts import Facts
from chandy.coordinator.monitor.metrics import CONTENT_TYPE
from chandy.coordinator.monitor.pipeline_routes import PipelineRoutes
from chandy.coordinator.monitor.server import Monitor

from ...waiting import DEADLINE
from .known_pipeline import KnownPipeline
from .served import ask
from .served import begin as begin


def test_a_driver_answers_before_it_leads_and_once_it_does(begin: Callable[..., Monitor]) -> None:
    monitor = begin()
    assert ask(monitor, "/healthz") == (200, "ok\n")
    assert ask(monitor, "/readyz") == (503, "the driver stands by, or takes the pipeline over\n")
    assert 'chandy_driver_state{pipeline="p",state="stands by"} 1.0' in ask(monitor, "/metrics")[1]
    monitor.routes.tell(KnownPipeline())
    assert ask(monitor, "/readyz") == (200, "ready\n")
    status, text = ask(monitor, "/metrics")
    assert status == 200
    assert 'chandy_query_committed_batch{pipeline="p",query="totals"} 7.0' in text
    assert CONTENT_TYPE.startswith("text/plain; version=")


def test_a_token_is_asked_for_but_not_to_know_that_the_process_answers(begin: Callable[..., Monitor]) -> None:
    monitor = begin(token="secret")
    assert ask(monitor, "/healthz")[0] == 200
    wrong = (
        "Bearer secre",
        "secret",
        "Bearer \xe9",
        "Bearer secret2",
        "Token secret",
        basic("secret", "x"),
        basic("secret", ""),
    )
    assert ask(monitor, "/readyz") == (503, "the token is needed to be told why\n")
    assert "stands by" in ask(monitor, "/readyz", Authorization="Bearer secret")[1]
    for path in ("/metrics", "/", "/checkpoints/1", "/api/v1"):
        assert ask(monitor, path)[0] == 401
        for given in (*wrong, "Basic c2VjcmV0", "Basic ?", "Basic"):
            assert ask(monitor, path, Authorization=given)[0] == 401
    assert ask(monitor, "/metrics", Authorization="Bearer secret")[0] == 200
    # The scheme's case says nothing: https://www.rfc-editor.org/rfc/rfc7235#section-2.1.
    assert ask(monitor, "/metrics", Authorization="bearer secret")[0] == 200


def test_a_token_for_reading_reads_and_gives_no_orders(begin: Callable[..., Monitor]) -> None:
    monitor = begin(token="secret", read_token="look")
    monitor.routes.tell(pipeline := KnownPipeline())
    for path in ("/", "/checkpoints/1", "/metrics", "/api/v1", "/api/v1/assignment", "/api/v1/openapi.json"):
        for token in ("secret", "look"):
            assert ask(monitor, path, Authorization=f"Bearer {token}")[0] == 200
        assert ask(monitor, path, Authorization="Bearer loo")[0] == 401
    for order in ("checkpoints", "savepoints", "drain", "rescale", "switch", "stop"):
        answer = ask(monitor, f"/api/v1/{order}", "POST", b"{}", Authorization="Bearer look")
        assert answer == (403, "this token may only read\n")
    assert pipeline.told == pipeline.targets == []
    assert ask(monitor, "/api/v1/checkpoints", "POST", Authorization="Bearer secret")[0] == 200


def test_nobody_gives_orders_where_there_is_a_token_for_reading_alone(begin: Callable[..., Monitor]) -> None:
    monitor = begin(read_token="look")
    monitor.routes.tell(KnownPipeline())
    assert ask(monitor, "/metrics")[0] == 401
    assert ask(monitor, "/metrics", Authorization="Bearer look")[0] == 200
    assert ask(monitor, "/api/v1/stop", "POST", b"{}")[0] == 401
    assert ask(monitor, "/api/v1/stop", "POST", b"{}", Authorization="Bearer look")[0] == 403


def test_one_token_is_not_for_both() -> None:
    with pytest.raises(ConfigError, match=r"Page\.read_token"):
        Page("127.0.0.1:0", token="same", read_token="same")


def test_a_token_may_have_any_letters(begin: Callable[..., Monitor]) -> None:
    monitor = begin(token="p\u00e4ss")
    assert ask(monitor, "/metrics", Authorization="Bearer p\u00e4ss".encode().decode("latin-1"))[0] == 200
    assert ask(monitor, "/metrics", Authorization="Bearer p\u00e4ss")[0] == 401


@pytest.mark.parametrize("token", ["secret\n", " secret", "sec\x1bret", "", "  ", 7, b"secret"])
def test_a_token_that_no_request_can_carry_is_refused_and_not_shown(token: Any) -> None:
    with pytest.raises(ConfigError, match=r"Page\.token.*strip") as refused:
        Page("127.0.0.1:0", token=token)
    assert "secret" not in str(refused.value)


def basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def test_a_browser_gives_the_token_as_a_password_and_may_only_read(begin: Callable[..., Monitor]) -> None:
    monitor = begin(token="s:\u00e9cret")
    monitor.routes.tell(pipeline := KnownPipeline())
    given = basic("anybody", "s:\u00e9cret")
    for path in ("/", "/checkpoints/1", "/metrics", "/api/v1"):
        assert ask(monitor, path, Authorization=given)[0] == 200
    assert ask(monitor, "/api/v1/checkpoints", "POST", b"", Authorization=given)[0] == 401
    assert pipeline.targets == []


def test_people_get_pages(begin: Callable[..., Monitor]) -> None:
    monitor = begin()
    status, text = ask(monitor, "/")
    assert status == 200
    assert "the driver stands by" in text
    assert ask(monitor, "/checkpoints/1")[0] == 404
    monitor.routes.tell(KnownPipeline())
    assert "the latest checkpoint completed 10 s ago" in ask(monitor, "/")[1]
    assert "Checkpoint 1" in ask(monitor, "/checkpoints/1")[1]
    for unknown in ("4", "x", "-1", "1/2"):
        assert ask(monitor, f"/checkpoints/{unknown}")[0] == 404


def test_a_client_that_takes_compressed_answers_gets_them(begin: Callable[..., Monitor]) -> None:
    monitor = begin()
    monitor.routes.tell(KnownPipeline())
    with contextlib.closing(http.client.HTTPConnection(urlsplit(monitor.url).netloc)) as connection:
        connection.request("GET", "/", headers={"Accept-Encoding": "gzip"})
        answer = connection.getresponse()
        packed = answer.read()
    assert answer.headers["Content-Encoding"] == "gzip"
    page = gzip.decompress(packed)
    assert b"</html>" in page
    assert len(packed) < len(page) / 2


def test_without_a_token_a_page_of_elsewhere_does_not_reach_it_by_a_name(
    begin: Callable[..., Monitor],
) -> None:
    monitor = begin()
    assert ask(monitor, "/metrics", Host="evil.example.com")[0] == 400
    assert ask(monitor, "/metrics", Host="localhost:9")[0] == 200


@pytest.mark.parametrize("path", ["/checkpoints", "/metrics/x", "/../etc/passwd", "//healthz"])
def test_there_is_nothing_else(begin: Callable[..., Monitor], path: str) -> None:
    assert ask(begin(), path)[0] == 404


def test_nobody_changes_anything_and_a_large_request_is_not_read(begin: Callable[..., Monitor]) -> None:
    monitor = begin()
    assert ask(monitor, "/metrics", "POST")[0] == 405
    assert ask(monitor, "/healthz", "GET", b"x" * 1_000_000)[0] == 200


def connect(monitor: Monitor, sends: bytes) -> socket.socket:
    url = urlsplit(monitor.url)
    made = socket.create_connection((str(url.hostname), url.port or 0), DEADLINE)
    made.sendall(sends)
    return made


def read_to_the_end(connection: socket.socket) -> None:
    """Read until the other side closes, with or without having read all that was sent."""
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(1000):
            pass


HALF = b"GET /metrics HTTP/1.1\r\nHost: "


@pytest.mark.parametrize("sends", [b"", HALF])
def test_clients_that_ask_nothing_keep_nobody_from_an_answer_nor_from_closing(
    begin: Callable[..., Monitor], sends: bytes
) -> None:
    monitor = begin(token="secret")
    slow = [connect(monitor, sends) for _ in range(150)]
    assert ask(monitor, "/healthz") == (200, "ok\n")
    assert ask(monitor, "/metrics", Authorization="Bearer secret")[0] == 200
    # The oldest one has made room.
    read_to_the_end(slow[0])
    monitor.close()
    for one in slow:
        one.close()
    with pytest.raises(ConnectionError):
        ask(monitor, "/healthz")


@pytest.mark.parametrize(
    "sends",
    [b"", HALF, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" + HALF],
    ids=["none", "half", "one"],
)
def test_a_connection_without_a_request_ends(
    begin: Callable[..., Monitor], monkeypatch: pytest.MonkeyPatch, sends: bytes
) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.05)
    with connect(begin(), sends) as waiting:
        read_to_the_end(waiting)


def test_an_error_while_it_answers_is_an_answer(begin: Callable[..., Monitor]) -> None:
    monitor = begin()

    def broken() -> Facts:
        raise RuntimeError("a bug")

    monitor.routes.tell(KnownPipeline(read=broken))
    assert ask(monitor, "/metrics")[0] == 500
    assert ask(monitor, "/healthz")[0] == 200


def test_a_port_that_is_taken_is_said_at_once(begin: Callable[..., Monitor]) -> None:
    taken = urlsplit(begin().url).port or 0
    with pytest.raises(SetupError, match=f"cannot be served on 127.0.0.1:{taken}"):
        Monitor.begin(PipelineRoutes("p"), Page(f"127.0.0.1:{taken}"))


def test_files_for_tls_that_cannot_be_used_are_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "wrong.pem").write_text("no certificate")
    for file in ("wrong.pem", "missing.pem"):
        with pytest.raises(SetupError, match="files for TLS"):
            Monitor.begin(PipelineRoutes("p"), Page("127.0.0.1:0", certificate=str(tmp_path / file)))


def test_it_answers_by_tls(begin: Callable[..., Monitor], tmp_path: Path) -> None:
    certificate, key = certificate_in(tmp_path)
    monitor = begin(certificate=str(certificate), key=str(key))
    assert monitor.url.startswith("https://")
    trusting = ssl.create_default_context(cafile=str(certificate))
    trusting.check_hostname = False
    connection = http.client.HTTPSConnection(urlsplit(monitor.url).netloc, timeout=DEADLINE, context=trusting)
    connection.request("GET", "/healthz")
    assert connection.getresponse().status == 200
    connection.close()


def certificate_in(folder: Path) -> tuple[Path, Path]:
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "driver")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = folder / "certificate.pem", folder / "key.pem"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    files[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    )
    return files


# --- settings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("127.0.0.1:9464", ("127.0.0.1", 9464)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:80", ("::1", 80)),
        ("db.example.com:65535", ("db.example.com", 65535)),
        ("127.0.0.1", None),
        ("127.0.0.1:65536", None),
        ("::1:80", None),
        (":80", None),
        ("http://127.0.0.1:80", None),
        ("a b:80", None),
    ],
)
def test_an_address_has_a_host_and_a_port(text: str, found: tuple[str, int] | None) -> None:
    assert address(text) == found


@pytest.mark.parametrize("listen", ["9464", "", 9464, "127.0.0.1", "http://x:1"])
def test_what_is_no_address_is_refused(listen: str) -> None:
    with pytest.raises(ConfigError, match=r"Page\.address"):
        Page(listen)


@pytest.mark.parametrize("listen", ["0.0.0.0:9464", "[::]:9464", "driver.example.com:9464", "10.0.0.1:1"])
def test_an_address_that_others_reach_needs_a_token(listen: str) -> None:
    with pytest.raises(ConfigError, match="a token beside it"):
        Page(listen)
    for settings in ({"token": "secret"}, {"read_token": "secret"}):
        page = Page(listen, **settings)
        assert "secret" not in repr(CheckpointConfig(page=page))
        assert "secret" not in repr(page)


@pytest.mark.parametrize("listen", ["127.0.0.1:9464", "[::1]:0", "localhost:1", "127.1.2.3:5"])
def test_an_address_of_this_machine_alone_needs_none(listen: str) -> None:
    assert Page(listen).is_loopback
