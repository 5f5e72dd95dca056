"""The state of an operator as hosts hold and store it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import LongType, StringType, StructType
from rocksdict import Options, Rdict

from chandy.state.host.changes import POSITION_KEY

from ..pipeline import SHARDS

NOW = 1_700_000_000_000
TTL = 60_000
NUMBER = StructType().add("n", LongType())
NUMBER_AND_TEXT = StructType().add("n", LongType()).add("text", StringType())


class StateHost(StatefulProcessor):
    """Keeps the numbers of a key in every kind of state."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", StructType().add("k", StringType()).add("n", LongType()))
        self.brief = handle.getValueState("brief", NUMBER, TTL)
        self.list = handle.getListState("list", NUMBER_AND_TEXT)
        self.map = handle.getMapState("map", NUMBER, NUMBER_AND_TEXT)

    def handleInputRows(self, key: Any, rows: Iterable[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        for row in rows:
            self.value.update((key[0], row.n))
            self.brief.update((row.n,))
            self.list.appendValue((row.n, "x" * 100))
            self.map.updateValue((row.n,), (-row.n, "y" * 100))
            self.handle.registerTimer(NOW + 1000 * row.n)
        return iter(())


def shard_files(held: dict[tuple[int, bytes], bytes], folder: Path) -> list[Path]:
    """Databases of shards that hold this, and each the shard's own position."""
    directories = []
    for shard in range(SHARDS):
        options = Options(raw_mode=True)
        folder.mkdir(exist_ok=True)
        db = Rdict(str(folder / str(shard)), options, column_families={"default": options})
        db[POSITION_KEY] = b"7"
        for (place, key), data in held.items():
            if place == shard:
                db[key] = data
        db.close()
        directories.append(folder / str(shard))
    return directories
