"""The files of a killed driver: from which of them its successor may resume, and which are deleted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import attrs
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from chandy.coordinator.query import Definition
from chandy.coordinator.recovery.runs import Run
from chandy.coordinator.restore import local_recovery as local_recovery_module
from chandy.coordinator.restore import run_record
from chandy.coordinator.restore.adoptions import Adoptions
from chandy.coordinator.restore.local_recovery import LeftoverRuns, LocalRecovery, find_leftovers
from chandy.coordinator.restore.query_directories import QueryDirectories
from chandy.coordinator.restore.restore_point import RestorePoint
from chandy.coordinator.restore.resume import ResumableRun
from chandy.coordinator.restore.run_record import (
    RunRecord,
    base_of,
    boot_id,
    may_be_alive,
    misfit,
    read_records,
)
from chandy.coordinator.sinks.at_least_once import AtLeastOnceSink
from chandy.coordinator.sinks.file_sink import FileSink
from chandy.coordinator.spark.writer_facts import SinkFacts, Trigger, WriterFacts
from chandy.state.local.changelog import sweep
from chandy.state.shards import NotResumable, ResumePoint
from chandy.storage.checkpoints.manifest import (
    CheckpointKind,
    Handle,
    OperatorRecord,
    QueryRecord,
    StateRecord,
)
from chandy.storage.disk.locks import acquire
from chandy.storage.disk.workspace import ALIVE

from ...builders import make_manifest
from .left_behind import KEY, OPERATOR, RECORD, ROOT, checkpoint, left_behind
from .left_behind import base as base
from .left_behind import changelogs as changelogs
from .left_behind import start as start


def query(name: str = "q", *operators: OperatorRecord, output: Path | None = None) -> Definition:
    facts = WriterFacts(SinkFacts("noop"), "append", Trigger.PROCESSING_TIME)
    sink = FileSink(output, "parquet") if output else AtLeastOnceSink("noop")
    return Definition(name, cast(Any, None), None, facts, sink, operators or (OPERATOR,), ())


def local_recovery(base: Path, changelogs: Path, point: RestorePoint | None, **options: Any) -> LocalRecovery:
    defaults = {
        "root": ROOT,
        "generation": 5,
        "workspace": base,
        "enabled": True,
        "resume": True,
        "java": 1,
    }
    return LocalRecovery.begin(base, changelogs, point=point, **{**defaults, **options})


@pytest.fixture(autouse=True)
def refusals(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is told of queries that do not resume. In every test, of each of which something was left."""
    left: set[str] = set()
    told: list[tuple[str, str]] = []
    leftover, resumable = LocalRecovery.leftover, LocalRecovery.resumable

    def read(place: Path) -> list[tuple[RunRecord, Path]]:
        found = read_records(place)
        left.update(record.query for record, _ in found if record.root == ROOT)
        return found

    def leftover_or_told(self: LocalRecovery, definition: Definition, *rest: Any) -> ResumableRun | None:
        found = leftover(self, definition, *rest)
        assert found or definition.name in dict(told) or definition.name not in left
        return found

    def resumable_or_told(self: LocalRecovery, runs: list[Run], *rest: Any) -> dict[str, ResumableRun]:
        told.clear()
        found = resumable(self, runs, *rest)
        assert {run.definition.name for run in runs} == found.keys() | dict(told).keys()
        return found

    monkeypatch.setattr(local_recovery_module, "read_records", read)
    monkeypatch.setattr(
        local_recovery_module, "tell_refusal", lambda query, why: told.append((query, why.why))
    )
    monkeypatch.setattr(LocalRecovery, "leftover", leftover_or_told)
    monkeypatch.setattr(LocalRecovery, "resumable", resumable_or_told)
    return told


# --- what fits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "point", "expected"),
    [
        ({}, checkpoint(7, generation=3), True),
        # It has taken the latest checkpoint itself.
        ({}, checkpoint(9, generation=4), True),
        ({"base": ""}, None, True),
        # Somebody else has taken the latest.
        ({}, checkpoint(8, generation=3), False),
        ({}, None, False),
        ({"base": ""}, checkpoint(7, generation=3), False),
        # It began from a savepoint, or another pipeline's checkpoint, of the same number.
        ({"base": base_of(checkpoint(7, root="file:///elsewhere"))}, checkpoint(7, generation=3), False),
        ({}, checkpoint(7, generation=4, kind=CheckpointKind.SAVEPOINT, root="file:///s"), False),
        # Another generation came in between, or this is an older one.
        ({"generation": 3}, checkpoint(7, generation=3), False),
        ({"generation": 5}, checkpoint(7, generation=3), False),
        # The machine was restarted, or does not tell.
        ({"boot": "another start"}, checkpoint(7, generation=3), False),
        ({"boot": ""}, checkpoint(7, generation=3), False),
    ],
)
def test_a_run_fits_if_it_has_grown_from_the_latest_checkpoint_right_before_on_this_machine(
    change: dict[str, Any], point: RestorePoint | None, expected: bool
) -> None:
    record = attrs.evolve(RECORD, **change)
    assert (misfit(record, generation=5, point=point, boot="this start") is None) == expected


