"""FilesSink in real directories: on a local disk, and on S3 servers."""

from __future__ import annotations

import io
import json
import pickle
import re
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

import attrs
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from chandy.coordinator.connectors.files.sink import FilesSink, url_of
from chandy.coordinator.sinks.two_phase.errors import OutputError, TargetUnavailableError
from chandy.coordinator.spark.compact_log import entry_number, missing_entry, names_at
from chandy.storage.errors import DamagedError
from chandy.storage.open import open_store

from ...integration.conftest import spark as spark
from ...storage import servers
from ...storage.conftest import moto, rclone, s3_keys
from ...storage.lossy_proxy import LossyProxy
from ...storage.servers import Server
from .conformance import SCHEMA, Pipeline, Row, Target
from .files_of_others import open_folder, read_only
from .races import RaceConformance

__all__ = ["moto", "rclone", "s3_keys"]


@attrs.frozen
class Directory(Target):
    path: str
    format: Literal["parquet", "json", "csv"] = "parquet"

    def sink(self, uid: str = "out") -> FilesSink:
        return FilesSink(self.path, self.format, uid=uid)

    def entries(self) -> list[str]:
        """The names of the log's entries, as Spark chooses those that it reads. There are no gaps."""
        keys = open_store(self.path).list("_spark_metadata/")
        names = [key.removeprefix("_spark_metadata/") for key in keys]
        numbers = [number for name in names if (number := entry_number(name)) is not None]
        newest = max(numbers, default=-1)
        chosen = names_at(names, newest)
        assert missing_entry(chosen, newest) is None
        # The compact file before the latest one is there for its name alone.
        compacted = [name for name in chosen if name.endswith(".compact")]
        compacted.sort(key=lambda name: entry_number(name) or 0)
        chosen = [name for name in chosen if name not in compacted[:-1]]
        assert len(set(numbers)) == len(numbers)
        assert all(name.endswith(".compact") == ((entry_number(name) or 0) % 10 == 9) for name in names)
        return chosen

    def files(self) -> list[str]:
        """The keys of the data files that readers of the log see."""
        store = open_store(self.path)
        found: list[str] = []
        for name in self.entries():
            first, *lines = store.read(f"_spark_metadata/{name}").decode().splitlines()
            assert first == "v1"
            for line in map(json.loads, lines):
                assert line["action"] == "add"
                if not line["isDir"]:
                    found.append(unquote(line["path"].removeprefix(f"{url_of(store.uri)}/")))
                    assert line["size"] == len(store.read(found[-1]))
        assert len(set(found)) == len(found)
        return found

    def listed(self) -> list[str]:
        """The keys of the data files that readers of the directory see."""
        keys = open_store(self.path).list()
        return [key for key in keys if not any(part.startswith(("_", ".")) for part in key.split("/"))]

    def rows(self) -> list[Row]:
        store = open_store(self.path)
        return [row for key in self.files() for row in self.read(store.read(key))]

    def read(self, data: bytes) -> Iterator[Row]:
        match self.format:
            case "parquet":
                found = pq.read_table(io.BytesIO(data)).to_pylist()
            case "json":
                found = [json.loads(line) for line in data.splitlines()]
            case "csv":
                lines = pyarrow.csv.ParseOptions(newlines_in_values=True)
                types = pyarrow.csv.ConvertOptions(column_types=SCHEMA)
                found = pyarrow.csv.read_csv(
                    io.BytesIO(data), parse_options=lines, convert_options=types
                ).to_pylist()
        return ((row["k"], row["v"]) for row in found)


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(str(tmp_path / "an output"))


@pytest.fixture
def pipeline(directory: Directory, tmp_path: Path) -> Pipeline:
    return Pipeline(directory.sink(), f"file://{tmp_path}/store/flights/")


def s3_uri(port: int) -> str:
    return f"s3://{servers.BUCKET}/{uuid.uuid4().hex}?endpoint=http://127.0.0.1:{port}&region=us-east-1"


class TestParquet(RaceConformance):
    @pytest.fixture
    def target(self, directory: Directory) -> Target:
        return directory


class TestJson(RaceConformance):
    @pytest.fixture
    def target(self, directory: Directory) -> Target:
        return attrs.evolve(directory, format="json")


class TestCsv(RaceConformance):
    @pytest.fixture
    def target(self, directory: Directory) -> Target:
        return attrs.evolve(directory, format="csv")


@pytest.mark.server
class TestOnS3(RaceConformance):
    @pytest.fixture
    def target(self, moto: Server) -> Target:
        return Directory(s3_uri(moto.port))


