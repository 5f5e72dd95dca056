"""Which places executors reach, by what the user has named."""

from __future__ import annotations

import pytest

from chandy.coordinator.errors import SetupError
from chandy.coordinator.spark.reachable_places import check_reach, for_hadoop, has_other_machines


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2]", "local[2,3]", "local-cluster[2,1,1024]"])
def test_one_machine_reaches_its_own_disk(master: str) -> None:
    assert not has_other_machines(master)
    check_reach(master, {"the checkpoints": "/tmp/store"}, shared=False)


@pytest.mark.parametrize("master", ["yarn", "spark://name:7077", "k8s://https://name", "localhost"])
@pytest.mark.parametrize("place", ["/tmp/store", "file:/tmp/store", "file:///tmp/store", "relative"])
def test_a_local_path_on_a_cluster_is_refused_unless_it_is_shared(master: str, place: str) -> None:
    with pytest.raises(SetupError) as refused:
        check_reach(master, {"the checkpoints": place}, shared=False)
    assert str(refused.value) == (
        f"the checkpoints cannot be kept in {place}: expected a place that all machines of {master} reach, found a "
        "path on the driver's machine; name a store such as hdfs://... or s3a://...; if the path is on a file system "
        "that is mounted there on all machines, say so by CheckpointConfig(shared=True)"
    )
    check_reach(master, {"the checkpoints": place}, shared=True)


def test_stores_are_reached_from_everywhere() -> None:
    places = {place: place for place in ("hdfs://n/p", "hdfs:///p", "s3a://b/p", "s3://b/p", "abfss://c@a/p")}
    check_reach("yarn", places, shared=False)


def test_the_first_place_that_is_not_reached_is_named() -> None:
    with pytest.raises(SetupError, match=r"^the output cannot be kept in /out"):
        check_reach("yarn", {"state": "hdfs:///w", "the output": "/out", "more": "/more"}, shared=False)


@pytest.mark.parametrize(
    ("uri", "written"),
    [
        ("s3://b/p", "s3a://b/p"),
        ("s3n://b/p", "s3a://b/p"),
        ("s3a://b/p", "s3a://b/p"),
        ("hdfs://n/s3://", None),
    ],
)
def test_hadoop_has_its_own_scheme_for_s3(uri: str, written: str | None) -> None:
    assert for_hadoop(uri) == (written or uri)
