"""What all files of a directory have in common, because readers take them for one table: format, folders, columns."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Self

import attrs

from ...sinks.two_phase.errors import OutputError
from ..tables.schema import fit, misfits

if TYPE_CHECKING:
    import pyarrow as pa


@attrs.frozen
class DirectoryLayout:
    """The layout of a directory, as its log has it."""

    format: str
    partition_by: tuple[str, ...]
    encoded: str
    """The columns with their types, in order: an Arrow schema as Base64."""

    @classmethod
    def of(cls, format: str, partition_by: tuple[str, ...], schema: pa.Schema) -> Self:
        """Return the layout of rows. In files any value may be null."""
        import pyarrow as pa

        columns = pa.schema([pa.field(field.name, _nullable(field.type)) for field in schema])
        return cls(format, partition_by, base64.b64encode(columns.serialize()).decode())

    @property
    def columns(self) -> pa.Schema:
        """The columns, also those that name folders."""
        import pyarrow as pa

        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.encoded)))

    def joined(self, rows: DirectoryLayout, target: str) -> DirectoryLayout:
        """Return the layout with other rows, too, whose columns may be fewer, narrower, or in another order.

        Columns that it does not have come at the end. Spark takes those of CSV by their position, whatever the header
        says, so there may be none.

        Args:
            rows: what the rows alone would have.
            target: the directory, for messages.

        Raises:
            OutputError: readers could not take both for one table.
        """
        import pyarrow as pa

        here, given = self.columns, rows.columns
        common = [field for field in given if field.name in here.names]
        added = [field for field in given if field.name not in here.names]
        found = misfits(pa.schema(common), here)
        if self.format == "csv":
            found += [f"column {field.name!r} besides them" for field in added]
        if self.format != rows.format:
            found.append(f"the format {rows.format}")
        if self.partition_by != rows.partition_by:
            found.append(f"partition_by={rows.partition_by}")
        if found:
            raise OutputError(
                f"{target} cannot be written",
                f"rows as it has them: {self.format}, partition_by={self.partition_by}, "
                f"{', '.join(f'{field.name} {field.type}' for field in here)}",
                "; ".join(found),
                "use another directory; or select and cast the columns in the query, and correct the sink",
            )
        return self.of(self.format, self.partition_by, pa.schema([*here, *added]))

    def applied(self, rows: pa.Table, target: str) -> pa.Table:
        """Return rows that were joined with their columns in the layout's order and types."""
        columns = self.columns
        return rows if rows.schema.equals(columns) else fit(rows, columns, target)


def _nullable(type_: pa.DataType) -> pa.DataType:
    """Return a type whose parts all take nulls."""
    import pyarrow as pa

    if pa.types.is_struct(type_):
        return pa.struct([pa.field(part.name, _nullable(part.type)) for part in type_])
    if pa.types.is_map(type_):
        return pa.map_(_nullable(type_.key_type), _nullable(type_.item_type))
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return pa.list_(_nullable(type_.value_type))
    return type_
