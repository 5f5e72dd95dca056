"""What a shard's changelog keeps for the time after a process was killed, and what is not taken from it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from chandy.state.errors import ChangelogBrokenError, ShardRefusedError
from chandy.state.format.columns import Columns
from chandy.state.host.cache import Value
from chandy.state.host.changes import Changes
from chandy.state.host.memory import Memory
from chandy.state.host.shard import Shard
from chandy.state.local import changelog as changelog_module
from chandy.state.local.changelog import Changelog, admit, gap, read, remove, shard_folder, sweep
from chandy.state.shards import ResumePoint
from chandy.storage.disk.owners import OwnerRecord
from chandy.storage.ids import NO_BATCH

from ...effort import examples

HEAD = 36
"""Bytes of a record before what its batch has changed."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    admit(tmp_path / "changelogs", "query", tmp_path)
    return shard_folder(tmp_path / "changelogs", "query", "uid of/any kind", 3)


def written(folder: Path, *batches: tuple[int, dict[bytes, Value]]) -> Changelog:
    changelog = Changelog(folder)
    for batch, entries in batches:
        changelog.append(batch, Columns.of(entries))
    return changelog


def found(folder: Path, after: int, batch: int) -> list[tuple[int, dict[bytes, Value]]]:
    return list(read(folder, ResumePoint("query", after, batch)))


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"), key=lambda path: int(path.stem))


def changes(entries: Mapping[bytes, Value]) -> Changes:
    return Changes.of("op/0", entries)


# --- what is written is read --------------------------------------------------------------------------------


def test_what_batches_changed_comes_back_in_their_order(folder: Path) -> None:
    changelog = written(
        folder, (4, {b"a": b"1", b"b": None}), (5, {}), (6, {b"": b"", b"\x00": b"\xff" * 70_000})
    )
    changelog.close()
    assert not gap(folder, 3, 6)
    assert found(folder, 3, 6) == [
        (4, {b"a": b"1", b"b": None}),
        (5, {}),
        (6, {b"": b"", b"\x00": b"\xff" * 70_000}),
    ]
    assert found(folder, 4, 5) == [(5, {})]


def test_the_last_attempt_at_a_batch_counts(folder: Path) -> None:
    changelog = written(folder, (0, {b"a": b"first"}), (0, {b"b": b"second"}))
    changelog.cut()
    changelog.append(0, Columns.of({b"c": b"third"}))
    assert found(folder, -1, 0) == [(0, {b"c": b"third"})]


def test_nobody_needs_a_changelog_for_nothing(tmp_path: Path) -> None:
    assert not gap(tmp_path / "none", 7, 7)
    assert found(tmp_path / "none", 7, 7) == []
    assert gap(tmp_path / "none", 7, 8)


def test_a_changelog_begins_anew_in_its_folder(folder: Path) -> None:
    written(folder, (0, {b"a": b"1"})).close()
    Changelog(folder).close()
    assert gap(folder, -1, 0)


def test_only_its_user_may_enter_where_changelogs_are(folder: Path) -> None:
    assert folder.parent.parent.stat().st_mode & 0o777 == 0o700


def test_a_run_is_admitted_once(folder: Path, tmp_path: Path) -> None:
    Changelog(folder)
    with pytest.raises(OSError, match="not empty"):
        admit(folder.parent.parent, "query", tmp_path)


def test_a_run_is_admitted_while_another_driver_sweeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, swept = tmp_path / "changelogs", iter(["empty", "with its record", "not"])
    when, mkdir, write = "not", Path.mkdir, changelog_module.write_owner

    def mkdir_then_sweep(path: Path, *args: Any, **options: Any) -> None:
        nonlocal when
        mkdir(path, *args, **options)
        if path.name == ".gone-new-query" and (when := next(swept)) == "empty":
            sweep(root)

    def write_then_sweep(path: Path, record: OwnerRecord) -> None:
        write(path, record)
        if when == "with its record":
            sweep(root)

    monkeypatch.setattr(Path, "mkdir", mkdir_then_sweep)
    monkeypatch.setattr(changelog_module, "write_owner", write_then_sweep)
    admit(root, "query", tmp_path)
    assert [path.name for path in root.iterdir()] == ["query"]


