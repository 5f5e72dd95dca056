"""A file sink's log, made by hand in Spark's format, put back to a batch."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Callable
from pathlib import Path

import pytest

from chandy.coordinator.errors import IncompleteDirectoryError
from chandy.coordinator.sinks import file_sink_log
from chandy.coordinator.sinks.file_sink_log import ASIDE, LOG, Rollback
from chandy.coordinator.spark import progress
from chandy.storage.checkpoints.proof import Unshared

INTERVAL = 3


class Sink:
    """Writes batches as Spark's file sink does, with a compact file every third batch."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.branch = "a"

    def data(self, batch: int) -> str:
        return f"k=x%3A{batch}/part-{batch}-{self.branch}.parquet"

    def run(self, batch: int) -> None:
        data = self.output / self.data(batch)
        data.parent.mkdir(parents=True, exist_ok=True)
        data.write_text(self.branch)
        data.with_name(f".{data.name}.crc").write_text("crc")
        lines = [json.dumps({"path": f"file://{urllib.parse.quote(str(data))}", "size": 1, "action": "add"})]
        name = str(batch)
        if (batch + 1) % INTERVAL == 0:
            name = f"{batch}.compact"
            before = file_sink_log.files_at(self.output, batch - 1).values()
            # A compact file repeats the one before it.
            lines = list(dict.fromkeys(line for log in before for line in entries(log))) + lines
        log = self.output / LOG / name
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("\n".join(["v1", *lines]))
        log.with_name(f".{name}.crc").write_text("crc")

    def logged(self) -> list[str]:
        newest = file_sink_log.newest(self.output)
        logs = file_sink_log.files_at(self.output, newest).values()
        return sorted(
            {name for log in logs for name in file_sink_log.data_files(log.read_bytes(), self.output)}
        )

    def visible(self) -> list[str]:
        """What a reader sees that goes by the directory, and leaves out hidden names as they all do."""
        found = [path.relative_to(self.output) for path in self.output.rglob("*.parquet")]
        return sorted(str(path) for path in found if not path.parts[0].startswith(("_", ".")))


def entries(log: Path) -> list[str]:
    return log.read_text().splitlines()[1:]


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    sink = Sink(tmp_path / "out put")
    for batch in range(7):
        sink.run(batch)
    return sink


def taken(sink: Sink, batch: int, where: Path) -> dict[str, bytes]:
    held = progress.hold(
        lambda: file_sink_log.files_at(sink.output, batch), where / f"log-{sink.branch}-{batch}"
    )
    return file_sink_log.contents(held)


def test_the_least_log_files_of_a_batch_are_named(sink: Sink, tmp_path: Path) -> None:
    assert file_sink_log.newest(sink.output) == 6
    assert list(file_sink_log.files_at(sink.output, 1)) == ["0", "1"]
    assert list(file_sink_log.files_at(sink.output, 4)) == ["2.compact", "3", "4"]
    assert list(file_sink_log.files_at(sink.output, 6)) == ["2.compact", "5.compact", "6"]
    assert file_sink_log.files_at(sink.output, -1) == {}
    assert file_sink_log.newest(tmp_path / "none") == -1


@pytest.mark.parametrize("gone", ["2.compact", "3", "4"])
def test_a_log_with_a_gap_is_refused(sink: Sink, gone: str) -> None:
    (sink.output / LOG / gone).unlink()
    (sink.output / LOG / "0").unlink()
    with pytest.raises(IncompleteDirectoryError):
        file_sink_log.files_at(sink.output, 4)


def test_a_batch_that_is_not_logged_yet_is_refused(sink: Sink) -> None:
    with pytest.raises(IncompleteDirectoryError, match="entry 7"):
        file_sink_log.files_at(sink.output, 7)


@pytest.mark.parametrize("batch", range(-1, 7))
def test_the_log_goes_back_to_exactly_what_it_was(sink: Sink, batch: int, tmp_path: Path) -> None:
    files = taken(sink, batch, tmp_path)
    done = file_sink_log.restore(sink.output, files, Unshared())
    assert sorted(path.name for path in (sink.output / LOG).iterdir() if path.name[0] != ".") == sorted(files)
    assert sink.visible() == sink.logged() == [sink.data(kept) for kept in range(batch + 1)]
    assert done == Rollback(undone=tuple(range(batch + 1, 7)), set_aside=6 - batch)
    assert file_sink_log.restore(sink.output, files, Unshared()) == Rollback()


