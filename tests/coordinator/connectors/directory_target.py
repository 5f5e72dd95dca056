"""A directory that a FilesSink publishes to."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

import attrs
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from chandy.coordinator.connectors.files.sink import FilesSink, url_of
from chandy.coordinator.spark.logs.compact_log import entry_number, missing_entry, names_at
from chandy.storage.backends.open import open_store
from chandy.testing import SCHEMA, Row, SinkTarget

from ...integration.conftest import spark as spark


@attrs.frozen
class Directory(SinkTarget):
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

    def check_nothing_left(self) -> None:
        # Files of epochs that nobody has published would be seen by readers of the directory.
        assert sorted(self.listed()) == sorted(self.files())

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


def keys(directory: Directory, *, all_listed: bool = True) -> list[int]:
    if all_listed:
        assert sorted(directory.files()) == sorted(directory.listed())
    return sorted(row[0] for row in directory.rows())
