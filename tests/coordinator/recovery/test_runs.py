"""What a checkpoint gets of a run: its files at the cut, and only if nobody else writes into its output."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import attrs
import pytest

from chandy.coordinator.channels.contract import Channels
from chandy.coordinator.errors import SinkTakenError, WorkingDirectoryLostError
from chandy.coordinator.execution.recording import Recording
from chandy.coordinator.query import Definition
from chandy.coordinator.recovery import runs as module
from chandy.coordinator.recovery.runs import Run, Runs
from chandy.coordinator.sinks.file_sink import FileSink
from chandy.coordinator.sinks.file_sink_log import LOG
from chandy.coordinator.spark import progress
from chandy.coordinator.spark.writer_facts import SinkFacts, Trigger, WriterFacts
from chandy.storage.checkpoints.batch_record import RECORDS_FILE, BatchRecord, BatchRecords, decode
from chandy.storage.checkpoints.manifest import CheckpointKind, Handle, QueryRecord

from ...builders import make_manifest


class FileQuery:
    """A query with Spark's file sink, as its files show it."""

    def __init__(
        self, folder: Path, real_time_seconds: float | None = None, *, is_recorded: bool = False
    ) -> None:
        self.directory, self.output = folder / "work" / "run", folder / "out"
        (self.output / LOG).mkdir(parents=True)
        for log in ("offsets", "commits"):
            (self.directory / log).mkdir(parents=True)
        (self.directory / "metadata").write_text('{"id":"x"}')
        facts = WriterFacts(
            SinkFacts("parquet"), "append", Trigger.PROCESSING_TIME, real_time_seconds=real_time_seconds
        )
        definition = Definition("q", None, None, facts, FileSink(self.output, "parquet"), (), ())  # type: ignore[arg-type]
        self.recording = Recording(is_recorded)
        self.runs = Runs(Channels(), self.recording)
        self.runs.put(Run(1, definition, self.directory, "x"))

    def records(self, cut: int) -> BatchRecords:
        """The records of a checkpoint at a cut."""
        with self.runs.hold("q", cut) as files:
            return decode(files[RECORDS_FILE].read_bytes())

    def complete(self, id: int, cut: int, kind: CheckpointKind = CheckpointKind.PERIODIC) -> None:
        self.runs.completed(make_manifest(id, kind=kind, queries=(QueryRecord("q", cut, Handle()),)))

    def plan(self, batch: int) -> None:
        (self.directory / "offsets" / str(batch)).write_text(
            'v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}\n{}'
        )

    def write(self, batch: int) -> None:
        line = json.dumps({"path": f"file://{self.output}/{batch}.parquet", "size": 1, "action": "add"})
        (self.output / LOG / str(batch)).write_text(f"v1\n{line}")

    def commit(self, batch: int) -> None:
        self.plan(batch)
        self.write(batch)
        (self.directory / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')


@pytest.fixture
def query(tmp_path: Path) -> FileQuery:
    made = FileQuery(tmp_path)
    for batch in range(2):
        made.commit(batch)
    return made


def test_only_a_query_that_keeps_dead_letters_is_told_what_its_batch_reads(query: FileQuery) -> None:
    assert query.runs.times("x", 1).offsets == ""
    (run,) = query.runs.all()
    run.definition = attrs.evolve(run.definition, keeps_letters=True)
    assert json.loads(query.runs.times("x", 1).offsets) == {"0": ["{}", "{}"]}


@pytest.mark.parametrize("under_way", ["", "planned", "written"])
def test_a_checkpoint_has_the_files_of_its_cut_while_the_next_batch_is_under_way(
    query: FileQuery, under_way: str
) -> None:
    if under_way:
        query.plan(2)
    if under_way == "written":
        query.write(2)
    with query.runs.hold("q", 1) as files:
        assert {name for name in files if name.startswith("sink/")} == {"sink/0", "sink/1"}


def test_a_batch_of_a_real_time_query_has_begun_once_the_one_before_has_committed(tmp_path: Path) -> None:
    query = FileQuery(tmp_path, real_time_seconds=5.0)
    assert query.runs.begun("q") == 0
    query.commit(0)
    assert query.runs.begun("q") == 1
    # Spark logs it when it ends.
    query.plan(1)
    assert query.runs.begun("q") == 1
    query.commit(1)
    assert query.runs.begun("q") == 2
    query.runs.all()[0].ended = True
    assert query.runs.begun("q") == 1


def test_there_is_no_checkpoint_while_another_program_writes_into_the_output(query: FileQuery) -> None:
    query.write(2)
    with pytest.raises(SinkTakenError, match="no batch after 1 in its output"), query.runs.hold("q", 1):
        pass


@pytest.mark.parametrize("lost", ["metadata", "offsets", "all", "newest", "replaced"])
def test_a_working_directory_that_a_cleaner_has_been_in_is_not_gone_on_with(
    query: FileQuery, lost: str
) -> None:
    assert query.runs.begun("q") == 1
    match lost:
        case "metadata":
            (query.directory / "metadata").unlink()
        case "replaced":
            (query.directory / "metadata").write_text('{"id":"y"}')
        case "newest":
            (query.directory / "offsets" / "1").unlink()
        case "offsets":
            shutil.rmtree(query.directory / "offsets")
        case "all":
            shutil.rmtree(query.directory)
    with pytest.raises(WorkingDirectoryLostError, match="with batch 1"):
        query.runs.all()[0].check_directory()
    if lost != "all":
        with pytest.raises(WorkingDirectoryLostError), query.runs.hold("q", 1):
            pass


def test_what_spark_deletes_itself_is_not_missed(query: FileQuery) -> None:
    assert query.runs.begun("q") == 1
    (query.directory / "offsets" / "0").unlink()
    (query.directory / "commits" / "0").unlink()
    query.runs.all()[0].check_directory()


def test_a_batch_that_is_planned_and_written_during_the_look_is_the_querys_own(
    query: FileQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest_planned = progress.newest_planned

    def slowly(directory: Path) -> int:
        found = newest_planned(directory)
        if found < 6:
            query.plan(found + 1)
            query.write(found + 1)
        return found

    monkeypatch.setattr(module.progress, "newest_planned", slowly)
    with query.runs.hold("q", 1) as files:
        assert "sink/1" in files


@pytest.fixture
def recording(tmp_path: Path) -> FileQuery:
    made = FileQuery(tmp_path, is_recorded=True)
    for batch in range(3):
        made.commit(batch)
    return made


def numbers(records: BatchRecords) -> tuple[int, list[int]]:
    return records.after, [record.batch for record in records.batches]


def test_a_checkpoint_records_the_batches_since_the_one_before(recording: FileQuery) -> None:
    recording.plan(3)
    records = recording.records(2)
    assert numbers(records) == (-1, [0, 1, 2])
    assert records.batches[1] == BatchRecord(1, (recording.directory / "offsets" / "1").read_text())
    # Until it is known to have completed, the next one has them, too; and a savepoint may be moved away.
    recording.complete(2, 2, CheckpointKind.SAVEPOINT)
    assert numbers(recording.records(2)) == (-1, [0, 1, 2])
    recording.complete(3, 2)
    recording.commit(3)
    # The last one of the checkpoint before is among them: it tells which checkpoint that was.
    assert numbers(recording.records(3)) == (1, [2, 3])
    assert numbers(recording.records(2)) == (1, [2])


def test_a_checkpoint_of_another_run_moves_nothing(recording: FileQuery) -> None:
    assert numbers(recording.records(2)) == (-1, [0, 1, 2])
    (run,) = recording.runs.all()
    recording.runs.put(attrs.evolve(run, number=2, recorded=1, cuts=set()))
    # It has completed while the pipeline went back behind it.
    recording.complete(1, 2)
    recording.commit(3)
    assert numbers(recording.records(3)) == (0, [1, 2, 3])


def test_a_batch_whose_entry_spark_has_deleted_is_left_out(recording: FileQuery) -> None:
    (recording.directory / "offsets" / "0").unlink()
    records = recording.records(2)
    # Without the entry before, nobody knows where batch 1 began.
    assert numbers(records) == (-1, [2])
    assert records.missing(2) == (0, 1)


def test_records_that_are_turned_on_begin_behind_the_checkpoint_before(query: FileQuery) -> None:
    with query.runs.hold("q", 1) as files:
        assert RECORDS_FILE not in files
    query.complete(1, 1)
    query.commit(2)
    query.recording.is_on = True
    assert numbers(query.records(2)) == (0, [1, 2])
