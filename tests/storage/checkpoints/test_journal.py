"""The journal: a ring for each generation, which no damage and no other generation takes along."""

from __future__ import annotations

from pathlib import Path

import pytest

from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints import journal as module
from chandy.storage.checkpoints.journal import Journal, JournalEntry, read_journal
from chandy.storage.checkpoints.layout import journal_key


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "p")


def entry(number: int) -> JournalEntry:
    return JournalEntry(at=float(number), what="fails", says=f"for the {number}. time")


def test_all_generations_are_read_in_their_order(store: LocalStore) -> None:
    assert read_journal(store) == ()
    second, first = Journal(store, 10), Journal(store, 9)
    # The clock of the later driver is behind.
    second.add(entry(1))
    first.add(entry(5))
    first.add(entry(6))
    assert [(one.generation, one.at) for one in read_journal(store)] == [(9, 5.0), (9, 6.0), (10, 1.0)]
    assert read_journal(store)[-1].says == "for the 1. time"


def test_the_latest_entries_and_the_newest_generations_stay(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ENTRIES", 3)
    monkeypatch.setattr(module, "GENERATIONS", 2)
    (store_key := "journal/notes.jsonl", store.write("journal/notes.jsonl", b"of somebody else"))
    for generation in (8, 9, 10):
        journal = Journal(store, generation)
        for number in range(5):
            journal.add(entry(number))
    assert [(one.generation, one.at) for one in read_journal(store)] == [
        (generation, at) for generation in (9, 10) for at in (2.0, 3.0, 4.0)
    ]
    assert store.list("journal/") == [journal_key(10), journal_key(9), store_key]


def test_what_fails_again_and_again_is_one_entry(store: LocalStore) -> None:
    journal = Journal(store, 1)
    for at, says in ((1.0, "full"), (2.0, "full"), (3.0, "full"), (4.0, "away"), (5.0, "full")):
        journal.add(JournalEntry(at=at, what="checkpoint failed", says=says, checkpoint=int(at)))
    found = [(one.at, one.until, one.times, one.says, one.checkpoint) for one in read_journal(store)]
    assert found == [(1.0, 3.0, 3, "full", 3), (4.0, None, 1, "away", 4), (5.0, None, 1, "full", 5)]


def test_a_line_that_is_damaged_takes_no_other_along_and_a_newer_field_is_ignored(store: LocalStore) -> None:
    journal = Journal(store, 1)
    for number in range(3):
        journal.add(entry(number))
    lines = store.read(journal_key(1)).splitlines()
    lines[1] = b'{"at": "yesterday"}'
    lines.append(lines[2][:-1] + b', "mood": "bad"}')
    lines.append(b"\xff\x00")
    store.write(journal_key(1), b"\n".join(lines))
    assert [one.at for one in read_journal(store)] == [0.0, 2.0, 2.0]


def test_very_long_texts_are_cut(store: LocalStore) -> None:
    Journal(store, 1).add(JournalEntry(at=1.0, what="fails", says="x" * 1_000_000))
    assert len(store.read(journal_key(1))) < 3000
