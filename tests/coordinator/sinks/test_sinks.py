"""What a sink is to the coordinator, for each kind: which it is, what is kept of it, how it goes back."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from chandy.coordinator.errors import RestoreError, SinkTakenError, WriterError
from chandy.coordinator.permit import Permits
from chandy.coordinator.sinks.at_least_once import AtLeastOnceSink
from chandy.coordinator.sinks.file_sink import FileSink
from chandy.coordinator.sinks.owner import Mark, SinkOwner, mark_of
from chandy.coordinator.sinks.recognition import sink_of
from chandy.coordinator.sinks.sink import Sink, StartPoint
from chandy.coordinator.spark import plan
from chandy.coordinator.spark.writer_facts import SinkFacts, Trigger, WriterFacts
from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.proof import Unshared

from ...permits import printed

WRITER: Any = None
OWNER = SinkOwner("file:///store/p", "p")


def facts(sink: SinkFacts, output_mode: str = "append") -> WriterFacts:
    return WriterFacts(sink=sink, output_mode=output_mode, trigger=Trigger.PROCESSING_TIME)


def write_batch(output: Path, batch: int, partition: str = "") -> None:
    """Do what Spark's file sink does with a batch of one file."""
    (output / "_spark_metadata").mkdir(parents=True, exist_ok=True)
    (output / partition).mkdir(parents=True, exist_ok=True)
    (output / partition / f"part-{batch}").write_text("rows")
    entry = {"path": f"file://{output}/{partition}part-{batch}", "action": "add"}
    (output / "_spark_metadata" / str(batch)).write_text("v1\n" + json.dumps(entry))


def names(output: Path) -> set[str]:
    return {path.name for path in output.glob("**/part-*") if "_chandy_set_aside" not in path.parts}


# --- which it is --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sink", [SinkFacts("parquet", path="/o", file_format=True), SinkFacts("csv", table="t", file_format=True)]
)
def test_a_writer_with_an_output_directory_has_the_file_sink(
    sink: SinkFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "output_path", lambda writer, facts: "file:/o")
    monkeypatch.setattr(plan, "creates_managed_table", lambda writer, facts: False)
    assert sink_of(WRITER, facts(sink)) == FileSink(Path("/o"), sink.format)


@pytest.mark.parametrize(
    ("format_", "output_mode"), [("noop", "append"), ("foreachBatch", "update"), ("memory", "complete")]
)
def test_any_other_writer_has_a_sink_that_repeats_rows(format_: str, output_mode: str) -> None:
    assert sink_of(WRITER, facts(SinkFacts(format_), output_mode)) == AtLeastOnceSink(format_)


@pytest.mark.parametrize("output_mode", ["append", "update"])
def test_a_sink_that_spark_cannot_restart_is_refused(output_mode: str) -> None:
    with pytest.raises(WriterError, match=f"'memory'.*{output_mode}"):
        sink_of(WRITER, facts(SinkFacts("memory"), output_mode))


# --- the file sink ------------------------------------------------------------------------------------------


@pytest.fixture
def sink(tmp_path: Path) -> FileSink:
    return FileSink(tmp_path / "out", "parquet")


def begins(
    sink: Sink, files: dict[str, Path] | None, query: str = "q", owner: SinkOwner = OWNER, **allowed: Any
) -> None:
    sink.begin(query, StartPoint(owner, Unshared(), files, **allowed))


def keep(sink: FileSink, batch: int, where: Path) -> dict[str, Path]:
    """Do what a checkpoint does with the log."""
    kept = {name: where / name for name in sink.files_at(batch)}
    for name, path in sink.files_at(batch).items():
        kept[name].write_bytes(path.read_bytes())
    return kept


def test_an_adopted_query_goes_on_in_the_output_of_its_predecessor(sink: FileSink, tmp_path: Path) -> None:
    # Batches without rows name no file by which the output could be known.
    (sink.path / "_spark_metadata").mkdir(parents=True)
    for batch in range(2):
        (sink.path / "_spark_metadata" / str(batch)).write_text("v1")
    kept = keep(sink, 0, tmp_path)
    with pytest.raises(SinkTakenError, match="of another query or program"):
        begins(sink, kept)
    begins(sink, kept, is_adopted=True)
    assert mark_of(sink.path) == Mark(OWNER.store, OWNER.pipeline, "q")
    assert not sink.is_ahead_of(0)
    with pytest.raises(SinkTakenError, match="an output of its own"):
        begins(sink, kept, query="another", is_adopted=True)


