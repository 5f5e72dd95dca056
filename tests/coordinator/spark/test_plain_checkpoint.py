"""What a plain Spark query's checkpoint directory says, and which files of it go on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chandy.coordinator.errors import AdoptionError, IncompleteDirectoryError, RestoreError
from chandy.coordinator.spark.plain_checkpoint import (
    StateVariable,
    files_to_adopt,
    read_checkpoint,
    with_new_sources,
    without_state,
)

OFFSET = '{"logOffset":%d}'


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A checkpoint with batches 0 to 3 committed, and one source of files."""
    (tmp_path / "metadata").write_text('{"id":"5f3a"}')
    for batch in range(4):
        write(tmp_path / "offsets" / str(batch), "v1", {"batchWatermarkMs": batch}, OFFSET % batch)
        write(tmp_path / "commits" / str(batch), "v1", {"nextBatchWatermarkMs": batch + 1})
        write(tmp_path / "sources" / "0" / str(batch), "v1")
    return tmp_path


def write(path: Path, version: str, fields: object = None, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([version, *([] if fields is None else [json.dumps(fields)]), *lines]))


def test_a_checkpoint_says_how_far_its_query_came(place: Path) -> None:
    found = read_checkpoint(f"file://{place}")
    assert (found.query_id, found.committed, found.planned) == ("5f3a", 3, 3)
    assert found.offsets == (OFFSET % 3,)
    assert found.watermark_ms == 4
    assert not found.is_interrupted
    assert found.operators == ()


def test_the_metadata_of_operators_is_read_in_both_formats(place: Path) -> None:
    info = {"operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"}}
    write(place / "state" / "0" / "_metadata" / "metadata", "v1", info)
    variables = [
        {"stateName": "total", "stateVariableType": "ValueState", "ttlEnabled": True},
        {"stateName": "$procTimers_keyToTimestamp", "stateVariableType": "TimerState", "ttlEnabled": False},
    ]
    properties = {"timeMode": "ProcessingTime", "outputMode": "Update", "stateVariables": variables}
    newer = {
        "operatorInfo": {"operatorId": 1, "operatorName": "transformWithStateInPySparkExec"},
        "operatorPropertiesJson": json.dumps(properties),
    }
    write(place / "state" / "1" / "_metadata" / "v2" / "0", "v2", info)
    write(place / "state" / "1" / "_metadata" / "v2" / "3", "v2", newer)
    # The next start has declared another state, and its first batch has not committed.
    write(place / "state" / "1" / "_metadata" / "v2" / "4", "v2", info)
    (place / "state" / "2").mkdir()
    count, keyed, unknown = read_checkpoint(str(place)).operators
    assert (count.name, count.is_keyed) == ("stateStoreSave", False)
    assert (keyed.id, keyed.is_keyed, keyed.time_mode) == (1, True, "ProcessingTime")
    assert keyed.variables == (StateVariable("total", "value", expires=True),)
    assert unknown.name == ""


def test_files_of_the_newest_committed_batch_are_taken_and_what_was_planned_after_it(place: Path) -> None:
    assert "commits/0" not in files_to_adopt(read_checkpoint(str(place)), native_state=True)
    (place / "commits" / "3").unlink()
    # The source has logged more than was planned.
    write(place / "sources" / "0" / "4", "v1")
    found = read_checkpoint(str(place))
    assert found.is_interrupted
    taken = files_to_adopt(found, native_state=True)
    assert sorted(taken) == [
        "commits/2",
        "metadata",
        "offsets/1",
        "offsets/2",
        "offsets/3",
        *(f"sources/0/{batch}" for batch in range(5)),
    ]


def test_of_a_query_that_never_committed_its_plan_is_taken(place: Path) -> None:
    for batch in range(4):
        (place / "commits" / str(batch)).unlink()
        if batch:
            (place / "offsets" / str(batch)).unlink()
            (place / "sources" / "0" / str(batch)).unlink()
    taken = files_to_adopt(read_checkpoint(str(place)), native_state=True)
    assert sorted(taken) == ["metadata", "offsets/0", "sources/0/0"]


