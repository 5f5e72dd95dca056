"""`chandy top` shows what a driver tells, and says why there is nothing to show."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner, Result

from chandy.coordinator.cli import main
from chandy.coordinator.cli import top as module
from chandy.coordinator.monitor.facts import QueryFacts
from chandy.coordinator.monitor.server import Monitor
from chandy.coordinator.protocol.life import LifePhase, QueryPhase

from .known_facts import FACTS
from .known_pipeline import KnownPipeline
from .served import begin as begin

Begin = Callable[..., Monitor]


def top(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, ["top", *arguments], env=environment)


def test_it_shows_what_the_driver_tells(begin: Begin) -> None:
    monitor = begin()
    monitor.routes.tell(KnownPipeline())
    found = top(f"{monitor.url}/", "--once")
    assert found.exit_code == 0, found.output
    lines = [" ".join(line.split()) for line in found.output.splitlines()]
    assert lines[0] == "p ✓ well 1970-01-01 00:16:40 UTC, generation 3"
    assert (
        "checkpoints: 1 completed, 1 failed, 1 in progress, 2 queued; far: 5 shards, near: 3 shards" in lines
    )
    assert "totals runs 7 1,234 30 2 exactly once" in lines
    assert "delays totals 4.0 kB 900 bytes" in lines
    assert "1 ✓ completed periodic 1970-01-01 00:00:10 UTC 2.00 200 bytes 14 bytes" in lines
    assert "2 ✗ EXPIRED savepoint 1970-01-01 00:00:20 UTC 1.00 0 bytes 0 bytes" in lines
    assert "3 … in progress manual 1970-01-01 00:00:30 UTC 0 bytes 0 bytes" in lines
    assert "1970-01-01 00:00:09 UTC in place <b>boom</b>" in lines


def test_it_says_what_is_wrong_and_takes_nothing_for_markup(begin: Begin) -> None:
    monitor = begin()
    facts = attrs.evolve(
        FACTS,
        life=LifePhase.FAILED,
        because="[red]out of luck[/]",
        queries={"[b]": QueryFacts(QueryPhase.ENDED, 1)},
    )
    monitor.routes.tell(KnownPipeline(read=lambda: facts))
    found = top(monitor.url, "--once").output
    assert "✗ not well" in found
    assert "the pipeline has failed for good: [red]out of luck[/]" in found
    assert "query '[b]' has ended" in found


def test_a_terminal_gets_nothing_that_it_would_obey(begin: Begin) -> None:
    monitor = begin()
    facts = attrs.evolve(
        FACTS,
        life=LifePhase.FAILED,
        because="\x1b]0;t\x07 \x9b2J",
        queries={"\u202eq\r": QueryFacts(QueryPhase.ENDED, 1)},
    )
    monitor.routes.tell(KnownPipeline(read=lambda: facts))
    found = top(monitor.url, "--once").output
    assert r"\x1b]0;t\x07 \x9b2J" in found
    assert r"\u202eq\r" in found
    assert not {"\x1b", "\x07", "\x9b", "\u202e", "\r"} & set(found)


def test_the_token_goes_to_the_address_that_was_given_and_to_no_other(begin: Begin) -> None:
    class Redirecting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", f"{elsewhere.url}/api/v1")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    # It would answer.
    elsewhere = begin()
    elsewhere.routes.tell(KnownPipeline())
    with HTTPServer(("127.0.0.1", 0), Redirecting) as server:
        serving = threading.Thread(target=server.handle_request, daemon=True)
        serving.start()
        found = top(f"http://127.0.0.1:{server.server_port}", "--once", CHANDY_TOKEN="secret")
        serving.join()
    assert found.exit_code == 1
    assert f"one that redirects to {elsewhere.url}/api/v1" in found.output


def test_the_token_is_in_a_file_or_in_the_environment(begin: Begin, tmp_path: Path) -> None:
    monitor = begin(token="secret")
    monitor.routes.tell(KnownPipeline())
    file = tmp_path / "token"
    file.write_text("secret\n")
    assert top(monitor.url, "--once", "--token-file", str(file)).exit_code == 0
    assert top(monitor.url, "--once", CHANDY_TOKEN="secret").exit_code == 0
    refused = top(monitor.url, "--once", CHANDY_TOKEN="wrong")
    assert refused.exit_code == 1
    assert "a token is needed: give --token-file, or set CHANDY_TOKEN" in refused.output


def test_there_is_nothing_to_show(begin: Begin) -> None:
    monitor = begin()
    waiting = top(monitor.url, "--once")
    assert waiting.exit_code == 1
    assert "the driver stands by" in waiting.output
    monitor.close()
    gone = top(monitor.url, "--once")
    assert gone.exit_code == 1
    assert "does not answer as a driver of Chandy" in gone.output
    assert top("driver:9464", "--once").exit_code == 2


def test_it_goes_on_while_the_driver_starts_again(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor, turns = begin(), iter([lambda: monitor.routes.tell(KnownPipeline()), lambda: None])

    def sleep(seconds: float) -> None:
        assert seconds == 0.5
        try:
            next(turns)()
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(module.time, "sleep", sleep)
    found = top(monitor.url, "--every", "0.5")
    assert found.exit_code == 0
    # Without a terminal, the last of what it showed stays.
    assert "✓ well" in found.output