def test_a_store_that_is_reached_in_another_way_is_the_owner_still(sink: FileSink, tmp_path: Path) -> None:
    begins(sink, None, owner=SinkOwner("s3://bucket/p", "p"))
    write_batch(sink.path, 0)
    kept = keep(sink, 0, tmp_path)
    begins(sink, kept, owner=SinkOwner("s3://bucket/p?region=eu-central-1", "p"))
    with pytest.raises(SinkTakenError):
        begins(sink, kept, owner=SinkOwner("s3://bucket/p?endpoint=http://elsewhere:9000", "p"))


def test_of_two_pipelines_that_adopt_one_query_at_once_one_gets_its_output(
    sink: FileSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for batch in range(2):
        write_batch(sink.path, batch)
    kept = keep(sink, 1, tmp_path)
    other = SinkOwner("file:///elsewhere/p", "p")
    check = FileSink._check

    def overtaken(self: FileSink, *args: Any) -> bool:
        found = check(self, *args)
        monkeypatch.setattr(FileSink, "_check", check)
        begins(sink, kept, owner=other, is_adopted=True)
        return found

    monkeypatch.setattr(FileSink, "_check", overtaken)
    with pytest.raises(SinkTakenError, match=r"that of query 'q' .*file:///elsewhere/p"):
        begins(sink, kept, is_adopted=True)
    assert mark_of(sink.path) == Mark(other.store, other.pipeline, "q")
    assert names(sink.path) == {"part-0", "part-1"}


def test_the_file_sink_goes_back_to_what_a_checkpoint_has_kept(sink: FileSink, tmp_path: Path) -> None:
    begins(sink, None)
    for batch in range(3):
        write_batch(sink.path, batch)
    kept = keep(sink, 1, tmp_path)
    assert (sink.is_ahead_of(1), sink.is_ahead_of(2)) == (True, False)
    begins(sink, kept)
    assert names(sink.path) == {"part-0", "part-1"}
    assert not sink.is_ahead_of(1)
    begins(sink, {})
    assert names(sink.path) == set()


@pytest.mark.parametrize("files", [None, {}])
@pytest.mark.parametrize("anew", [True, False])
def test_a_table_that_a_plain_query_wrote_is_never_touched(
    sink: FileSink, files: dict[str, Path] | None, anew: bool
) -> None:
    write_batch(sink.path, 0)
    for _ in range(2):
        with pytest.raises(SinkTakenError, match=r"out: expected no log .* another query or program; choose"):
            begins(sink, files, may_begin_anew=anew)
    assert names(sink.path) == {"part-0"}
    assert mark_of(sink.path) is None


@pytest.mark.parametrize(
    ("query", "owner"),
    [("other", OWNER), ("q", SinkOwner("file:///store/p2", "p2")), ("q", SinkOwner("file:///copy/p", "p"))],
)
def test_the_output_of_another_query_is_never_touched(
    sink: FileSink, tmp_path: Path, query: str, owner: SinkOwner
) -> None:
    begins(sink, None)
    # Also before it has written anything, and with a checkpoint that names these very files while it runs.
    with pytest.raises(SinkTakenError, match="that of query 'q' of pipeline 'p'"):
        begins(sink, None, query, owner, may_begin_anew=True)
    for batch in range(2):
        write_batch(sink.path, batch)
    with pytest.raises(SinkTakenError, match=f"delete {sink.path}/_chandy_owner.json"):
        begins(sink, keep(sink, 0, tmp_path), query, owner)
    assert names(sink.path) == {"part-0", "part-1"}


@pytest.mark.parametrize("anew", [True, False])
def test_a_query_begins_anew_in_what_it_has_written_itself_if_it_may(sink: FileSink, anew: bool) -> None:
    begins(sink, None)
    write_batch(sink.path, 0)
    if anew:
        begins(sink, None, may_begin_anew=True)
    else:
        with pytest.raises(SinkTakenError, match="not in the checkpoint that was chosen") as refused:
            begins(sink, None)
        for choice in (
            "a checkpoint that has the query",
            f"delete {sink.path}",
            "another path",
            "leave `restore`",
        ):
            assert choice in refused.value.advice
    assert names(sink.path) == (set() if anew else {"part-0"})


def test_what_the_version_before_has_left_is_known_by_the_checkpoint_that_names_it(
    sink: FileSink, tmp_path: Path
) -> None:
    """It has no mark."""
    for batch in range(2):
        write_batch(sink.path, batch)
    begins(sink, keep(sink, 0, tmp_path))
    assert names(sink.path) == {"part-0"}
    assert mark_of(sink.path) == Mark(OWNER.store, "p", "q")


@pytest.mark.parametrize("runs", [True, False])
def test_a_pipeline_that_goes_on_from_anothers_savepoint_goes_on_in_its_output_once_that_has_stopped(
    sink: FileSink, tmp_path: Path, runs: bool
) -> None:
    begins(sink, None)
    for batch in range(2):
        write_batch(sink.path, batch)
    kept, owner = keep(sink, 0, tmp_path), SinkOwner("file:///new/p2", "p2")
    asked: list[str] = []

    def is_written_by(store: str) -> bool:
        asked.append(store)
        return runs

    if runs:
        with pytest.raises(SinkTakenError, match="'p'"):
            sink.begin("q", StartPoint(owner, Unshared(), kept, is_written_by=is_written_by))
    else:
        sink.begin("q", StartPoint(owner, Unshared(), kept, is_written_by=is_written_by))
        assert mark_of(sink.path) == Mark("file:///new/p2", "p2", "q")
        # The one before is a stranger by now.
        with pytest.raises(SinkTakenError, match="'p2'"):
            begins(sink, None, may_begin_anew=True)
    assert asked == [OWNER.store]
    assert names(sink.path) == ({"part-0", "part-1"} if runs else {"part-0"})


def test_a_mark_that_cannot_be_read_is_not_taken_for_ones_own(sink: FileSink) -> None:
    begins(sink, None)
    (sink.path / "_chandy_owner.json").write_text("{}")
    with pytest.raises(SinkTakenError, match="cannot be read"):
        begins(sink, None, may_begin_anew=True)


def test_of_two_that_find_an_output_empty_at_once_one_gets_it(
    sink: FileSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = LocalStore.create

    def create(store: LocalStore, key: str, data: bytes) -> None:
        monkeypatch.undo()
        begins(sink, None, "faster")
        right(store, key, data)

    monkeypatch.setattr(LocalStore, "create", create)
    with pytest.raises(SinkTakenError, match="'faster'"):
        begins(sink, None)


def test_a_table_is_marked_when_spark_has_made_it(sink: FileSink) -> None:
    """Spark makes no table where something lies already."""
    begins(sink, None, is_table=True)
    assert not sink.path.exists()
    sink.mark("q", OWNER, Unshared())
    with pytest.raises(SinkTakenError):
        sink.mark("other", OWNER, Unshared())


@pytest.mark.parametrize("partition", ["", "k=1/l=2/"])
def test_a_checkpoint_of_another_output_is_refused_or_begins_empty_there(
    sink: FileSink, tmp_path: Path, partition: str, caplog: pytest.LogCaptureFixture
) -> None:
    begins(sink, None)
    for batch in range(3):
        write_batch(sink.path, batch, partition)
    kept = keep(sink, 1, tmp_path)
    fork, owner = FileSink(tmp_path / "fork", "parquet"), SinkOwner("file:///store/fork", "fork")
    with pytest.raises(
        RestoreError, match=f"expected the output {sink.path}, found {fork.path}; .*begins empty"
    ) as refused:
        begins(fork, kept, owner=owner)
    assert not fork.path.exists()

    permits = Permits(printed(refused.value))
    begins(fork, kept, owner=owner, permits=permits)
    assert "begins empty" in caplog.text
    assert set(fork.files_at(1)) == {"0", "1"}
    write_batch(fork.path, 2)
    again = keep(fork, 2, tmp_path)
    write_batch(fork.path, 3)
    begins(fork, again, owner=owner)
    assert (names(fork.path), names(sink.path)) == ({"part-2"}, {"part-0", "part-1", "part-2"})
    # A stranger's table is not the place to begin, allowed or not.
    other = FileSink(tmp_path / "other", "parquet")
    write_batch(other.path, 0)
    with pytest.raises(SinkTakenError):
        begins(other, kept, owner=owner, permits=permits)


def test_files_that_somebody_else_has_deleted_are_told(
    sink: FileSink, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    write_batch(sink.path, 0)
    kept = keep(sink, 0, tmp_path)
    (sink.path / "part-0").unlink()
    begins(sink, kept)
    assert "part-0" in caplog.text


# --- every other sink ---------------------------------------------------------------------------------------


def test_of_any_other_sink_nothing_is_kept_and_nothing_is_refused() -> None:
    sink: Sink = AtLeastOnceSink("console")
    begins(sink, None)
    begins(sink, sink.files_at(7))
    sink.mark("q", OWNER, Unshared())
    assert (sink.location, sink.files_at(7), sink.is_ahead_of(7)) == (None, {}, False)