def test_state_is_taken_if_it_stays_sparks_own(place: Path) -> None:
    write(place / "state" / "0" / "0" / "4.snapshot", "v1")
    found = read_checkpoint(str(place))
    assert "state/0/0/4.snapshot" in files_to_adopt(found, native_state=True)
    assert not [name for name in files_to_adopt(found, native_state=False) if name.startswith("state/")]


# --- what is refused ----------------------------------------------------------------------------------------


def refusal(place: Path | str) -> str:
    with pytest.raises(AdoptionError) as raised:
        read_checkpoint(str(place))
    return str(raised.value)


def test_what_is_no_checkpoint_is_refused(place: Path, tmp_path: Path) -> None:
    assert "found no directory" in refusal(tmp_path / "nowhere")
    assert "copy the directory to a disk" in refusal("s3a://bucket/checkpoint")
    inner = tmp_path / "all" / "mine"
    inner.mkdir(parents=True)
    (inner / "metadata").write_text('{"id":"1"}')
    assert f"did you mean {inner}?" in refusal(tmp_path / "all")


def test_missing_and_unreadable_files_are_named(place: Path) -> None:
    (place / "offsets" / "3").rename(place / "kept")
    assert "expected offsets/3" in refusal(place)
    (place / "kept").rename(place / "offsets" / "3")
    (place / "offsets" / "3").write_text("v1\nnot JSON\n")
    assert "cannot be adopted: expected the files that Spark" in refusal(place)
    (place / "offsets" / "3").write_text("v1\n{}")
    (place / "commits" / "2").unlink()
    read_checkpoint(str(place))
    (place / "commits" / "3").unlink()
    assert "asyncProgressTrackingEnabled" in refusal(place)


def test_a_gap_in_the_log_of_a_source_is_found(place: Path) -> None:
    (place / "sources" / "0" / "1").unlink()
    with pytest.raises(IncompleteDirectoryError, match="sources/0/1"):
        files_to_adopt(read_checkpoint(str(place)), native_state=True)


def test_the_logs_of_a_newer_spark_are_refused(place: Path) -> None:
    write(place / "offsets" / "3", "v99", {}, OFFSET % 3)
    with pytest.raises(RestoreError, match="version 99"):
        read_checkpoint(str(place))


# --- logs that say something else ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("added", "offsets"),
    [((), ["a", "b"]), ((1,), ["a", "-", "b"]), ((0, 3), ["-", "a", "b", "-"]), ((2,), ["a", "b", "-"])],
)
def test_new_sources_have_no_offset_yet(added: tuple[int, ...], offsets: list[str]) -> None:
    assert with_new_sources("v1\n{}\na\nb", added).splitlines() == ["v1", "{}", *offsets]


def test_a_log_with_named_sources_needs_no_line_for_a_new_one() -> None:
    # Sources are known by their names, if they have any.
    assert with_new_sources("v2\n{}\nx:{}", (1,)) == "v2\n{}\nx:{}"
    assert with_new_sources('v2\n{}\n0:{"a":1}\n1:-', (1,)) == 'v2\n{}\n0:{"a":1}\n1:-\n2:-'
    assert with_new_sources("v2\n{}\n0:a\n1:b", (0, 2)) == "v2\n{}\n0:-\n1:a\n2:-\n3:b"


def test_a_commit_forgets_the_state_that_is_no_longer_sparks() -> None:
    entry = 'v2\n{"nextBatchWatermarkMs":5,"stateUniqueIds":{"0":[["a"]]}}'
    assert without_state(entry) == 'v2\n{"nextBatchWatermarkMs":5}'


@pytest.mark.parametrize(
    ("stored", "said"), [("NoTime", "None"), ("EventTime", "EventTime"), ("ProcessingTime", "ProcessingTime")]
)
def test_a_time_mode_is_told_as_pyspark_takes_it(place: Path, stored: str, said: str) -> None:
    record = {
        "operatorInfo": {"operatorId": 0, "operatorName": "transformWithStateInPySparkExec"},
        "operatorPropertiesJson": json.dumps({"timeMode": stored, "stateVariables": []}),
    }
    write(place / "state" / "0" / "_metadata" / "v2" / "0", "v2", record)
    assert read_checkpoint(str(place)).operators[0].time_mode == said
