"""State of Spark's own in working directories on a real HDFS: exact after restores and kills, and nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from chandy.coordinator import CheckpointConfig, CheckpointCoordinator, NoRestart
from chandy.coordinator.errors import WorkingDirectoryError, WriterError
from chandy.coordinator.query import CheckpointedQuery
from chandy.coordinator.spark import progress
from chandy.coordinator.spark.hadoop_folder import HadoopFolder
from chandy.coordinator.spark.mirror import Mirror
from chandy.coordinator.spark.seeding import seed

from ..effort import sampled, some

# Fixtures.
from ..storage.conftest import Server, hdfs, hdfs_uri  # noqa: F401
from ..waiting import DEADLINE
from .native_driver import STEPS
from .support import TOTALS, Events, Make, Totals, last_totals

pytestmark = pytest.mark.spark

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
HADOOP = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
STORES = {
    "hdfs": {"providerClass": HADOOP},
    "rocksdb": {"providerClass": ROCKSDB, "rocksdb.changelogCheckpointing.enabled": "false"},
    "changelog-v2": {
        "providerClass": ROCKSDB,
        "rocksdb.changelogCheckpointing.enabled": "true",
        "checkpointFormatVersion": "2",
    },
}


@pytest.fixture
def work_dir(hdfs: Server) -> str:  # noqa: F811
    return hdfs_uri(hdfs, f"{uuid.uuid4().hex}/work")


@pytest.fixture
def folder(spark: SparkSession, work_dir: str) -> HadoopFolder:
    return HadoopFolder(spark, work_dir)


def left(folder: HadoopFolder) -> list[str]:
    """The files in a folder, but for those that Spark's state stores may still write when a query has stopped."""
    return [name for name in folder.files_below() if "/state/" not in name]


class HdfsPipeline:
    """A pipeline whose one query drops duplicates by Spark's own state, and counts what is left by it."""

    def __init__(self, spark: SparkSession, folder: Path, work_dir: str) -> None:
        self.spark = spark
        self.folder = folder
        self.work_dir = work_dir
        self.events = Events(folder / "in")
        self.counts: dict[str, int] = {}

    def begin(self, **given: Any) -> tuple[CheckpointCoordinator, CheckpointedQuery]:
        config = CheckpointConfig(
            **{"interval": None, "restart": NoRestart(), "work_dir": self.work_dir} | given
        )
        made = CheckpointCoordinator(
            self.spark, pipeline="p", storage=str(self.folder / "store"), config=config
        )
        counted = self.events.stream(self.spark).groupBy("k").agg(f.count("*").alias("n"))
        writer = counted.writeStream.outputMode("complete").foreachBatch(self.keep)
        return made, made.start(writer.trigger(processingTime="0 seconds"), name="q")

    def keep(self, batch: DataFrame, number: int) -> None:
        self.counts = {row.k: row.n for row in batch.collect()}

    def check(self, query: CheckpointedQuery) -> None:
        query.processAllAvailable()
        assert self.counts == {key: rows for key, (rows, _) in self.events.totals(self.spark).items()}


@pytest.fixture
def pipeline(spark: SparkSession, tmp_path: Path, work_dir: str) -> HdfsPipeline:
    return HdfsPipeline(spark, tmp_path, work_dir)


@pytest.mark.parametrize("store", sampled([*STORES], 1))
def test_state_is_restored_from_the_checkpoint_into_a_fresh_directory(
    pipeline: HdfsPipeline, folder: HadoopFolder, settings: dict[str, str], store: str
) -> None:
    for name, value in STORES[store].items():
        settings[f"spark.sql.streaming.stateStore.{name}"] = value
    pipeline.events.add(5)
    first, query = pipeline.begin()
    pipeline.check(query)
    assert any("/state/" in name for name in folder.files_below())
    assert first.checkpoint().result(DEADLINE).batches == {"q": 4}
    pipeline.events.add(2)
    pipeline.check(query)
    # The second of two checkpoints stores what is new alone.
    assert first.checkpoint().result(DEADLINE).batches == {"q": 6}
    pipeline.events.add(1)
    pipeline.check(query)
    first.stop(checkpoint=False)
    assert left(folder) == []

    second, query = pipeline.begin()
    assert second.restored is not None
    pipeline.events.add(2)
    pipeline.check(query)
    assert query.lastProgress is not None
    assert second.checkpoint().result(DEADLINE).batches == {"q": 9}
    second.stop()
    assert left(folder) == []


