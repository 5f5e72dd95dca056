"""A data source as users write them for plain Spark: its stream writer puts files into a folder, and lists them.

It knows nothing of Chandy. ``commit`` is idempotent: a ``batchId`` that is listed is not listed again. Files in the
folder ``marks`` make it fail, or kill its process, at the place that they are named after; each does so once.
"""
# The methods have PySpark's names.
# ruff: noqa: N802, N803

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType


@dataclass
class Written(WriterCommitMessage):
    """The file of one task."""

    name: str
    rows: int
    ballast: bytes = b""


class FileSource(DataSource):
    """Options: ``path``; ``writer`` tells several in one folder apart; ``ballast``: bytes in each message."""

    @classmethod
    def name(cls) -> str:
        return "listedFiles"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return FileWriter(dict(self.options), schema, overwrite)


class ArrowFileSource(FileSource):
    @classmethod
    def name(cls) -> str:
        return "listedArrow"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return ArrowFileWriter(dict(self.options), schema, overwrite)


class FileWriter(DataSourceStreamWriter):
    def __init__(self, options: dict[str, str], schema: StructType, overwrite: bool) -> None:
        self.folder = Path(options["path"])
        self.writer = options.get("writer", "")
        self.ballast = int(options.get("ballast", "0"))
        self.schema = schema
        self.overwrite = overwrite
        # The same in all tasks of a batch.
        self.id = uuid.uuid4().hex

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        return self.put([row.asDict(recursive=True) for row in iterator])

    def put(self, rows: list[dict[str, Any]]) -> WriterCommitMessage:
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        name = f"{self.id}-{partition}-{uuid.uuid4().hex}"
        path = self.folder / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(rows, default=str))
        told(self.folder, "write", partition, len(rows))
        marked(self.folder, f"write-{partition}")
        return Written(name, len(rows), b"b" * self.ballast)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        told(self.folder, "commit", batchId, [one.rows for one in messages])  # type: ignore[union-attr]
        marked(self.folder, "commit")
        listed = self.folder / "listed"
        listed.mkdir(parents=True, exist_ok=True)
        new = listed / f".{uuid.uuid4().hex}"
        new.write_text(json.dumps([one.name for one in messages]))  # type: ignore[union-attr]
        try:
            (listed / f"{self.writer}-{batchId}.json").hardlink_to(new)
        except FileExistsError:
            told(self.folder, "repeated", batchId)
        new.unlink()
        marked(self.folder, "committed")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        told(self.folder, "abort", batchId, [one.rows if one else None for one in messages])  # type: ignore[attr-defined]
        for one in messages:
            if one is not None:
                (self.folder / "data" / one.name).unlink()  # type: ignore[attr-defined]
        marked(self.folder, "abort")


class ArrowFileWriter(DataSourceStreamArrowWriter, FileWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        return self.put([row for batch in iterator for row in batch.to_pylist()])


def told(folder: Path, *words: object) -> None:
    """Note a call, also of a process that is killed next."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "calls").open("a") as file:
        file.write(json.dumps(words) + "\n")


def marked(folder: Path, place: str) -> None:
    """Fail or kill where a mark lies: its text says how."""
    path = folder / "marks" / place
    try:
        how = path.read_text()
        path.unlink()
    except FileNotFoundError:
        return
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    kind = {"connection": ConnectionError, "time": TimeoutError}.get(how, ValueError)
    raise kind(f"made to fail in {place}")


# --- for tests ----------------------------------------------------------------------------------------------


def mark(folder: Path, place: str, how: str = "fail") -> None:
    """Make the writer fail (``fail``, ``connection``, ``time``) or its process die (``kill``) at a place, once."""
    (folder / "marks").mkdir(parents=True, exist_ok=True)
    hidden = folder / "marks" / f".{place}"
    hidden.write_text(how)
    hidden.rename(folder / "marks" / place)


def calls(folder: Path, *methods: str) -> list[list[Any]]:
    """The calls so far, of some methods or of all."""
    try:
        lines = (folder / "calls").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [call for call in map(json.loads, lines) if not methods or call[0] in methods]


def rows(folder: Path) -> list[dict[str, Any]]:
    """What a reader sees: the rows of the files that are listed, once for each time that they are."""
    names = [
        name
        for path in sorted((folder / "listed").glob("[!.]*.json"))
        for name in json.loads(path.read_text())
    ]
    return [row for name in names for row in json.loads((folder / "data" / name).read_text())]


def files(folder: Path) -> set[str]:
    """The names of all files that tasks have written and that are still there."""
    return {path.name for path in (folder / "data").glob("*")}
