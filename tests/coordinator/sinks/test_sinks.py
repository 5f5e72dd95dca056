"""What a sink is to the coordinator, for each kind: which it is, what is kept of it, how it goes back."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from chandy.coordinator.errors import RestoreError, WriterError
from chandy.coordinator.sinks.at_least_once import AtLeastOnceSink
from chandy.coordinator.sinks.file_sink import FileSink
from chandy.coordinator.sinks.recognition import sink_of
from chandy.coordinator.sinks.sink import Sink
from chandy.coordinator.spark import plan
from chandy.coordinator.spark.writer_facts import SinkFacts, Trigger, WriterFacts

WRITER: Any = None


def facts(sink: SinkFacts, output_mode: str = "append") -> WriterFacts:
    return WriterFacts(sink=sink, output_mode=output_mode, trigger=Trigger.PROCESSING_TIME)


def write_batch(output: Path, batch: int) -> None:
    """Do what Spark's file sink does with a batch of one file."""
    (output / "_spark_metadata").mkdir(parents=True, exist_ok=True)
    (output / f"part-{batch}").write_text("rows")
    entry = {"path": f"file://{output}/part-{batch}", "action": "add"}
    (output / "_spark_metadata" / str(batch)).write_text("v1\n" + json.dumps(entry))


def names(output: Path) -> set[str]:
    return {path.name for path in output.glob("part-*")}


# --- which it is --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sink", [SinkFacts("parquet", path="/o", file_format=True), SinkFacts("csv", table="t", file_format=True)]
)
def test_a_writer_with_an_output_directory_has_the_file_sink(
    sink: SinkFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "output_path", lambda writer, facts: "file:/o")
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


def test_the_file_sink_goes_back_to_what_a_checkpoint_has_kept(sink: FileSink, tmp_path: Path) -> None:
    for batch in range(3):
        write_batch(sink.path, batch)
    kept = {name: tmp_path / name for name in sink.files_at(1)}
    for name, path in sink.files_at(1).items():
        kept[name].write_bytes(path.read_bytes())
    assert (sink.is_ahead_of(1), sink.is_ahead_of(2)) == (True, False)
    sink.restore("q", kept)
    assert names(sink.path) == {"part-0", "part-1"}
    assert not sink.is_ahead_of(1)
    sink.restore("q", {})
    assert names(sink.path) == set()


def test_a_new_query_does_not_write_into_the_output_of_a_stranger(sink: FileSink) -> None:
    sink.check_new("q")
    write_batch(sink.path, 0)
    with pytest.raises(RestoreError, match="out"):
        sink.check_new("q")
    assert names(sink.path) == {"part-0"}


def test_files_that_somebody_else_has_deleted_are_told(
    sink: FileSink, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    write_batch(sink.path, 0)
    entry = tmp_path / "0"
    entry.write_bytes(sink.files_at(0)["0"].read_bytes())
    (sink.path / "part-0").unlink()
    sink.restore("q", {"0": entry})
    assert "part-0" in caplog.text


# --- every other sink ---------------------------------------------------------------------------------------


def test_of_any_other_sink_nothing_is_kept_and_nothing_is_refused() -> None:
    sink: Sink = AtLeastOnceSink("console")
    sink.check_new("q")
    sink.restore("q", sink.files_at(7))
    assert (sink.location, sink.files_at(7), sink.is_ahead_of(7)) == (None, {}, False)
