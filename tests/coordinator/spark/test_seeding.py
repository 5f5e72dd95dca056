"""New working directories from the files of a checkpoint."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from chandy.coordinator.errors import RestoreError
from chandy.coordinator.spark.progress import query_id
from chandy.coordinator.spark.seeding import moved, seed

SCHEMA = "state/0/_stateSchema/default/0_ab"


def operator_metadata(root: str) -> str:
    store = {"storeName": "default", "numPartitions": 2, "stateSchemaFilePaths": [f"{root}/{SCHEMA}"]}
    return "v2\n" + json.dumps({"operatorInfo": {"operatorId": 0}, "stateStoreInfo": [store]})


@pytest.fixture
def files(tmp_path: Path) -> Path:
    contents = {
        "metadata": '{"id":"old"}',
        "offsets/3": "o",
        "state/0/0/4.zip": "z",
        "state/0/0/4.zip.crc": "Spark's",
        "state/0/0/.4.zip.crc": "Hadoop's",
        "state/0/_metadata/v2/0": operator_metadata("file:/old/place"),
        "state/0/_metadata/v2/0.crc": "of the old path",
        SCHEMA: "s",
    }
    for name, content in contents.items():
        path = tmp_path / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return tmp_path / "files"


def test_a_seeded_directory_has_a_new_id_and_the_files(files: Path, tmp_path: Path) -> None:
    target = tmp_path / "new" / "work"
    new_id = seed(files, target)
    assert query_id(target) == new_id == str(uuid.UUID(new_id)) != "old"
    assert (target / "offsets" / "3").read_text() == "o"
    assert (target / "state" / "0" / "0" / "4.zip.crc").read_text() == "Spark's"
    assert query_id(files) == "old"


def test_paths_in_a_directory_for_a_store_are_those_of_the_store(files: Path, tmp_path: Path) -> None:
    seed(files, tmp_path / "work", location="hdfs://name:8020/chandy/work")
    text = (tmp_path / "work" / "state" / "0" / "_metadata" / "v2" / "0").read_text()
    (store,) = json.loads(text.split("\n", 1)[1])["stateStoreInfo"]
    assert store["stateSchemaFilePaths"] == [f"hdfs://name:8020/chandy/work/{SCHEMA}"]


def test_two_seeds_have_two_ids(files: Path, tmp_path: Path) -> None:
    assert seed(files, tmp_path / "1") != seed(files, tmp_path / "2")


def test_checksums_of_what_has_changed_stay_behind(files: Path, tmp_path: Path) -> None:
    seed(files, tmp_path / "work")
    left = {path.name for path in (tmp_path / "work").rglob("*.crc")}
    assert left == {"4.zip.crc"}


def test_paths_inside_operator_metadata_lead_to_the_new_directory(files: Path, tmp_path: Path) -> None:
    seed(files, tmp_path / "work")
    version, text = (tmp_path / "work" / "state" / "0" / "_metadata" / "v2" / "0").read_text().split("\n")
    (path,) = json.loads(text)["stateStoreInfo"][0]["stateSchemaFilePaths"]
    assert version == "v2"
    assert path == f"file:{tmp_path}/work/{SCHEMA}"
    assert Path(path.removeprefix("file:")).read_text() == "s"
    assert "old/place" in (files / "state" / "0" / "_metadata" / "v2" / "0").read_text()


def test_the_rest_of_operator_metadata_stays() -> None:
    before = operator_metadata("hdfs://host:9000/state/1/_stateSchema/of/a/user")
    after = moved(before, "file:/new")
    assert after == json_of_v2(operator_metadata("file:/new"))
    assert moved('v2\n{"stateStoreInfo":[{}]}', "file:/new") == (
        'v2\n{"stateStoreInfo":[{"stateSchemaFilePaths":[]}]}'
    )


def json_of_v2(text: str) -> str:
    return "v2\n" + json.dumps(json.loads(text.split("\n")[1]), separators=(",", ":"))


def test_no_files_make_a_query_that_begins_anew(tmp_path: Path) -> None:
    new_id = seed(tmp_path / "none", tmp_path / "work")
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["metadata"]
    assert query_id(tmp_path / "work") == new_id


def test_a_directory_in_use_is_refused(files: Path, tmp_path: Path) -> None:
    seed(files, tmp_path / "work")
    with pytest.raises(RestoreError, match="to be empty"):
        seed(files, tmp_path / "work")
