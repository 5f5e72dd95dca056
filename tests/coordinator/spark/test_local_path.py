"""Local and remote paths, in each way in which they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from chandy.coordinator.errors import WriterError
from chandy.coordinator.spark.local_path import is_local, local_path


@pytest.mark.parametrize("location", ["/a/b c", "file:/a/b c", "file:///a/b c", "file://localhost/a/b c"])
def test_every_way_to_write_a_local_path_is_understood(location: str) -> None:
    assert is_local(location)
    assert local_path(location, role="output") == Path("/a/b c")


def test_a_relative_path_is_made_absolute() -> None:
    assert local_path("a/b", role="output") == Path.cwd() / "a" / "b"


@pytest.mark.parametrize("location", ["/a/b/../c", "file:///a/./b//../c/", "/../a/c"])
def test_there_is_one_way_to_write_a_path(location: str) -> None:
    assert local_path(location, role="output") == Path("/a/c")


def test_nothing_is_percent_decoded() -> None:
    assert local_path("file:///a/k=%3A", role="output") == Path("/a/k=%3A")


@pytest.mark.parametrize("location", ["s3://bucket/a", "hdfs://host/a", "file://host/a", "dbfs:/a"])
def test_other_file_systems_are_refused_by_name(location: str) -> None:
    with pytest.raises(WriterError) as caught:
        local_path(location, role="output of a file sink")
    assert caught.value.found == repr(location)
    assert "output of a file sink" in str(caught.value)
