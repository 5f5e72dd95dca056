"""The page of a pipeline that is only stored: what its store has, as it changes, and never an error for a page."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from click.testing import CliRunner

from chandy.coordinator.cli import main
from chandy.coordinator.monitor.page import view
from chandy.coordinator.monitor.page.render import html
from chandy.coordinator.monitor.stored import StoredPipeline
from chandy.storage import StoreFailedError
from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.journal import Journal, JournalEntry
from chandy.storage.checkpoints.manifest import Handle
from chandy.storage.store import Store

from ...builders import MemoryStore, make_manifest
from ...waiting import DEADLINE
from .described import Begin, described
from .parsed_page import Parsed
from .served import ask
from .served import begin as begin

pytestmark = pytest.mark.processes


class AwayAtTimes(MemoryStore):
    """A store that may be away."""

    is_away = False

    def list(self, prefix: str = "") -> list[str]:
        if self.is_away:
            raise StoreFailedError(self.uri, prefix, "list", "connection refused", transient=True)
        return super().list(prefix)


def fill(store: Store, *ids: int) -> Catalog:
    catalog = Catalog(store)
    for id in ids:
        generation = catalog.take_over("me", 1.0).generation
        shards = (Handle(),) * 3 + (None,)
        catalog.commit(
            make_manifest(id, generation, shards, triggered_at=10.0 * id, completed_at=10.0 * id + 2)
        )
    Journal(store, catalog.newest_generation()).add(
        JournalEntry(at=15.0, what="goes back", says="a disk was full")
    )
    return catalog


def page_of(pipeline: StoredPipeline) -> str:
    made = view.overview(
        "flights",
        pipeline.facts(),
        pipeline.statistics(),
        pipeline.assignment(),
        pipeline.recoveries(),
        pipeline.history(),
    )
    return Parsed(html(made)).text


def test_it_shows_what_the_store_has_and_follows_it() -> None:
    store = AwayAtTimes()
    pipeline = StoredPipeline(fill(store, 1), lambda: 100.0)
    text = page_of(pipeline)
    assert "Stored: no driver was asked: this is what the storage has" in text
    assert "1, 1 min 28 s ago" in text
    assert "1 ✓ completed periodic 1970-01-01 00:00:10 UTC 2.0 s all phases: 2.0 s" in text
    assert "query delays is stored batch 41" in text
    assert "totals of query delays 0 bytes in 4 shards" in text
    assert "goes back a disk was full" in text
    assert pipeline.facts().life is None
    fill(store, 2)
    assert "2, 1 min 18 s ago" in page_of(pipeline)


def test_a_store_that_is_away_is_said_and_what_was_read_is_still_shown() -> None:
    store = AwayAtTimes()
    pipeline = StoredPipeline(fill(store, 1), lambda: 100.0)
    assert pipeline.facts().completed == 1
    store.is_away = True
    text = page_of(pipeline)
    assert "✗ Not well: could not list" in text
    assert "1, 1 min 28 s ago" in text
    store.is_away = False
    assert "Stored: no driver" in page_of(pipeline)
    empty = StoredPipeline(Catalog(AwayAtTimes()), lambda: 100.0)
    assert "No checkpoint has been triggered by this driver." in page_of(empty)


def test_every_request_has_an_answer_and_none_is_an_order(begin: Begin) -> None:
    monitor = begin()
    monitor.routes.tell(StoredPipeline(fill(MemoryStore(), 1), lambda: 100.0))
    paths = [path for path, methods in described(monitor)["paths"].items() if "get" in methods]
    for path in paths:
        status, _ = ask(monitor, path.replace("{id}", "1").replace("{operator}", "totals?key=1"))
        assert status == (503 if "state" in path else 200)
    assert ask(monitor, "/metrics")[0] == 200
    assert ask(monitor, "/readyz") == (503, "no driver was asked: this is what the storage has\n")
    assert ask(monitor, "/checkpoints/1")[0] == 200
    assert ask(monitor, "/api/v1/checkpoints", "POST")[0] == 403
    told = begin(token="secret")
    told.routes.tell(StoredPipeline(Catalog(MemoryStore()), lambda: 100.0))
    status, text = ask(told, "/api/v1/checkpoints", "POST", authorization="Bearer secret")
    assert (status, "no driver is asked" in text) == (503, True)
    # So the page offers none.
    assert "<form" not in ask(told, "/", authorization="Bearer secret")[1]


def _heed_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_it_is_ended(tmp_path: Path, end: signal.Signals) -> None:
    fill(LocalStore(tmp_path / "flights"), 1)
    command = [
        sys.executable,
        "-c",
        "from chandy.coordinator.cli import main; main()",
        "ui",
        str(tmp_path),
        "--port",
        "0",
    ]
    # As from a terminal: in the background, a shell has its commands ignore SIGINT.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=_heed_interrupts) as serving:
        assert serving.stdout is not None
        found = re.fullmatch(r"flights is shown at (http://127\.0\.0\.1:\d+)\n", serving.stdout.readline())
        assert found
        with urlopen(found[1], timeout=DEADLINE) as answer:
            assert "Stored:" in answer.read().decode()
        serving.send_signal(end)
        assert serving.wait(DEADLINE) == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "found no pipeline"),
        (["storage", "--pipeline", "c"], "the name of one that is there"),
    ],
)
def test_a_storage_that_cannot_be_shown_is_said(tmp_path: Path, arguments: list[str], says: str) -> None:
    for name in ("a", "b"):
        fill(LocalStore(tmp_path / "storage" / name), 1)
    done = CliRunner().invoke(main, ["ui", str(tmp_path / arguments[0]), *arguments[1:]])
    assert done.exit_code != 0
    assert says in done.output
