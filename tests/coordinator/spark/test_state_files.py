"""The files of Spark's state stores that restore them as of a batch."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from chandy.coordinator.errors import IncompleteDirectoryError
from chandy.coordinator.spark.state_files import StateFile, choose, state_files_at


def chosen(names: list[str], version: int, ids: dict[int, set[str]] | None = None) -> list[str] | None:
    files = [file for name in names if (file := StateFile.parse(name)) is not None]
    assert len(files) == len(names)
    found = choose(files, version, {at: frozenset(some) for at, some in (ids or {}).items()})
    return None if found is None else sorted(file.name for file in found)


@pytest.mark.parametrize(
    ("version", "names"),
    [
        (1, ["1.delta"]),
        (3, ["1.delta", "2.delta", "3.delta"]),
        (4, ["4.snapshot"]),
        (6, ["4.snapshot", "5.delta", "6.delta"]),
        (7, ["7.snapshot"]),
    ],
)
def test_the_latest_snapshot_and_the_deltas_after_it_are_chosen(version: int, names: list[str]) -> None:
    files = [f"{at}.delta" for at in range(1, 9)] + ["4.snapshot", "7.snapshot"]
    assert chosen(files, version) == names


def test_rocksdb_without_changelog_needs_its_zip_alone() -> None:
    assert chosen(["1.zip", "2.zip", "3.zip"], 2) == ["2.zip"]


def test_a_snapshot_beyond_the_version_does_not_help() -> None:
    assert chosen(["3.zip", "2.changelog"], 2) is None


def test_a_gap_in_the_deltas_makes_the_store_unrestorable() -> None:
    assert chosen(["1.delta", "3.delta"], 3) is None
    assert chosen(["2.delta", "3.delta"], 3) is None
    assert chosen([], 1) is None


def test_old_deltas_that_were_cleaned_up_are_not_missed() -> None:
    assert chosen(["5.zip", "6.changelog"], 6) == ["5.zip", "6.changelog"]


def test_only_ids_that_committed_are_chosen() -> None:
    files = [
        "1_a.changelog",
        "1_lost.changelog",
        "2_b.changelog",
        "2_lost.zip",
        "2_b.changelog.crc",
        "3_c.changelog",
    ]
    ids = {1: {"a"}, 2: {"b"}, 3: {"c"}}
    assert chosen(files, 3, ids) == [
        "1_a.changelog",
        "2_b.changelog",
        "2_b.changelog.crc",
        "3_c.changelog",
    ]


def test_ids_that_no_commit_log_tells_are_trusted() -> None:
    assert chosen(["4_a.zip", "5_b.changelog", "5_lost.changelog"], 5, {5: {"b"}}) == [
        "4_a.zip",
        "5_b.changelog",
    ]


def test_a_checksum_alone_is_no_file() -> None:
    assert chosen(["1.zip.crc", "1.changelog"], 1) == ["1.changelog"]
    assert chosen(["1.changelog.crc"], 1) is None


@pytest.mark.parametrize(
    "name", ["schema", "metadata", "000008-ab.sst", ".1.delta.crc", "1.delta.tmp", "x_1.zip"]
)
def test_other_names_are_no_versioned_files(name: str) -> None:
    assert StateFile.parse(name) is None


def write(path: Path, content: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def rocksdb(folder: Path, version: int, ssts: list[str], logs: list[str]) -> None:
    for name in ssts:
        write(folder / "SSTs" / name)
    for name in logs:
        write(folder / "logs" / name)
    record = {
        "sstFiles": [{"localFileName": "1.sst", "dfsSstFileName": name} for name in ssts],
        "logFiles": [{"localFileName": "1.log", "dfsLogFileName": name} for name in logs],
    }
    with zipfile.ZipFile(folder / f"{version}.zip", "w") as archive:
        archive.writestr("metadata", f"v1\n{json.dumps(record)}")


def test_only_the_shared_files_of_the_chosen_snapshot_are_taken(tmp_path: Path) -> None:
    store = tmp_path / "state" / "0" / "0"
    rocksdb(store, 1, ["a.sst"], [])
    rocksdb(store, 2, ["a.sst", "b.sst"], ["l.log"])
    rocksdb(store, 3, ["c.sst"], [])
    write(store / "SSTs" / "b.sst.crc")
    assert sorted(state_files_at(tmp_path, 1)) == [
        "state/0/0/2.zip",
        "state/0/0/SSTs/a.sst",
        "state/0/0/SSTs/b.sst",
        "state/0/0/SSTs/b.sst.crc",
        "state/0/0/logs/l.log",
    ]


def test_of_a_listing_elsewhere_what_is_needed_is_fetched_before_it_is_read(tmp_path: Path) -> None:
    store, local = tmp_path / "there" / "state" / "0" / "0", tmp_path / "here"
    rocksdb(store, 1, ["a.sst"], [])
    rocksdb(store, 2, ["a.sst", "b.sst"], ["l.log"])
    write(store / "SSTs" / "b.sst.crc")
    names = [path.relative_to(store.parents[1]).as_posix() for path in store.rglob("*") if path.is_file()]
    fetched: list[str] = []

    def fetch(wanted: list[str]) -> None:
        fetched.extend(wanted)
        for name in wanted:
            (local / name).parent.mkdir(parents=True, exist_ok=True)
            (local / name).write_bytes((tmp_path / "there" / name).read_bytes())

    found = state_files_at(local, 1, names=names, fetch=fetch)
    assert sorted(found) == sorted(fetched) == sorted(state_files_at(tmp_path / "there", 1))
    assert sorted(state_files_at(local, 1)) == sorted(found)


def test_hidden_checksums_and_what_a_later_start_wrote_stay_behind(tmp_path: Path) -> None:
    operator = tmp_path / "state" / "3"
    for name in ("0/.1.delta.crc", "0/1.delta", "0/_metadata/schema", "_metadata/metadata", "_metadata/v2/0"):
        write(operator / name)
    for name in (
        "_metadata/v2/4",
        "_stateSchema/default/0_a",
        "_stateSchema/default/4_b",
        "_metadata/v2/.0.crc",
    ):
        write(operator / name)
    assert sorted(state_files_at(tmp_path, 0)) == [
        "state/3/0/1.delta",
        "state/3/0/_metadata/schema",
        "state/3/_metadata/metadata",
        "state/3/_metadata/v2/0",
        "state/3/_stateSchema/default/0_a",
    ]


def test_ids_are_those_of_the_stores_own_operator_and_partition(tmp_path: Path) -> None:
    write(
        tmp_path / "commits" / "0", 'v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{"7":[["p"],["q","r"]]}}'
    )
    for name in ("0/1_p.changelog", "0/1_q.changelog", "1/left/1_q.changelog", "1/right/1_r.changelog"):
        write(tmp_path / "state" / "7" / name)
    assert sorted(state_files_at(tmp_path, 0)) == [
        "state/7/0/1_p.changelog",
        "state/7/1/left/1_q.changelog",
        "state/7/1/right/1_r.changelog",
    ]


def test_a_store_that_cannot_be_restored_is_named(tmp_path: Path) -> None:
    write(tmp_path / "state" / "0" / "1" / "5.delta")
    with pytest.raises(IncompleteDirectoryError) as caught:
        state_files_at(tmp_path, 4)
    assert caught.value.found == "no state/0/1 at version 5"


def test_a_query_without_state_has_no_state_files(tmp_path: Path) -> None:
    assert state_files_at(tmp_path, 4) == []
