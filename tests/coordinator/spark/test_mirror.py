"""What is read of a working directory on a store lies in a local one."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

import attrs
import pytest

from chandy.coordinator.connectors.source_files import FilesSource
from chandy.coordinator.query import Definition
from chandy.coordinator.recovery.runs import Run
from chandy.coordinator.sinks.at_least_once import AtLeastOnceSink
from chandy.coordinator.sources.errors import SourceLostError
from chandy.coordinator.sources.query_sources import QuerySources
from chandy.coordinator.sources.remembered import RememberedLosses
from chandy.coordinator.spark.hadoop_files import HadoopFiles
from chandy.coordinator.spark.listing import files_below
from chandy.coordinator.spark.mirror import Mirror
from chandy.coordinator.spark.writer_facts import SinkFacts, Trigger, WriterFacts

from ...builders import MemoryStore


@attrs.frozen
class FolderOnStore:
    """The calls of ``HadoopFolder`` that a mirror of logs needs."""

    root: Path
    uri: str = "hdfs://nn/work"

    def names(self, folder: str) -> list[str]:
        return [path.name for path in (self.root / folder).iterdir()]

    def files_below(self, folder: str) -> list[str]:
        return list(files_below(self.root / folder))

    def download(self, names: Collection[str], target: Path) -> None:
        for name in names:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.root / name, target / name)


def test_the_files_of_a_batch_that_runs_again_are_found_in_a_working_directory_on_a_store(
    tmp_path: Path,
) -> None:
    remote, local = tmp_path / "remote", tmp_path / "local"
    for name, text in {
        "offsets/0": 'v1\n{}\n{"logOffset":0}',
        "commits/0": "v1\n{}",
        "offsets/1": 'v1\n{}\n{"logOffset":1}',
        "sources/0/0": 'v1\n{"path":"file:///gone/a","timestamp":1,"batchId":0}',
        "sources/0/1": 'v1\n{"path":"file:///gone/b","timestamp":1,"batchId":1}',
    }.items():
        (remote / name).parent.mkdir(parents=True, exist_ok=True)
        (remote / name).write_text(text)
    remembered = RememberedLosses(MemoryStore(), "q", 0, lambda: None)
    sources = QuerySources({"0": FilesSource("q", "/gone", False, HadoopFiles(None), remembered)})  # type: ignore[arg-type]
    facts = WriterFacts(SinkFacts("noop"), "append", Trigger.PROCESSING_TIME)
    definition = Definition("q", None, None, facts, AtLeastOnceSink("noop"), (), (), sources)  # type: ignore[arg-type]
    run = Run(1, definition, local, "id", mirror=Mirror(FolderOnStore(remote), local))  # type: ignore[arg-type]
    with pytest.raises(SourceLostError) as caught:
        sources.check(run.planned_logs())
    assert caught.value.files == ("file:///gone/b",)