def test_entries_that_spark_has_compacted_and_deleted_come_back(sink: Sink, tmp_path: Path) -> None:
    files = taken(sink, 1, tmp_path)
    for name in ("0", "1", "2.compact", "3", "4"):
        (sink.output / LOG / name).unlink()
    file_sink_log.restore(sink.output, files, Unshared())
    assert sink.visible() == sink.logged() == [sink.data(0), sink.data(1)]


def test_no_stale_checksum_is_left(sink: Sink, tmp_path: Path) -> None:
    third = taken(sink, 3, tmp_path)
    file_sink_log.restore(sink.output, third, Unshared())
    hidden = {path.name[1:-4] for path in (sink.output / LOG).glob(".*.crc")}
    assert hidden <= {path.name for path in (sink.output / LOG).iterdir()}
    (sink.output / LOG / "3").unlink()
    file_sink_log.restore(sink.output, {"3": third["3"], **taken(sink, 2, tmp_path)}, Unshared())
    assert not (sink.output / LOG / ".3.crc").exists()


def test_a_later_checkpoint_can_be_gone_forward_to_again(sink: Sink, tmp_path: Path) -> None:
    early, late = taken(sink, 1, tmp_path), taken(sink, 5, tmp_path)
    before = [sink.data(batch) for batch in range(6)]
    file_sink_log.restore(sink.output, early, Unshared())
    sink.branch = "b"
    for batch in range(2, 9):
        sink.run(batch)
    done = file_sink_log.restore(sink.output, late, Unshared())
    assert done.brought_back == 4
    assert done.missing == ()
    assert sink.visible() == sink.logged() == before
    assert all((sink.output / name).read_text() == "a" for name in before)


def test_data_that_somebody_removed_is_told(sink: Sink, tmp_path: Path) -> None:
    files = taken(sink, 3, tmp_path)
    (sink.output / sink.data(2)).unlink()
    assert file_sink_log.restore(sink.output, files, Unshared()).missing == (sink.data(2),)


def test_files_of_others_in_the_output_are_left_alone(sink: Sink, tmp_path: Path) -> None:
    other = sink.output / "notes.parquet"
    other.write_text("mine")
    elsewhere = tmp_path / "elsewhere.parquet"
    elsewhere.write_text("mine")
    line = json.dumps({"path": f"file://{elsewhere}", "action": "add"})
    (sink.output / LOG / "7").write_text(f"v1\n{line}")
    file_sink_log.restore(sink.output, {}, Unshared())
    assert other.read_text() == elsewhere.read_text() == "mine"


class CrashError(Exception):
    pass


def crash_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process die before the given change of the file system."""
    steps = iter(range(10_000))

    def dying(change: Callable[..., object]) -> Callable[..., object]:
        def run(*args: object, **kwargs: object) -> object:
            if next(steps) == step:
                raise CrashError
            return change(*args, **kwargs)

        return run

    monkeypatch.setattr(Path, "rename", dying(Path.rename))
    monkeypatch.setattr(Path, "unlink", dying(Path.unlink))


def test_a_rollback_that_died_anywhere_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashes = 0
    for step in range(200):
        root = tmp_path / str(step)
        sink = Sink(root / "out")
        for batch in range(6):
            sink.run(batch)
        late = taken(sink, 4, root)
        wanted = [sink.data(batch) for batch in range(5)]
        file_sink_log.restore(sink.output, taken(sink, 1, root), Unshared())
        sink.branch = "b"
        for batch in range(2, 7):
            sink.run(batch)
        with monkeypatch.context() as patch:
            crash_at(step, patch)
            try:
                file_sink_log.restore(sink.output, late, Unshared())
            except CrashError:
                crashes += 1
                died = True
            else:
                died = False
        file_sink_log.restore(sink.output, late, Unshared())
        assert sink.visible() == sink.logged() == wanted
        assert not list((sink.output / ASIDE / "log").glob("*"))
        if not died:
            break
    assert crashes > 20


@pytest.mark.parametrize(
    ("files", "output"),
    [
        (["/data/env=prod/out/a"], "/data/env=prod/out"),
        (["/data/env=prod/out/day=5/hour=1/a"], "/data/env=prod/out"),
        (["/data/env=prod/out/day=5/a", "/data/env=prod/out/day=6/a"], "/data/env=prod/out"),
        (["/data/out/day=5/a"], "/data/out"),
        (["/data/out/a", "/data/out/b"], "/data/out"),
        ([], None),
    ],
)
def test_the_output_of_files_is_above_their_partitions_alone(files: list[str], output: str | None) -> None:
    lines = [json.dumps({"path": f"file://{file}", "size": 1, "action": "add"}) for file in files]
    found = file_sink_log.elsewhere(Path("/dev/null"), ["\n".join(["v1", *lines]).encode()])
    assert found == (None if output is None else Path(output))