def life(
    folder: Path, work_dir: str, die_at: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a driver of its own on a pipeline in a folder; its errors go to ``log`` there."""
    given = json.dumps({"folder": str(folder), "work_dir": work_dir, "die_at": die_at})
    with tempfile.TemporaryDirectory(prefix="chandy-") as runtime, (folder / "log").open("a") as log:
        return subprocess.run(
            [sys.executable, "-m", "tests.integration.native_driver", given],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "CHANDY_RUNTIME_DIR": runtime, **environment},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            check=False,
        )


def test_drivers_that_are_killed_at_each_step_leave_nothing_and_change_no_answer(
    spark: SparkSession, folder: HadoopFolder, work_dir: str, tmp_path: Path
) -> None:
    Events(tmp_path / "in").add(3)

    # The first has a checkpoint, and a batch after it. What it leaves is there until the next one has claimed the
    # pipeline and begins; all after that one kill themselves without a batch of their own.
    first, *later = STEPS
    for step in (first, *some(later, 1, "native")):
        killed = life(tmp_path, work_dir, step)
        assert killed.returncode == -signal.SIGKILL, (tmp_path / "log").read_text()[-3000:]
        assert (folder.files_below() == []) == (step == "seeded"), step
    last = life(tmp_path, work_dir)
    assert last.returncode == 0, (tmp_path / "log").read_text()[-3000:]
    found = json.loads(last.stdout.splitlines()[-1])
    assert found == {"lives": 1, "left": [], "restored": True}


@pytest.mark.full(
    "integration/test_native_state_on_hdfs.py::test_drivers_that_are_killed_at_each_step_leave_nothing_and_change_no_answer"
)
def test_the_newer_of_two_coordinators_goes_on_and_the_older_deletes_nothing_of_it(
    pipeline: HdfsPipeline, folder: HadoopFolder
) -> None:
    pipeline.events.add(2)
    first, query = pipeline.begin()
    pipeline.check(query)
    first.checkpoint().result(DEADLINE)
    (old,) = folder.names()
    second, query = pipeline.begin()
    assert old not in folder.names()
    pipeline.events.add(1)
    pipeline.check(query)
    first.stop(timeout="1 s", checkpoint=False)
    (new,) = folder.names()
    assert folder.below(new).files_below() != []
    pipeline.events.add(1)
    pipeline.check(query)
    second.checkpoint().result(DEADLINE)
    second.stop()


def test_a_directory_that_was_wiped_between_two_starts_is_made_again(
    pipeline: HdfsPipeline, folder: HadoopFolder
) -> None:
    pipeline.events.add(2)
    first, query = pipeline.begin()
    pipeline.check(query)
    first.stop()
    folder.delete()
    assert folder.names() == []
    second, query = pipeline.begin()
    assert second.restored is not None
    pipeline.events.add(1)
    pipeline.check(query)
    second.stop()


def test_what_others_have_in_the_directory_stays(
    pipeline: HdfsPipeline, folder: HadoopFolder, tmp_path: Path
) -> None:
    (tmp_path / "theirs").write_text("theirs")
    folder.upload(["theirs"], tmp_path)
    pipeline.events.add(1)
    for _ in range(2):
        made, query = pipeline.begin()
        pipeline.check(query)
        made.stop(checkpoint=False)
    assert left(folder) == ["theirs"]


def full(folder: HadoopFolder) -> str:
    """A folder that takes no byte more."""
    place = folder.below("full")
    place.probe()
    # The quota of names, and that of bytes.
    folder._system.setQuota(place._at(""), 2**63 - 1, 1)
    return place.uri


def below_a_file(folder: HadoopFolder, tmp_path: Path) -> str:
    (tmp_path / "file").write_text("")
    folder.upload(["file"], tmp_path)
    return f"{folder.uri}/file/work"


@pytest.mark.parametrize(
    ("trouble", "found"),
    [
        ("away", "Connection"),
        ("unknown", "No FileSystem for scheme"),
        ("full", "QuotaExceededException"),
        ("below a file", "is not a directory"),
    ],
)
def test_a_directory_that_cannot_be_written_is_refused_before_anybody_is_fenced(
    spark: SparkSession, folder: HadoopFolder, tmp_path: Path, trouble: str, found: str
) -> None:
    hadoop = spark._jsparkSession.sparkContext().hadoopConfiguration()
    hadoop.set("ipc.client.connect.max.retries", "0")
    try:
        match trouble:
            case "away":
                work_dir = "hdfs://127.0.0.1:1/work"
            case "unknown":
                work_dir = "nosuch://name/work"
            case "full":
                work_dir = full(folder)
            case _:
                work_dir = below_a_file(folder, tmp_path)
        with pytest.raises(WorkingDirectoryError) as refused:
            HdfsPipeline(spark, tmp_path, work_dir).begin()
    finally:
        hadoop.unset("ipc.client.connect.max.retries")
    assert work_dir in str(refused.value)
    assert found in str(refused.value)
    assert list((tmp_path / "store").rglob("generations/*")) == []


def test_a_directory_of_another_user_is_refused_before_anybody_is_fenced(
    folder: HadoopFolder, work_dir: str, tmp_path: Path
) -> None:
    folder.probe()
    Events(tmp_path / "in").add(1)
    found = life(tmp_path, work_dir, HADOOP_USER_NAME="somebody")
    assert found.returncode == 1
    assert "AccessControlException: Permission denied: user=somebody" in (tmp_path / "log").read_text()
    assert list((tmp_path / "store").rglob("generations/*")) == []


def test_only_what_executors_read_is_on_the_store(
    spark: SparkSession, folder: HadoopFolder, work_dir: str, events: Events, tmp_path: Path, make: Make
) -> None:
    events.add(1)
    coordinator = make(work_dir=work_dir)
    totals = coordinator.transform_with_state(
        events.stream(spark), key=["k"], processor=Totals(), output=TOTALS, uid="t"
    )
    writer = totals.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    coordinator.start(writer, name="q").processAllAvailable()
    assert folder.files_below() == []
    assert last_totals(spark.read.parquet(str(tmp_path / "out"))) == events.totals(spark)


def test_timers_beside_spark_s_own_state_are_refused(
    spark: SparkSession, work_dir: str, events: Events, make: Make
) -> None:
    coordinator = make(work_dir=work_dir)
    totals = coordinator.transform_with_state(
        events.stream(spark),
        key=["k"],
        processor=Totals(),
        output=TOTALS,
        uid="t",
        time_mode="ProcessingTime",
    )
    with pytest.raises(WriterError, match="no operator with timers together with state of Spark's own"):
        coordinator.start(totals.dropDuplicates(["k"]).writeStream.format("noop"), name="q")


# --- the folder and its mirror, on any file system of Hadoop ------------------------------------------------


@pytest.fixture
def near(spark: SparkSession, tmp_path: Path) -> HadoopFolder:
    return HadoopFolder(spark, (tmp_path / "near").as_uri())


def test_a_folder_lists_moves_and_deletes_files(near: HadoopFolder, tmp_path: Path) -> None:
    names = ["a", "b c, d", "e/f=g", "e/h;i/j[k]"]
    for name in names:
        path = tmp_path / "mine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    assert near.files_below() == near.names() == near.names("none") == []
    assert not near.exists("a")
    near.upload(names, tmp_path / "mine")
    assert sorted(name for name in near.files_below() if not name.endswith(".crc")) == names
    assert sorted(near.names("e")) == ["f=g", "h;i"]
    assert sorted(near.below("e").names()) == ["f=g", "h;i"]
    assert near.exists("e/f=g")
    near.download(names, tmp_path / "back")
    assert [(tmp_path / "back" / name).read_text() for name in names] == names
    assert list((tmp_path / "back").rglob(".*")) == []
    near.delete("e")
    near.delete("e")
    assert sorted(name for name in near.names() if not name.endswith(".crc")) == ["a", "b c, d"]


def test_a_file_that_is_gone_is_an_error_of_its_own(near: HadoopFolder, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        near.download(["x/1"], tmp_path / "back")
    assert str(missing.value.filename).endswith("/near/x/1")
    assert [path for path in (tmp_path / "back").rglob("*") if path.is_file()] == []


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_mirror_follows_what_spark_writes_and_deletes(near: HadoopFolder, tmp_path: Path) -> None:
    write(tmp_path / "given", offsets__1="o1", commits__1="c1")
    local = tmp_path / "local"
    seed(tmp_path / "given", local)
    mirror = Mirror(near.below("q/checkpoint"), local)
    mirror.publish()
    there = tmp_path / "near" / "q" / "checkpoint"
    assert progress.query_id(there) == progress.query_id(local) is not None
    assert progress.newest_committed(mirror.logs()) == 1

    write(there, offsets__2="o2", offsets__3="o3", commits__2="c2")
    assert not (local / "offsets" / "2").exists()
    assert mirror.is_committed(2)
    assert not mirror.is_committed(3)
    assert (mirror.log_of(3) / "offsets" / "3").read_text() == "o3"
    assert (progress.newest_planned(local), progress.newest_committed(local)) == (3, 2)
    (there / "offsets" / "1").unlink()
    (there / "commits" / "1").unlink()
    assert sorted(path.name for path in (mirror.logs() / "offsets").iterdir()) == ["2", "3"]
