"""Tables of Iceberg that a sink publishes to."""

from __future__ import annotations

from pathlib import Path

import attrs
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog

from chandy.coordinator.connectors.tables.iceberg import IcebergSink
from chandy.testing import SCHEMA, Row, SinkTarget


@attrs.frozen
class IcebergTarget(SinkTarget):
    folder: Path
    name: str = "flights.delays"

    @property
    def properties(self) -> dict[str, str]:
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.folder}/catalog.db",
            "warehouse": f"file://{self.folder}/warehouse",
        }

    def sink(self, uid: str = "out") -> IcebergSink:
        return IcebergSink(self.properties, self.name, uid=uid)

    def make(self) -> IcebergTarget:
        (self.folder / "warehouse").mkdir(parents=True, exist_ok=True)
        self.sink().check(SCHEMA)
        return self

    def catalog(self) -> Catalog:
        return load_catalog("default", **self.properties)

    def rows(self) -> list[Row]:
        found = self.catalog().load_table(self.name).scan().to_arrow().to_pylist()
        return [(row["k"], row["v"]) for row in found]

    def add(self, *rows: Row) -> None:
        """Append as another program does."""
        data = pa.Table.from_pylist([{"k": k, "v": v} for k, v in rows], schema=SCHEMA)
        self.catalog().load_table(self.name).append(data)


class IcebergUpserts(IcebergTarget):
    def sink(self, uid: str = "out") -> IcebergSink:
        return attrs.evolve(super().sink(uid), mode="upsert", key=["k"])


@pytest.fixture
def table(tmp_path: Path) -> IcebergTarget:
    return IcebergTarget(tmp_path / "lake").make()


def roll_back_to(table: IcebergTarget, snapshot: int | None) -> int:
    """Roll a table back to a snapshot, if one is given; return its newest one."""
    found = table.catalog().load_table(table.name)
    if snapshot is not None:
        found.manage_snapshots().set_current_snapshot(snapshot).commit()
    newest = table.catalog().load_table(table.name).current_snapshot()
    assert newest is not None
    return newest.snapshot_id
