"""The HTTP API: its answers are what its description says, and each request comes to an end."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import date
from typing import Any

import jsonschema
import openapi_spec_validator
import pytest
from pyspark.sql import Row

from chandy.coordinator.checkpoint import Checkpoint
from chandy.coordinator.errors import (
    ArgumentError,
    NotRescaledError,
    NotSwitchedError,
    PipelineNameError,
    QueryNotRunningError,
)
from chandy.coordinator.monitor import api
from chandy.coordinator.monitor.server import Monitor
from chandy.coordinator.protocol.errors import CheckpointError, DrainError, NotCarriedOutError
from chandy.coordinator.protocol.reasons import Reason

from ...waiting import DEADLINE, eventually
from .described import Begin, described
from .known_pipeline import KnownPipeline
from .served import ask
from .served import begin as begin

TOKEN = {"Authorization": "Bearer secret"}


def told(begin: Begin, known: KnownPipeline | None = None, **settings: str) -> Monitor:
    monitor = begin(**settings)
    monitor.routes.tell(known or KnownPipeline())
    return monitor


def check(description: dict[str, Any], path: str, status: int, text: str, method: str = "get") -> Any:
    """Check an answer against the description, and return it."""
    schema = description["paths"][path][method]["responses"][str(status)]["content"]["application/json"][
        "schema"
    ]
    answer = json.loads(text)
    jsonschema.validate(answer, {**schema, "components": description["components"]})
    return answer


def test_the_description_is_openapi(begin: Begin) -> None:
    openapi_spec_validator.validate(described(begin()))


def test_every_answer_is_as_described(begin: Begin) -> None:
    monitor = told(begin)
    description = described(monitor)
    answers = {}
    for path, methods in description["paths"].items():
        if "get" in methods:
            status, text = ask(monitor, path.replace("{id}", "1").replace("{operator}", "totals?key=1"))
            assert status == 200
            answers[path] = check(description, path, status, text)
    assert len(answers) == 7
    overview = answers["/api/v1"]
    assert (overview["pipeline"], overview["is_ready"], overview["troubles"]) == ("p", True, [])
    files, topic = overview["channels"]
    assert (files["writer"], files["reader"], files["rows_to_publish"]) == ("totals", "alerts", 5)
    assert (files["files"]["files"], topic["partitions"][0]["read"]) == (2, 70)
    query = overview["queries"]["totals"]
    assert (query["life"], query["committed"], query["sinks"]) == ("runs", 7, ["files"])
    checkpoints = answers["/api/v1/checkpoints"]
    assert checkpoints["counts"] == {
        "triggered": 3,
        "in_progress": 1,
        "completed": 1,
        "failed": 1,
        "restored": 1,
    }
    assert [(one["id"], one["status"], one["reason"]) for one in checkpoints["history"]] == [
        (3, "in progress", None),
        (2, "failed", "EXPIRED"),
        (1, "completed", None),
    ]
    assert checkpoints["duration"]["p99"] == 2.0
    assert checkpoints["history"][1]["phases"] == {"planning": 1.0, "collecting": 0.0, "finalizing": 0.0}
    details = answers["/api/v1/checkpoints/{id}"]
    part = details["operators"]["totals"]
    assert [shard["shard"] for shard in part["shards"]] == [0, 1]
    assert (part["start_delay"], part["size"], part["new_bytes"]) == (0.1, 200, 14)
    assert [one["machine"] for one in answers["/api/v1/assignment"]] == ["near", None]
    assert [one["says"] for one in answers["/api/v1/history"]] == ["<i>bang</i>"]
    # What is a name or a message stays JSON, whatever is in it.
    assert [one["cause"] for one in answers["/api/v1/recoveries"]] == ["start", "<b>boom</b>"]


def test_a_checkpoint_that_is_not_known_and_a_driver_that_waits_are_problems(begin: Begin) -> None:
    monitor = told(begin)
    description = described(monitor)
    status, text = ask(monitor, "/api/v1/checkpoints/99")
    assert status == 404
    assert "99" in check(description, "/api/v1/checkpoints/{id}", 404, text)["error"]
    assert ask(monitor, "/api/v1/checkpoints/one")[0] == 404
    waiting = begin()
    for path in ("/api/v1", "/api/v1/recoveries"):
        status, text = ask(waiting, path)
        assert status == 503
        assert "stands by" in check(description, path, 503, text)["error"]


def test_all_of_it_asks_for_the_token(begin: Begin) -> None:
    monitor = told(begin, token="secret")
    paths = described(monitor, **TOKEN)["paths"]
    requests = [(path, method) for path, methods in paths.items() for method in methods]
    assert len(requests) == 13
    for path, method in [*requests, ("/api/v1/openapi.json", "get")]:
        assert ask(monitor, path.replace("{id}", "1"), method.upper())[0] == 401


def fail(error: Exception) -> Callable[[Future[Checkpoint]], None]:
    return lambda future: future.set_exception(error)


def test_nobody_orders_anything_without_a_token(begin: Begin) -> None:
    known = KnownPipeline()
    monitor = told(begin, known)
    status, text = ask(monitor, "/api/v1/checkpoints", "POST")
    assert (status, known.targets) == (403, [])
    assert "set Page.token" in json.loads(text)["error"]


@pytest.mark.parametrize(
    ("path", "body", "target"),
    [
        ("checkpoints", None, "none: a checkpoint"),
        ("savepoints", None, None),
        ("savepoints", b"{}", None),
        ("savepoints", b'{"target": "before-upgrade"}', "before-upgrade"),
    ],
)
def test_a_checkpoint_is_taken_and_waited_for(
    begin: Begin, path: str, body: bytes | None, target: str | None
) -> None:
    known = KnownPipeline()
    monitor = told(begin, known, token="secret")
    status, text = ask(monitor, f"/api/v1/{path}", "POST", body, **TOKEN)
    assert (status, known.targets) == (200, [target])
    answer = check(described(monitor, **TOKEN), f"/api/v1/{path}", 200, text, "post")
    assert (answer["id"], answer["uri"], answer["duration"]) == (3, "file:///s/p", 2.5)


@pytest.mark.parametrize(
    ("outcome", "body", "expected"),
    [
        (fail(CheckpointError(3, Reason.EXPIRED, "slow")), b"", (409, "slow")),
        (fail(ArgumentError("no savepoint", "a place", "none")), b"", (400, "a place")),
        (lambda future: None, b"", (202, "goes on")),
        (lambda future: None, b"no json", (400, "the body is not what")),
        (lambda future: None, b'{"place": "x"}', (400, "place")),
        (lambda future: None, b'{"target": 5}', (400, "target")),
        (lambda future: None, b'{"target": "' + b"x" * 100_000 + b'"}', (413, "65536")),
    ],
    ids=["failed", "refused", "takes long", "no JSON", "unknown field", "wrong type", "too large"],
)
def test_whatever_becomes_of_it_is_an_answer(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, outcome: Any, body: bytes, expected: tuple[int, str]
) -> None:
    monkeypatch.setattr(api, "_WAIT_SECONDS", 0.05)
    monitor = told(begin, KnownPipeline(outcome=outcome), token="secret")
    status, text = ask(monitor, "/api/v1/savepoints", "POST", body, **TOKEN)
    answer = check(described(monitor, **TOKEN), "/api/v1/savepoints", status, text, "post")
    assert status == expected[0]
    assert expected[1] in answer["says" if status == 202 else "error"]


def test_many_who_wait_for_a_checkpoint_keep_nobody_from_reading(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "_WAIT_SECONDS", 300.0)
    futures: list[Future[Checkpoint]] = []
    monitor = told(begin, KnownPipeline(outcome=futures.append), token="secret")
    threads = [
        threading.Thread(target=ask, args=(monitor, "/api/v1/checkpoints", "POST"), kwargs=TOKEN, daemon=True)
        for _ in range(60)
    ]
    for thread in threads:
        thread.start()
    eventually(lambda: len(futures) == 60)
    assert ask(monitor, "/metrics", **TOKEN)[0] == 200
    for future in futures:
        future.cancel()
    for thread in threads:
        thread.join(DEADLINE)


# --- what else is ordered, and state ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("drain", b'{"machine": "near"}', ("near", "10 min")),
        ("drain", b'{"machine": "near", "timeout": "5 s"}', ("near", "5 s")),
        ("rescale", b'{"operator": "totals", "parallelism": 8}', ("totals", 8, "1 min")),
        ("rescale", b'{"operator": "totals", "timeout": "5 s"}', ("totals", None, "5 s")),
        ("switch", b"{}", (None, "3 min", False, "1 h")),
        (
            "switch",
            b'{"shadow": "new", "although_different": true, "keep_old": "0 s"}',
            ("new", "3 min", True, "0 s"),
        ),
        ("stop", b"", (None, False)),
        ("stop", b'{"savepoint": "last", "hand_over": true}', ("last", True)),
    ],
)
def test_what_is_ordered_is_carried_out(
    begin: Begin, path: str, body: bytes, expected: tuple[Any, ...]
) -> None:
    known = KnownPipeline()
    monitor = told(begin, known, token="secret")
    status, text = ask(monitor, f"/api/v1/{path}", "POST", body, **TOKEN)
    assert (status, known.told) == (200, [expected])
    check(described(monitor, **TOKEN), f"/api/v1/{path}", 200, text, "post")


@pytest.mark.parametrize(
    ("path", "body", "error", "expected"),
    [
        ("drain", b"", None, (400, "machine")),
        ("drain", b'{"machine": "x"}', DrainError("x", "a machine", "none"), (409, "a machine")),
        ("rescale", b'{"parallelism": 8}', None, (400, "operator")),
        ("rescale", b'{"operator": "x"}', PipelineNameError("no operator", "a uid", "'x'"), (400, "a uid")),
        ("rescale", b'{"operator": "x"}', NotRescaledError("x", "8 tasks", "a stop"), (409, "a stop")),
        ("switch", b"{}", NotSwitchedError("x", "a shadow", "none"), (409, "a shadow")),
        ("switch", b"{}", NotCarriedOutError("x", "one at a time", "another"), (409, "one at a time")),
        ("stop", b'{"hand_over": "yes"}', None, (400, "hand_over")),
        ("stop", b'{"savepoint": "?"}', ArgumentError("no savepoint", "a place", "none"), (400, "a place")),
        ("stop", b"{}", CheckpointError(3, Reason.EXPIRED, "slow"), (409, "slow")),
        ("checkpoints", b'{"kind": "savepoint"}', None, (400, "kind")),
    ],
)
def test_what_cannot_be_carried_out_is_a_problem(
    begin: Begin, path: str, body: bytes, error: Exception | None, expected: tuple[int, str]
) -> None:
    def act() -> None:
        if error is not None:
            raise error

    monitor = told(begin, KnownPipeline(act=act), token="secret")
    status, text = ask(monitor, f"/api/v1/{path}", "POST", body, **TOKEN)
    answer = check(described(monitor, **TOKEN), f"/api/v1/{path}", status, text, "post")
    assert status == expected[0]
    assert expected[1] in answer["error"]


def test_a_stop_that_ends_the_server_waits_for_no_answer(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "_STOP_SECONDS", 0.05)
    ended = threading.Event()

    def stop() -> None:
        monitor.close()
        ended.set()

    monitor = told(begin, KnownPipeline(act=stop), token="secret")
    status, text = ask(monitor, "/api/v1/stop", "POST", b"", **TOKEN)
    assert status == 202
    assert json.loads(text) == {"says": "it is not complete after 0.05 s, and goes on"}
    assert ended.wait(DEADLINE)


VALUES: dict[str, tuple[Any, Any]] = {
    "nothing": (None, None),
    "value": (
        Row(n=5, at=date(2026, 5, 4), parts=[Row(x=math.nan)]),
        {"n": 5, "at": "2026-05-04", "parts": [{"x": "nan"}]},
    ),
    "list": ([Row(n=1), Row(n=2)], [{"n": 1}, {"n": 2}]),
    "map": ({("a", 1): Row(n=1)}, [{"key": ["a", 1], "value": {"n": 1}}]),
    "bytes": (Row(data=b"x"), {"data": "eA=="}),
}


@pytest.mark.parametrize("kind", VALUES)
def test_state_of_a_key_is_json(begin: Begin, kind: str) -> None:
    given, expected = VALUES[kind]
    known = KnownPipeline(act=lambda: given)
    monitor = told(begin, known)
    status, text = ask(monitor, "/api/v1/state/totals?key=%5B%22a%22,7%5D&state=n")
    answer = check(described(monitor), "/api/v1/state/{operator}", status, text)
    assert (status, answer) == (200, {"operator": "totals", "key": ["a", 7], "value": expected})
    assert known.told == [("totals", ["a", 7], "n")]


@pytest.mark.parametrize(
    ("query", "error", "expected"),
    [
        ("", None, 400),
        ("?key=a", None, 400),
        ("?key=" + "[" * 50_000, None, 400),
        ("?key=7", PipelineNameError("no operator", "one", "none"), 404),
        ("?key=7", ArgumentError("no key", "one", "none"), 400),
        ("?key=7", QueryNotRunningError("totals", "q"), 503),
    ],
)
def test_state_that_cannot_be_read_is_a_problem(
    begin: Begin, query: str, error: Exception | None, expected: int
) -> None:
    def act() -> None:
        assert error is not None
        raise error

    monitor = told(begin, KnownPipeline(act=act))
    status, text = ask(monitor, f"/api/v1/state/totals{query}")
    assert check(described(monitor), "/api/v1/state/{operator}", status, text)["error"]
    assert status == expected
