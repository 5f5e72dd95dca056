"""What the sink of a table format does with tables of others' making, and when a table changes under it."""

from __future__ import annotations

import abc
import pickle
import re
import sys
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pyarrow as pa
import pytest

from chandy.coordinator.errors import ChandyError
from chandy.coordinator.sinks.two_phase.errors import OutputError, TargetUnavailableError
from chandy.testing import SCHEMA, SinkPipeline

from .files_of_others import open_folder, read_only
from .races import RaceConformance, within_the_next_commits


class TableConformance(RaceConformance, abc.ABC):
    """The tests. A subclass has the fixture ``target``, too, and the rest of what is particular to its format."""

    client: ClassVar[str]
    """The module of the format's client."""
    extra: ClassVar[str]
    """What brings it."""
    secret: ClassVar[Any]
    """A sink that has "hush" among its options."""

    @abc.abstractmethod
    def table(self, folder: Path, *, upserts: bool = False) -> Any:
        """Return a table in a folder, which is not made yet."""

    @abc.abstractmethod
    def partitioned(self, folder: Path) -> Any:
        """Return a table that is partitioned by ``v``."""

    @abc.abstractmethod
    def drop_column(self, table: Any) -> None:
        """Take column ``v`` out of the table."""

    @abc.abstractmethod
    def fail_commits(self, patch: pytest.MonkeyPatch) -> None:
        """Have the client say "odd" of each commit, as of one that another writer was faster than."""

    def test_a_commit_waits_for_other_writers_of_the_table(
        self, target: Any, pipeline: SinkPipeline, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        committer = pipeline.recover()
        others = [lambda: target.add((100, "other")), lambda: target.add((101, "other"))]
        within_the_next_commits(monkeypatch, others)
        committer.commit(pipeline.epoch(1, [(1, "a")]))
        committer.commit(pipeline.epoch(2, [(2, "b")]))
        assert sorted(target.rows()) == [(1, "a"), (2, "b"), (100, "other"), (101, "other")]

    def test_a_row_replaces_the_one_with_its_key(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table = self.table(tmp_path, upserts=True).make()
        pipeline = SinkPipeline(table.sink(), f"file://{tmp_path}/store/flights/")
        committer = pipeline.recover()
        committer.commit(pipeline.epoch(1, [(1, "a"), (2, "b")]))
        committer.commit(pipeline.epoch(2, [(2, "c"), (3, "d")], [(3, "e")]))
        assert sorted(table.rows()) == [(1, "a"), (2, "c"), (3, "e")]
        within_the_next_commits(monkeypatch, [lambda: table.add((100, "other"))])
        committer.commit(pipeline.epoch(3, [(1, "f"), (100, "g")]))
        assert sorted(table.rows()) == [(1, "f"), (2, "c"), (3, "e"), (100, "g")]

    def test_a_commit_that_fails_while_the_table_stays_as_it_is_is_no_conflict(
        self, pipeline: SinkPipeline, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        committer = pipeline.recover()
        self.fail_commits(monkeypatch)
        for attempt in (lambda: committer.commit(pipeline.epoch(1)), lambda: pipeline.recover(2)):
            with pytest.raises(TargetUnavailableError, match="no other writer was faster: odd") as caught:
                attempt()
            assert not caught.value.is_understood

    def test_a_table_that_is_not_there_is_made_unless_told_otherwise(self, tmp_path: Path) -> None:
        table = self.table(tmp_path)
        sink = attrs.evolve(table.sink(), create_table=False)
        for step in (lambda: sink.check(SCHEMA), SinkPipeline(sink, f"file://{tmp_path}/store/").recover):
            with pytest.raises(OutputError, match="create_table=True"):
                step()
        table.make()
        sink.check(SCHEMA)

    @pytest.mark.parametrize(
        ("schema", "said"),
        [
            (pa.schema([("k", pa.string()), ("v", pa.string())]), "'k' is string, and int64 in the table"),
            (pa.schema([("k", pa.int64()), ("w", pa.string())]), "column 'w' is not in the table"),
            (pa.schema([("v", pa.string())]), "column 'k', which must not be null, is missing"),
        ],
    )
    def test_rows_of_another_schema_are_refused_before_the_query_starts(
        self, target: Any, schema: pa.Schema, said: str
    ) -> None:
        with pytest.raises(OutputError, match=said):
            target.sink().check(schema)

    def test_a_table_that_was_changed_meanwhile_is_an_error_of_the_output(
        self, target: Any, pipeline: SinkPipeline
    ) -> None:
        committer = pipeline.recover()
        self.drop_column(target)
        with pytest.raises(OutputError, match="column 'v' is not in the table"):
            committer.commit(pipeline.epoch(1, [(1, "a")]))
        assert pipeline.recover(2).position is None

    def test_a_table_that_may_not_be_written_is_an_error_of_the_output(self, tmp_path: Path) -> None:
        with open_folder() as folder:
            pipeline = SinkPipeline(self.table(folder).make().sink(), f"file://{tmp_path}/store/flights/")
            epoch, committer = pipeline.epoch(1, [(1, "a")]), pipeline.recover()
            with read_only(folder), pytest.raises(OutputError, match="permission"):
                pipeline.recover(2)
            assert pipeline.recover(1).position is None
            committer.commit(epoch)

    def test_a_partitioned_table_takes_epochs(self, tmp_path: Path) -> None:
        table = self.partitioned(tmp_path)
        pipeline = SinkPipeline(table.sink(), f"file://{tmp_path}/store/flights/")
        committer = pipeline.recover()
        committer.commit(pipeline.epoch(1, [(1, "a"), (2, "b")], [(3, "a")]))
        committer.commit(pipeline.epoch(2))
        assert sorted(table.rows()) == [(1, "a"), (2, "b"), (3, "a")]
        assert pipeline.recover(2).position == 2

    def test_the_sink_is_a_value_without_secrets_in_its_text(self) -> None:
        assert "hush" not in repr(self.secret)
        assert pickle.loads(pickle.dumps(self.secret)) == self.secret

    def test_what_is_missing_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, self.client, None)
        with pytest.raises(ChandyError, match=re.escape(f"pip install 'chandy[{self.extra}]'")):
            self.secret.check(SCHEMA)