def test_a_machine_that_does_not_tell_its_starts_fits_nothing() -> None:
    record = attrs.evolve(RECORD, boot="")
    assert misfit(record, generation=5, point=checkpoint(7, generation=3), boot="")


def test_this_machine_tells_its_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(boot_id()) > 30
    assert boot_id() == boot_id()
    monkeypatch.setattr(run_record, "_BOOT", Path("/nowhere"))
    assert boot_id() == ""


# --- what is found ------------------------------------------------------------------------------------------


def test_a_run_is_resumed_at_its_newest_committed_batch(base: Path, changelogs: Path) -> None:
    directory = left_behind(base, changelogs, RECORD, committed=5)
    found = local_recovery(base, changelogs, point := checkpoint(q=2, generation=3)).leftover(query(), point)
    assert found == ResumableRun(ResumePoint("id", 2, 5), directory)


def test_a_run_at_the_batch_of_the_checkpoint_needs_no_changelog(base: Path, changelogs: Path) -> None:
    left_behind(base, changelogs, RECORD, committed=2)
    found = local_recovery(base, changelogs, point := checkpoint(q=2, generation=3)).leftover(query(), point)
    assert found is not None
    assert found.point == ResumePoint("id", 2, 2)


def shorten(base: Path, changelogs: Path) -> None:
    next(changelogs.glob("id/*/*.log")).write_bytes(b"")


def lose_a_shard(base: Path, changelogs: Path) -> None:
    next(changelogs.glob("id/*-*")).rename(changelogs / "elsewhere")


def spoil(base: Path, changelogs: Path) -> None:
    path = next(changelogs.glob("id/*/*.log"))
    path.write_bytes(b"!" + path.read_bytes()[1:])


def lose_commits(base: Path, changelogs: Path) -> None:
    for commit in base.glob("dead/*/checkpoint/commits/*"):
        commit.rename(commit.with_name("1"))


def test_a_run_whose_sink_is_ahead_of_the_commit_log_is_not_resumed(base: Path, changelogs: Path) -> None:
    """Spark would skip the batch that the sink has, and the shards would never get it."""
    output = base.parent / "out"
    (output / "_spark_metadata").mkdir(parents=True)
    record = attrs.evolve(RECORD, output=str(output))
    left_behind(base, changelogs, record, committed=5)
    point = checkpoint(q=2, generation=3)
    found = local_recovery(base, changelogs, point)
    for batch in range(6):
        (output / "_spark_metadata" / str(batch)).touch()
    assert found.leftover(query(output=output), point) is not None
    (output / "_spark_metadata" / "6").touch()
    assert found.leftover(query(output=output), point) is None
    assert found.blocks_others("q", point)


def test_no_query_resumes_while_the_old_jvm_may_write(base: Path, changelogs: Path) -> None:
    left_behind(base, changelogs, attrs.evolve(RECORD, java=os.getpid()), committed=5)
    point = checkpoint(q=2, generation=3)
    found = local_recovery(base, changelogs, point, java=os.getppid())
    assert found.leftover(query(), point) is None


def test_a_process_that_has_ended_does_not_live_though_nobody_has_waited_for_it() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert Path(f"/proc/{process.pid}").exists()
        assert not may_be_alive(process.pid)
    assert not may_be_alive(process.pid)
    assert may_be_alive(os.getpid())


def test_a_coordinator_in_the_same_jvm_resumes(base: Path, changelogs: Path) -> None:
    left_behind(base, changelogs, attrs.evolve(RECORD, java=os.getpid()), committed=5)
    point = checkpoint(q=2, generation=3)
    assert local_recovery(base, changelogs, point, java=os.getpid()).leftover(query(), point) is not None


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (shorten, "without batch 3"),
        (lose_a_shard, "has no changelog"),
        (spoil, "found a record that does not begin with"),
        (lose_commits, "has committed batch 1, and the checkpoint has batch 2"),
    ],
)
def test_a_run_whose_files_do_not_reach_its_newest_batch_is_not_used(
    base: Path,
    changelogs: Path,
    damage: Callable[[Path, Path], None],
    why: str,
    refusals: list[tuple[str, str]],
) -> None:
    left_behind(base, changelogs, RECORD, committed=5)
    damage(base, changelogs)
    found = local_recovery(base, changelogs, point := checkpoint(q=2, generation=3))
    assert found.leftover(query(), point) is None
    ((_, said),) = refusals
    assert why in said
    assert found.blocks_others("q", point)


