"""Tables of Delta that a sink publishes to."""

from __future__ import annotations

import attrs
import deltalake
import pyarrow as pa

from chandy.coordinator.connectors.tables.delta import DeltaSink
from chandy.testing import SCHEMA, Row, SinkTarget


@attrs.frozen
class DeltaTarget(SinkTarget):
    uri: str
    options: dict[str, str] | None = None

    def sink(self, uid: str = "out") -> DeltaSink:
        return DeltaSink(self.uri, self.options, uid=uid)

    def make(self) -> DeltaTarget:
        self.sink().check(SCHEMA)
        return self

    def open(self) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(self.uri, storage_options=self.options)

    def rows(self) -> list[Row]:
        return [(row["k"], row["v"]) for row in self.open().to_pyarrow_table().to_pylist()]

    def add(self, *rows: Row) -> None:
        """Append as another program does."""
        data = pa.Table.from_pylist([{"k": k, "v": v} for k, v in rows], schema=SCHEMA)
        deltalake.write_deltalake(self.open(), data, mode="append")


class DeltaUpserts(DeltaTarget):
    def sink(self, uid: str = "out") -> DeltaSink:
        return DeltaSink(self.uri, self.options, uid=uid, mode="upsert", key=["k"])