# --- what readers see ---------------------------------------------------------------------------------------


def test_many_epochs_are_compacted_into_entries_that_repeat_them(
    directory: Directory, pipeline: Pipeline
) -> None:
    committer = pipeline.recover()
    for number in range(1, 26):
        committer.commit(pipeline.epoch(number, [(number, "a")]))
    # The entry of this life, and one for each epoch.
    assert directory.entries() == ["19.compact", "20", "21", "22", "23", "24", "25"]
    assert directory.rows() == [(number, "a") for number in range(1, 26)]
    assert pipeline.recover(2).position == 25


def test_readers_that_list_the_directory_see_the_same_files(directory: Directory, pipeline: Pipeline) -> None:
    committer = pipeline.recover()
    committer.commit(pipeline.epoch(1, [(1, "a")], [(2, "b")]))
    committer.commit(pipeline.epoch(2))
    pipeline.recover(2).commit(pipeline.epoch(3, [(3, "c")]))
    assert sorted(directory.files()) == sorted(directory.listed())
    found = pyarrow.dataset.dataset(directory.path, format="parquet").to_table().to_pylist()
    assert sorted(row["k"] for row in found) == [1, 2, 3]


def test_an_epoch_that_is_published_again_has_the_same_files(
    directory: Directory, pipeline: Pipeline, tmp_path: Path
) -> None:
    committer = pipeline.recover()
    epoch = pipeline.epoch(1, [(1, "a")], [(2, "b")])
    _, second = epoch.record.staged.files
    path = tmp_path / "store" / "flights" / second.key
    data = path.read_bytes()
    path.write_bytes(b"")
    with pytest.raises(DamagedError, match=re.escape(second.key)):
        committer.commit(epoch)
    # This is what is honestly said about readers that list the directory.
    assert (directory.rows(), len(directory.listed())) == ([], 1)
    path.write_bytes(data)
    committer.commit(epoch)
    assert sorted(directory.rows()) == [(1, "a"), (2, "b")]
    assert sorted(directory.files()) == sorted(directory.listed())


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_partitions_are_folders(tmp_path: Path, format: Literal["parquet", "json", "csv"]) -> None:
    directory = Directory(str(tmp_path / "out"), format)
    pipeline = Pipeline(attrs.evolve(directory.sink(), partition_by=["v"]), f"file://{tmp_path}/store/")
    pipeline.sink.check(SCHEMA)
    committer = pipeline.recover()
    committer.commit(pipeline.epoch(1, [(1, "a/b"), (2, "c")], [(3, "c")]))
    assert sorted(directory.files()) == sorted(directory.listed())
    assert sorted({key.rpartition("/")[0] for key in directory.files()}) == ["v=a%2Fb", "v=c"]
    if format == "parquet":
        found = pyarrow.dataset.dataset(directory.path, partitioning="hive").to_table().to_pylist()
        assert sorted((row["k"], row["v"]) for row in found) == [(1, "a/b"), (2, "c"), (3, "c")]


# --- directories that cannot be used ------------------------------------------------------------------------


def test_a_log_of_another_program_is_not_touched(directory: Directory, pipeline: Pipeline) -> None:
    entry = Path(directory.path, "_spark_metadata", "0")
    entry.parent.mkdir(parents=True)
    entry.write_text("v1")
    for step in (lambda: pipeline.sink.check(SCHEMA), pipeline.recover):
        with pytest.raises(OutputError, match="another program"):
            step()
    assert [path.name for path in entry.parent.iterdir()] == ["0"]


def test_files_without_a_log_would_be_lost_to_spark(directory: Directory, pipeline: Pipeline) -> None:
    Path(directory.path).mkdir()
    Path(directory.path, "old.parquet").write_bytes(b"x")
    with pytest.raises(OutputError, match=r"such as old\.parquet"):
        pipeline.sink.check(SCHEMA)


def test_a_gap_in_the_log_is_said(directory: Directory, pipeline: Pipeline) -> None:
    committer = pipeline.recover()
    for number in range(1, 9):
        committer.commit(pipeline.epoch(number))
    Path(directory.path, "_spark_metadata", "3").unlink()
    with pytest.raises(OutputError, match="no entry 3"):
        committer.commit(pipeline.epoch(9))


def test_a_damaged_entry_is_said(directory: Directory, pipeline: Pipeline) -> None:
    pipeline.recover()
    entry = Path(directory.path, "_spark_metadata", "0")
    entry.write_bytes(entry.read_bytes()[:-5])
    with pytest.raises(OutputError, match="entry 0 that cannot be read"):
        pipeline.recover(2)