@pytest.mark.parametrize(
    "definition",
    [
        query("q", attrs.evolve(OPERATOR, key_schema=StructType().add("k", StringType()).json())),
        query("q", attrs.evolve(OPERATOR, states={"new": StateRecord((KEY.json(),))})),
        query("q", OPERATOR, attrs.evolve(OPERATOR, uid="new")),
        query(output=Path("/another/output")),
    ],
)
def test_a_query_that_has_changed_is_not_resumed(
    base: Path, changelogs: Path, definition: Definition
) -> None:
    left_behind(base, changelogs, RECORD, committed=5)
    found = local_recovery(base, changelogs, point := checkpoint(q=2, generation=3))
    assert found.leftover(definition, point) is None


def test_a_query_resumes_although_its_plan_describes_the_key_differently(
    base: Path, changelogs: Path
) -> None:
    """Nullability of the key and the delay of the watermark do not matter."""
    left_behind(base, changelogs, RECORD, committed=5)
    key = StructType().add("k", LongType(), True, {"spark.watermarkDelayMs": 1})
    definition = query("q", attrs.evolve(OPERATOR, key_schema=key.json()))
    found = local_recovery(base, changelogs, point := checkpoint(q=2, generation=3))
    assert found.leftover(definition, point) is not None


def test_either_all_queries_resume_or_none(base: Path, changelogs: Path) -> None:
    left_behind(base, changelogs, RECORD, committed=5)
    point = checkpoint(q=2, other=3, generation=3)
    found = local_recovery(base, changelogs, point)
    assert found.leftover(query("other"), point) is None
    assert found.blocks_others("other", point), "it was there at the cut"
    assert not found.blocks_others("new", point), "it has no files and was not at the cut"
    found.forget_leftovers()
    assert found.leftover(query(), point) is None
    assert not found.blocks_others("other", point)


def test_only_runs_of_the_newest_round_are_at_one_cut(base: Path, changelogs: Path) -> None:
    """The driver was killed while it rolled back: one query was done, the other was not."""
    older = attrs.evolve(RECORD, query="other", query_id="older")
    newer = attrs.evolve(RECORD, round=1)
    left_behind(base, changelogs, older, committed=5)
    left_behind(base, changelogs, newer, committed=5)
    point = checkpoint(q=2, generation=3)
    found = local_recovery(base, changelogs, point)
    assert found.leftover(query("other"), point) is None
    assert found.blocks_others("other", point), "it was there, if not in the checkpoint"
    assert found.leftover(query(), point) is not None
    assert not (changelogs / "older").exists()


def test_a_query_that_a_life_did_not_come_to_is_still_known_to_the_next(base: Path, changelogs: Path) -> None:
    left_behind(base, changelogs, RECORD, committed=5)
    left_behind(base, changelogs, attrs.evolve(RECORD, query="other", query_id="b"), committed=5)
    point = checkpoint(q=2, generation=3)
    second = local_recovery(base, changelogs, point)
    directory = QueryDirectories(base, "p").new_run("q")
    # Killed before it has started the other one.
    second.record(run(directory, "next"), 0, point)
    record = next(r for r, _ in read_records(directory.parent.parent) if r.query_id == "next")
    assert record.known == ("other", "q")


def test_a_query_that_was_only_known_keeps_the_others_from_resuming(base: Path, changelogs: Path) -> None:
    left_behind(base, changelogs, attrs.evolve(RECORD, known=("other", "q")), committed=5)
    point = checkpoint(q=2, generation=3)
    found = local_recovery(base, changelogs, point)
    assert found.leftover(query(), point) is not None
    assert found.blocks_others("other", point)
    assert not found.blocks_others("new", point)


