"""Keys and values as two Arrow columns, the form in which changes are sent and written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import attrs
import pyarrow as pa

from .arrow import BYTES


@attrs.frozen(eq=False)
class Columns:
    """Keys with their values. The last value of a key counts."""

    keys: pa.Array
    """Of type ``BYTES``, without nulls."""
    values: pa.Array
    """Of type ``BYTES``. Null deletes the key."""

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def of(cls, entries: Mapping[bytes, bytes | None]) -> Self:
        """Return the columns of a table. None deletes the key."""
        return cls(pa.array(list(entries), BYTES), pa.array(list(entries.values()), BYTES))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of at least one part, one after the other."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            pa.concat_arrays([part.keys for part in parts]), pa.concat_arrays([part.values for part in parts])
        )

    def slice(self, start: int, stop: int) -> Self:
        """Return the rows from ``start`` up to, not including, ``stop``. Nothing is copied."""
        return type(self)(self.keys.slice(start, stop - start), self.values.slice(start, stop - start))

    def entries(self) -> dict[bytes, bytes | None]:
        """Return the value of each key. None deletes it."""
        return dict(zip(self.keys.to_pylist(), self.values.to_pylist(), strict=True))