def test_a_log_that_was_set_back_makes_the_position_lower(directory: Directory, pipeline: Pipeline) -> None:
    committer = pipeline.recover()
    committer.commit(pipeline.epoch(1, [(1, "a")]))
    committer.commit(pipeline.epoch(2, [(2, "b")]))
    Path(directory.path, "_spark_metadata", "2").unlink()
    assert pipeline.recover(2).position == 1


def test_a_directory_that_may_not_be_written_is_an_error_of_the_output(tmp_path: Path) -> None:
    with open_folder() as folder:
        pipeline = Pipeline(Directory(str(folder)).sink(), f"file://{tmp_path}/store/")
        pipeline.recover()
        with read_only(folder), pytest.raises(OutputError, match="Permission denied"):
            pipeline.recover(2)
        assert pipeline.recover(1).position is None


def test_rows_that_the_format_cannot_have_are_refused_before_the_query_starts(directory: Directory) -> None:
    schema = pa.schema([("l", pa.list_(pa.int64()))])
    with pytest.raises(OutputError, match="column 'l'"):
        attrs.evolve(directory.sink(), format="csv").check(schema)


def test_a_format_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="format"):
        FilesSink("/out", "xml")  # type: ignore[arg-type]


# --- S3 -----------------------------------------------------------------------------------------------------


@pytest.mark.server
def test_a_store_that_ignores_the_condition_is_refused(rclone: Server) -> None:
    with pytest.raises(OutputError, match="racing creates"):
        FilesSink(s3_uri(rclone.port)).check(SCHEMA)


def test_a_file_system_without_exclusive_create_is_refused(tmp_path: Path) -> None:
    sink = FilesSink(f"local://{tmp_path}/out")
    for step in (lambda: sink.check(SCHEMA), Pipeline(sink, f"file://{tmp_path}/store/").recover):
        with pytest.raises(OutputError, match="looks first and then writes"):
            step()


@pytest.mark.server
@pytest.mark.parametrize("lose", [1, 1000])
def test_an_entry_whose_answer_is_lost_is_found_again(moto: Server, tmp_path: Path, lose: int) -> None:
    with LossyProxy(moto.port).running() as proxy:
        directory = Directory(s3_uri(proxy.port))
        pipeline = Pipeline(attrs.evolve(directory.sink(), timeout=3), f"file://{tmp_path}/store/flights/")
        committer = pipeline.recover()
        proxy.kind, proxy.lose = re.compile(rb"PUT [^ ]*_spark_metadata/"), lose
        epoch = pipeline.epoch(1, [(1, "a")])
        # A client that repeats a request by itself finds the entry there, and only the position says whose it is.
        with suppress(TargetUnavailableError) if lose == 1 else pytest.raises(TargetUnavailableError):
            committer.commit(epoch)
        assert proxy.lost
        proxy.lose = 0
        again = pipeline.recover()
        assert again.position == 1
        again.commit(pipeline.epoch(2, [(2, "b")]))
        assert sorted(directory.rows()) == [(1, "a"), (2, "b")]


def test_a_store_that_is_not_there_is_not_available(s3_keys: None, tmp_path: Path) -> None:
    sink = FilesSink(s3_uri(servers.free_port()), timeout=0.5)
    with pytest.raises(TargetUnavailableError):
        Pipeline(sink, f"file://{tmp_path}/store/").recover()


# --- Spark --------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_spark_reads_whole_epochs_and_nothing_else(
    directory: Directory, pipeline: Pipeline, spark: SparkSession
) -> None:
    committer = pipeline.recover()
    for number in range(1, 13):
        committer.commit(pipeline.epoch(number, [(number, "a")], [(-number, "ü")]))
    committer.commit(pipeline.epoch(13))
    Path(directory.path, "part-of-an-epoch.parquet").write_bytes(b"not published")
    rows = spark.read.parquet(directory.path).collect()
    assert sorted((row["k"], row["v"]) for row in rows) == sorted(directory.rows())
    stream = spark.readStream.schema("k long, v string").parquet(directory.path)
    query = stream.writeStream.format("memory").queryName("seen").trigger(availableNow=True).start()
    query.awaitTermination(60)
    assert spark.table("seen").count() == len(directory.rows())


def test_the_sink_is_a_value(directory: Directory) -> None:
    assert pickle.loads(pickle.dumps(directory.sink())) == directory.sink()