# --- what is deleted ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"resume": False}, {"enabled": False}, {"generation": 6}])
def test_what_is_not_wanted_is_deleted(base: Path, changelogs: Path, options: dict[str, Any]) -> None:
    left_behind(base, changelogs, RECORD, committed=5)
    found = local_recovery(base, changelogs, point := checkpoint(q=2, generation=3), **options)
    assert found.leftover(query(), point) is None
    assert not found.blocks_others("q", point), "no run remains that others could resume"
    assert list(base.iterdir()) == list(changelogs.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ({"resume": False}, True),
        ({"generation": 6}, True),
        ({"boot": "another start"}, True),
        ({"point": checkpoint(8, q=3, generation=5)}, False),
        ({"resume": False, "point": None, "base": ""}, False),
    ],
    ids=["not to resume", "of an older life", "rebooted", "not from the checkpoint", "started over"],
)
def test_what_a_run_has_read_behind_the_checkpoint_counts_also_if_it_is_not_resumed(
    base: Path, changelogs: Path, options: dict[str, Any], counts: bool
) -> None:
    given = {"point": checkpoint(q=2, generation=3), **options}
    record = attrs.evolve(RECORD, boot=given.pop("boot", RECORD.boot), base=given.pop("base", RECORD.base))
    directory = left_behind(base, changelogs, record, committed=5)
    (directory / "sources" / "0").mkdir(parents=True)
    found = local_recovery(base, changelogs, given.pop("point"), **given)
    assert found.leftover(query(), checkpoint(q=2, generation=3)) is None
    assert found.left("q") == ((directory,) if counts else ())
    assert directory.is_dir() == counts
    found.close()
    assert list(base.iterdir()) == list(changelogs.iterdir()) == []


def test_what_is_anothers_stays(base: Path, changelogs: Path, refusals: list[tuple[str, str]]) -> None:
    left_behind(base, changelogs, attrs.evolve(RECORD, root="file:///store/other", query_id="a"), committed=3)
    left_behind(base, changelogs, attrs.evolve(RECORD, query_id="b"), committed=3, place="alive")
    alive = acquire(base / "alive" / ALIVE)
    found = find_leftovers(base, changelogs, lambda record: NotResumable("is not wanted"), ROOT)
    assert found == LeftoverRuns()
    assert refusals == [("q", f"still belongs to a driver that lives, in {base / 'alive'}")]
    assert {path.name for path in base.iterdir()} == {"dead", "alive"}
    assert {path.name for path in changelogs.iterdir()} == {"a", "b"}
    alive.release()


def test_what_is_gone_on_from_is_on_hold_until_the_end(base: Path, changelogs: Path) -> None:
    left_behind(base, changelogs, RECORD, committed=5)
    point = checkpoint(q=2, generation=3)
    first = local_recovery(base, changelogs, point)
    # A third one that takes over meanwhile, and does not want it.
    local_recovery(base, changelogs, point, generation=6)
    assert first.leftover(query(), point) is not None
    first.close()
    assert list(base.iterdir()) == list(changelogs.iterdir()) == []


def test_a_directory_with_a_record_outlives_its_driver_and_another_pipelines_start(base: Path) -> None:
    first = QueryDirectories(base, "p")
    run = first.new_run("q")
    RECORD.write(run.parent)
    without = QueryDirectories(base, "p")
    without.new_run("q")
    # As when they are killed.
    first._workspace._alive.release()
    without._workspace._alive.release()
    other = QueryDirectories(base, "other")
    assert {path.name.split("-")[0] for path in base.iterdir() if path.is_dir()} == {"p", "other"}
    assert len([path for path in base.iterdir() if path.is_dir()]) == 2
    assert run.parent.exists()
    other.close()


