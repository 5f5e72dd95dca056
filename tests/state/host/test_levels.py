from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chandy.state.errors import ShardBrokenError, ShardClosedError
from chandy.state.host.cache import Value
from chandy.state.host.changes import Changes
from chandy.state.host.levels import Levels
from chandy.state.host.memory import Memory
from chandy.storage.ids import NO_BATCH

from ...effort import examples

KEYS = [b"", b"a", b"b", b"\x02", b"\x02t", b"\x02u", b"\xff"]


def changes(entries: dict[bytes, Value]) -> Changes:
    return Changes.of("op/0", entries)


@pytest.fixture
def levels(tmp_path: Path) -> Iterator[Levels]:
    opened = Levels("op/0", tmp_path / "shard", Memory(8 << 20))
    yield opened
    opened.close()


def test_a_key_has_the_value_of_the_highest_level_that_knows_it(levels: Levels, tmp_path: Path) -> None:
    levels.add(0, changes({b"written": b"0", b"changed": b"0", b"deleted": b"0"}))
    levels.spill()
    levels.add(1, changes({b"changed": b"1", b"deleted": None}))
    levels.snapshot(tmp_path / "snapshot")
    levels.add(2, changes({b"new": b"2"}))
    keys = [b"written", b"changed", b"deleted", b"new", b"unknown"]
    assert levels.fetch(keys) == [b"0", b"1", None, b"2", None]
    assert list(levels.scan(b"", b"\xff")) == [(b"changed", b"1"), (b"new", b"2"), (b"written", b"0")]


def test_what_has_changed_the_state_last_is_known_after_reopening(levels: Levels, tmp_path: Path) -> None:
    assert levels.changed_by == NO_BATCH
    levels.add(3, changes({b"a": b"3"}))
    assert levels.changed_by == 3
    files = levels.snapshot(tmp_path / "snapshot")
    files.files()
    again = Levels("op/0", files.directory, Memory(8 << 20))
    assert (again.changed_by, again.fetch([b"a"])) == (3, [b"3"])
    again.close()


def test_nothing_can_be_added_to_what_is_closed(levels: Levels, tmp_path: Path) -> None:
    levels.close()
    with pytest.raises(ShardClosedError):
        levels.add(0, changes({b"a": b"0"}))
    with pytest.raises(ShardClosedError):
        levels.snapshot(tmp_path / "snapshot")
    assert levels.unwritten == 0


def test_nothing_can_be_added_to_what_is_broken(levels: Levels, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(entries: object, batch: int) -> None:
        raise OSError("no space left on device")

    levels.add(0, changes({b"a": b"0"}))
    monkeypatch.setattr(levels.database, "write", fail)
    levels.spill()
    with pytest.raises(ShardBrokenError, match=r"changes of batch 0 .*no space left"):
        levels.add(1, changes({b"a": b"1"}))
    with pytest.raises(ShardBrokenError):
        levels.fetch([b"a"])


STEPS = st.one_of(
    st.dictionaries(st.sampled_from(KEYS), st.none() | st.binary(max_size=2)),
    st.sampled_from(["snapshot", "write", "spill", "rotate"]),
)


@settings(max_examples=examples(12), deadline=None)
@given(st.lists(STEPS, max_size=15), st.sampled_from(KEYS), st.sampled_from(KEYS))
def test_levels_hold_what_was_added(steps: list[dict[bytes, Value] | str], start: bytes, stop: bytes) -> None:
    state: dict[bytes, Value] = {}
    pending = []
    with TemporaryDirectory(prefix="chandy-test-") as folder:
        levels = Levels("op/0", Path(folder) / "shard", Memory(8 << 20))
        for number, step in enumerate(steps):
            match step:
                case dict():
                    levels.add(number, changes(step))
                    state |= step
                case "snapshot":
                    pending.append(levels.snapshot(Path(folder) / str(number)))
                case "write":
                    for snapshot in pending[-1:]:
                        snapshot.files()
                case "spill":
                    levels.spill()
                case "rotate":
                    levels.rotate()
            assert levels.fetch(KEYS) == [state.get(key) for key in KEYS]
            entries = [(key, state[key]) for key in sorted(state) if start <= key < stop]
            assert list(levels.scan(start, stop)) == [entry for entry in entries if entry[1] is not None]
        levels.close()