def test_changelogs_whose_owner_is_gone_are_swept_away_and_no_others(tmp_path: Path) -> None:
    root = tmp_path / "changelogs"
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        admit(root, name, tmp_path / name)
    (root / ".gone-half").mkdir()
    (tmp_path / "other").rmdir()
    admit(root, "half deleted", tmp_path / "one")
    (root / "half deleted").rename(root / ".gone-half deleted")
    # Another program's, with files of the same names.
    for name in ("foreign", ".gone-foreign"):
        (root / name).mkdir()
        (root / name / "owner").write_text("/home/somebody")
    sweep(root)
    assert sorted(path.name for path in root.iterdir()) == [".gone-foreign", "foreign", "one"]
    sweep(tmp_path / "none")


def test_uids_and_shards_do_not_share_a_folder(tmp_path: Path) -> None:
    places = {shard_folder(tmp_path, "q", uid, shard) for uid in ("a", "a-1", "../a") for shard in (0, 1, 11)}
    assert len(places) == 9
    assert {place.parent for place in places} == {tmp_path / "q"}


# --- checkpoints make it needless ---------------------------------------------------------------------------


def test_a_completed_checkpoint_deletes_the_segments_before_its_cut(folder: Path) -> None:
    changelog = written(folder, (0, {b"a": b"1"}), (1, {}))
    changelog.cut()
    changelog.append(2, Columns.of({b"b": b"2"}))
    changelog.forget(0)
    assert not gap(folder, -1, 2), "batch 1 is not in the checkpoint"
    changelog.forget(1)
    assert len(segments(folder)) == 1
    assert not gap(folder, 1, 2)
    assert gap(folder, 0, 2)
    changelog.forget(2)
    changelog.append(3)
    assert not gap(folder, 2, 3), "the segment that grows stays"


def test_another_changelog_is_taken_up_and_stays_as_it_is(folder: Path, tmp_path: Path) -> None:
    earlier = written(folder, (0, {b"a": b"1"}), (1, {b"a": b"2"}))
    earlier.cut()
    earlier.append(2, Columns.of({b"never": b"committed"}))
    earlier.close()
    admit(tmp_path / "changelogs", "next", tmp_path)
    own = shard_folder(tmp_path / "changelogs", "next", "op", 0)
    changelog = Changelog(own)
    changelog.inherit(folder)
    changelog.append(2, Columns.of({b"a": b"3"}))
    shutil.rmtree(folder)
    assert found(own, -1, 2) == [(0, {b"a": b"1"}), (1, {b"a": b"2"}), (2, {b"a": b"3"})]
    changelog.cut()
    changelog.forget(1)
    assert found(own, 1, 2) == [(2, {b"a": b"3"})]


# --- what is not taken --------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [1, HEAD - 1, HEAD, HEAD + 5])
def test_a_record_whose_writer_was_killed_is_not_there(folder: Path, left: int) -> None:
    written(folder, (0, {b"a": b"1"})).close()
    (segment,) = segments(folder)
    whole = segment.stat().st_size
    changelog = written(folder, (0, {b"a": b"1"}), (1, {b"b": b"2"}))
    changelog.close()
    with segment.open("r+b") as stream:
        stream.truncate(whole + left)
    assert not gap(folder, -1, 0)
    assert gap(folder, -1, 1)
    assert found(folder, -1, 0) == [(0, {b"a": b"1"})]
    with pytest.raises(ChangelogBrokenError, match="batch 1, found no record"):
        found(folder, -1, 1)


@pytest.mark.parametrize("at", [0, 4, 20, HEAD, -1])
def test_other_bytes_than_were_written_are_found(folder: Path, at: int) -> None:
    written(folder, (0, {b"a": b"1"}), (1, {b"b": b"2"})).close()
    (segment,) = segments(folder)
    content = bytearray(segment.read_bytes())
    content[at] ^= 1
    segment.write_bytes(content)
    with pytest.raises(ChangelogBrokenError):
        found(folder, -1, 1)