def test_a_record_that_cannot_be_read_is_as_none(
    base: Path, changelogs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = left_behind(base, changelogs, RECORD, committed=5)
    (directory.parent / "run.json").write_text("{")
    point = checkpoint(q=2, generation=3)
    assert local_recovery(base, changelogs, point).leftover(query(), point) is None
    assert "record of a run not read" in caplog.text


# --- while it lives -----------------------------------------------------------------------------------------


def this_life(changelogs: Path, workspace: Path, *, enabled: bool = True) -> LocalRecovery:
    return LocalRecovery(
        root=ROOT,
        generation=4,
        workspace=workspace,
        changelogs=changelogs,
        enabled=enabled,
        boot="b",
        leftovers=LeftoverRuns(),
    )


def run(directory: Path, query_id: str = "id", resumed: ResumableRun | None = None) -> Run:
    return Run(1, query(), directory, query_id, resumed)


def test_runs_whose_host_was_killed_resume_but_not_twice_at_the_same_batch(
    base: Path, changelogs: Path
) -> None:
    directory = left_behind(base, changelogs, RECORD, committed=5)
    point = checkpoint(q=2, generation=3)
    found = this_life(changelogs, base)
    resumable = ResumableRun(ResumePoint("id", 2, 5), directory)
    assert found.resumable([run(directory)], point) == {"q": resumable}
    assert found.resumable([run(directory, resumed=resumable)], point) == {}, (
        "it has not got any further since"
    )
    earlier = attrs.evolve(resumable, point=ResumePoint("before", 2, 4))
    assert found.resumable([run(directory, resumed=earlier)], point) == {"q": resumable}
    assert found.resumable([run(directory), run(directory, "without changelogs")], point) == {}


def test_a_driver_without_changelogs_resumes_nothing(base: Path, changelogs: Path) -> None:
    directory = left_behind(base, changelogs, RECORD, committed=5)
    found = this_life(changelogs, base, enabled=False)
    assert found.resumable([run(directory)], checkpoint(q=2, generation=3)) == {}
    found.record(run(directory, "next"), 0, None)
    assert not (changelogs / "next").exists()


def test_a_run_is_recorded_for_the_next_driver(base: Path, changelogs: Path) -> None:
    directories = QueryDirectories(base, "p")
    directory = directories.new_run("q")
    point = checkpoint(q=2, generation=3)
    found = this_life(changelogs, directories.path)
    found.record(run(directory), 2, point)
    ((record, where),) = read_records(directory.parent.parent)
    assert where == directory
    assert record == attrs.evolve(RECORD, round=2, boot="b", base=base_of(point), known=("q",))
    found.erase_records([run(directory)])
    assert read_records(directory.parent.parent) == []
    assert (changelogs / "id").is_dir()


def test_changelogs_of_a_run_stay_until_its_successor_has_read_them(base: Path, changelogs: Path) -> None:
    """Its own directory is deleted when the next run starts, long before that one's shards are opened."""
    directories = QueryDirectories(base, "p")
    directory = directories.new_run("q")
    this_life(changelogs, directories.path).record(run(directory), 0, None)
    directories.remove(directory)
    sweep(changelogs)
    assert (changelogs / "id").is_dir()
    directories.close()
    sweep(changelogs)
    assert not (changelogs / "id").exists()


def test_a_machine_where_changelogs_cannot_be_kept_goes_without(
    base: Path, changelogs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changelogs.write_text("a file")
    directory = QueryDirectories(base, "p").new_run("q")
    found = this_life(changelogs, base)
    found.record(run(directory), 0, None)
    assert "no later life can resume this run" in caplog.text


# --- adopted queries ----------------------------------------------------------------------------------------


def adoption(root: str = "file:///p/adopted/q", batch: int = 2) -> RestorePoint:
    """What the query adopted from plain Spark, after this batch of it."""
    queries = (QueryRecord("q", batch, Handle()),)
    manifest = make_manifest(1, kind=CheckpointKind.SAVEPOINT, queries=queries, operators=())
    return RestorePoint(manifest, root, is_adopted=True)


def test_an_adopted_query_resumes_a_run_that_grew_from_the_same_adoption(
    base: Path, changelogs: Path
) -> None:
    adoptions = Adoptions()
    adoptions.add("q", adoption())
    record = attrs.evolve(RECORD, base="", adopted=adoptions.name("q"))
    left_behind(base, changelogs, record, committed=5)
    recovery = local_recovery(base, changelogs, None, adoptions=adoptions)
    found = recovery.leftover(query(), None)
    assert found is not None
    assert (found.point.after, found.point.batch) == (2, 5)
    recovery.close()


@pytest.mark.parametrize(
    ("was", "now"),
    [
        (None, adoption()),
        (adoption(), None),
        (adoption("file:///elsewhere"), adoption()),
    ],
)
def test_a_run_that_began_elsewhere_does_not_resume(
    was: RestorePoint | None, now: RestorePoint | None, base: Path, changelogs: Path
) -> None:
    before, adoptions = Adoptions(), Adoptions()
    for known, point in ((before, was), (adoptions, now)):
        if point is not None:
            known.add("q", point)
    left_behind(base, changelogs, attrs.evolve(RECORD, base="", adopted=before.name("q")), committed=5)
    recovery = local_recovery(base, changelogs, None, adoptions=adoptions)
    assert recovery.leftover(query(), None) is None
    recovery.close()


def test_once_a_checkpoint_has_the_query_its_adoption_does_not_matter(base: Path, changelogs: Path) -> None:
    adoptions = Adoptions()
    adoptions.add("q", adoption())
    point = checkpoint(7, generation=3, q=2)
    assert adoptions.base("q", point) is point
    assert adoptions.base("other", None) is None
    left_behind(base, changelogs, attrs.evolve(RECORD, adopted=adoptions.name("q")), committed=5)
    recovery = local_recovery(base, changelogs, point)
    assert recovery.leftover(query(), point) is not None
    recovery.close()