def test_pages_that_never_reached_the_disk_are_found(folder: Path) -> None:
    written(folder, (0, {b"a": b"1"})).close()
    (segment,) = segments(folder)
    segment.write_bytes(bytes(segment.stat().st_size))
    assert gap(folder, -1, 0)
    with pytest.raises(ChangelogBrokenError):
        found(folder, -1, 0)


def test_a_batch_in_between_that_is_missing_is_found(folder: Path) -> None:
    written(folder, (0, {}), (2, {})).close()
    assert gap(folder, -1, 2)
    with pytest.raises(ChangelogBrokenError, match="batch 1,"):
        found(folder, -1, 2)


def test_a_changelog_that_cannot_be_written_ends_and_is_gone_until_the_next_snapshot(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changelog = written(folder, (0, {b"a": b"1"}))
    changelog._end_segment()
    shutil.rmtree(folder)
    changelog.append(1, Columns.of({b"b": b"2"}))
    assert "no changelog is kept until the next checkpoint" in caplog.text
    changelog.append(2)
    changelog.forget(2)
    assert not folder.exists()
    assert gap(folder, 1, 2), "with a gap it would be of no use"
    changelog.cut()
    changelog.append(3, Columns.of({b"c": b"3"}))
    assert not gap(folder, 2, 3)
    assert gap(folder, 1, 3)


def test_a_changelog_that_grows_too_long_ends_until_the_next_snapshot(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changelog = Changelog(folder, limit=100_000)
    changelog.append(0, Columns.of({b"a": bytes(60_000)}))
    changelog.append(1, Columns.of({b"a": bytes(30_000)}))
    assert not gap(folder, -1, 1)
    changelog.append(2, Columns.of({b"a": bytes(20_000)}))
    assert "it has grown to 11" in caplog.text
    assert not folder.exists()
    changelog.append(3)
    changelog.cut()
    changelog.append(4, Columns.of({b"a": bytes(90_000)}))
    changelog.cut()
    changelog.forget(4)
    changelog.append(5, Columns.of({b"a": bytes(90_000)}))
    assert not gap(folder, 4, 5), "what a checkpoint has does not count"


def test_a_changelog_that_was_closed_stays_so(folder: Path) -> None:
    changelog = written(folder, (0, {}))
    changelog.close()
    changelog.cut()
    changelog.append(1)
    assert not gap(folder, -1, 0)
    assert gap(folder, 0, 1)


def test_a_host_that_begins_late_finds_no_place_for_its_changelog(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    remove(folder.parent.parent, "query")
    changelog = Changelog(folder)
    changelog.append(0)
    changelog.inherit(folder)
    assert "no changelog is kept until the next checkpoint" in caplog.text
    assert list(folder.parent.parent.iterdir()) == []


# --- a shard and its changelog --------------------------------------------------------------------------------


def test_what_a_shard_refuses_is_not_in_its_changelog(folder: Path, tmp_path: Path) -> None:
    shard = Shard("op/0", tmp_path / "shard", Memory(8 << 20), changelog=Changelog(folder))
    shard.begin(0)
    shard.stage(0, changes({b"a": b"right"}))
    # A snapshot makes the batch part of the state; then an attempt that is left over stages another result.
    shard.snapshot(tmp_path / "snapshot", 0).cancel()
    with pytest.raises(ShardRefusedError):
        shard.stage(0, changes({b"a": b"left over"}))
    assert found(folder, -1, 0) == [(0, {b"a": b"right"})]
    shard.close()


KEYS = [b"a", b"b", b"\x02timer 1", b"\x02timer 2"]
VALUES = st.dictionaries(st.sampled_from(KEYS), st.none() | st.binary(max_size=3))


class KilledShard(RuleBasedStateMachine):
    """A shard that is killed at any moment, and goes on from its last checkpoint and its changelog."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="chandy-test-"))
        self.memory = Memory(8 << 20)
        self.lives = 0
        self.states: list[dict[bytes, bytes]] = []
        """By batch the state after it."""
        self.begun = False
        self.staged: dict[bytes, bytes] | None = None
        self.base: tuple[int, Path | None] = (NO_BATCH, None)
        """The checkpoint to go back to: its cut, and its files."""
        self.taken: tuple[int, Path] | None = None
        self.inherited = 0
        admit(self.root / "changelogs", "0", self.root)
        self.changelog = self.root / "changelogs" / "0" / "shard"
        self.shard = Shard("op/0", self.root / "0", self.memory, changelog=Changelog(self.changelog))

    def teardown(self) -> None:
        self.shard.close()
        shutil.rmtree(self.root)

    @property
    def now(self) -> dict[bytes, bytes]:
        return self.states[-1] if self.states else {}

    @rule()
    def begin(self) -> None:
        if self.begun and self.staged is not None:
            self.states.append(self.staged)
        self.shard.begin(len(self.states))
        self.begun, self.staged = True, None

    @precondition(lambda self: self.begun)
    @rule(values=VALUES)
    def stage(self, values: dict[bytes, bytes | None]) -> None:
        """Once more, too: another attempt."""
        self.shard.stage(len(self.states), changes(values) if values else None)
        merged = {**self.now, **values}
        self.staged = {key: value for key, value in merged.items() if value is not None}

    @precondition(lambda self: self.states and self.begun and self.staged is None)
    @rule()
    def take_a_checkpoint(self) -> None:
        cut = len(self.states) - 1
        place = self.root / f"cut-{self.lives}-{cut}"
        if not place.exists():
            self.shard.snapshot(place, cut).files()
            self.taken = cut, place

    @precondition(lambda self: self.taken)
    @rule()
    def the_checkpoint_completes(self) -> None:
        assert self.taken is not None
        self.base, self.taken = self.taken, None
        self.shard.durable(self.base[0])

    @rule(commits=st.booleans(), torn=st.integers(0, HEAD - 1))
    def the_process_is_killed(self, commits: bool, torn: int) -> None:
        """The batch that is staged has committed or not; another attempt at it was being written or not."""
        if self.begun and self.staged is not None and commits:
            self.states.append(self.staged)
        elif torn:
            newest = max((int(path.stem) for path in segments(self.changelog)), default=0)
            # What another process has begun is not written to any more.
            number = newest if newest > self.inherited else newest + 1
            with (self.changelog / f"{number}.log").open("ab") as stream:
                stream.write((b"CHJ2" + bytes(HEAD))[:torn])
        self.shard.close()
        self.lives += 1
        cut, files = self.base
        place = self.root / str(self.lives)
        if files is not None:
            shutil.copytree(files, place)
        resume_point = ResumePoint("query", cut, len(self.states) - 1)
        assert not gap(self.changelog, resume_point.after, resume_point.batch)
        admit(self.root / "changelogs", str(self.lives), self.root)
        earlier, self.changelog = self.changelog, self.root / "changelogs" / str(self.lives) / "shard"
        changelog = Changelog(self.changelog)
        self.shard = Shard("op/0", place, self.memory, cut, changelog)
        self.shard.replay(read(earlier, resume_point))
        changelog.inherit(earlier)
        shutil.rmtree(earlier)
        self.inherited = max((int(path.stem) for path in segments(self.changelog)), default=0)
        self.begun, self.staged, self.taken = False, None, None
        assert self.shard.position == resume_point.batch
        values = zip(KEYS, self.shard.fetch(KEYS), strict=True)
        assert {key: value for key, value in values if value is not None} == self.now
        timers = [key for key in sorted(self.now) if key.startswith(b"\x02")]
        assert [key for key, _ in self.shard.scan(b"\x02", b"\x03")] == timers


TestKilledShard = KilledShard.TestCase
TestKilledShard.settings = settings(max_examples=examples(4), stateful_step_count=30, deadline=None)
