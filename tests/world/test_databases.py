"""The databases of the simulator and those of production do the same for a shard."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from chandy.state.errors import ShardClosedError
from chandy.state.host.cache import Value
from chandy.state.host.database import Databases, ShardDatabase
from chandy.state.host.rocksdb import RocksDatabases
from chandy.state.host.shard_snapshot import snapshot_files
from chandy.storage.ids import NO_BATCH, BatchId

from ..effort import examples
from .memory_databases import MemoryDatabases

KINDS: dict[str, Callable[[int], Databases]] = {"rocksdb": RocksDatabases, "memory": MemoryDatabases}
KEYS = st.sampled_from([bytes([first, second]) for first in b"\x01\x02a" for second in b"\x00b\xff"])
CHANGES = st.dictionaries(KEYS, st.none() | st.binary(max_size=3), max_size=4)
MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
FIRST, LAST = b"\x00", b"\xff"


class BothDatabases(RuleBasedStateMachine):
    """The same calls to both kinds, with the same answers."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY))
        self.numbers = itertools.count()
        self.batch = NO_BATCH
        self.kinds = {name: kind(8 << 20) for name, kind in KINDS.items()}
        self.opened = {name: kind.open("op/0", self.folder / name) for name, kind in self.kinds.items()}
        self.scans: list[dict[str, Iterator[tuple[bytes, bytes]]]] = []
        self.checkpoints: list[dict[str, Path]] = []

    def both(self, call: Callable[[ShardDatabase], Any]) -> Any:
        """What both answer."""
        first, second = (call(database) for database in self.opened.values())
        assert first == second
        return first

    @rule(entries=CHANGES, checkpoint=st.booleans())
    def write(self, entries: Mapping[bytes, Value], checkpoint: bool) -> None:
        self.batch = BatchId(self.batch + 1)
        self.both(lambda database: database.write(entries, self.batch))
        if checkpoint:
            self.checkpoint()

    @rule(keys=st.lists(KEYS, max_size=4))
    def read(self, keys: list[bytes]) -> None:
        self.both(lambda database: database.read(keys))

    @rule(start=KEYS, stop=KEYS)
    def scan(self, start: bytes, stop: bytes) -> None:
        """Begin a scan, which goes on while there are writes."""
        begun = {name: database.scan(start, stop) for name, database in self.opened.items()}
        assert len({next(entries, None) for entries in begun.values()}) == 1
        self.scans.append(begun)

    @rule()
    def end_scans(self) -> None:
        for begun in self.scans:
            first, second = (list(entries) for entries in begun.values())
            assert first == second
        self.scans.clear()

    def checkpoint(self) -> None:
        number = next(self.numbers)
        made = {name: self.folder / f"{name}-{number}" for name in self.opened}
        for name, database in self.opened.items():
            database.checkpoint(made[name])
            assert set(snapshot_files(made[name])) >= {"CURRENT"}
        self.checkpoints.append(made)

    @rule(data=st.data())
    def reopen(self, data: st.DataObject) -> None:
        """Go on from any checkpoint, whatever has happened since."""
        if not self.checkpoints:
            return
        chosen = data.draw(st.sampled_from(self.checkpoints))
        self.close()
        for name, kind in self.kinds.items():
            directory = self.folder / f"{name}-{next(self.numbers)}"
            directory.mkdir()
            for file, path in snapshot_files(chosen[name]).items():
                if file.endswith(".sst"):
                    (directory / file).hardlink_to(path)
                else:
                    shutil.copy(path, directory / file)
            self.opened[name] = kind.open("op/0", directory)
        assert self.both(lambda database: database.position) <= self.batch

    @invariant()
    def same(self) -> None:
        self.both(lambda database: database.empty)
        self.both(lambda database: list(database.scan(FIRST, LAST)))

    def close(self) -> None:
        self.end_scans()
        for database in self.opened.values():
            database.close()

    def teardown(self) -> None:
        self.close()
        shutil.rmtree(self.folder)


TestBothDatabases = BothDatabases.TestCase
BothDatabases.TestCase.settings = settings(max_examples=examples(8), stateful_step_count=40, deadline=None)


@pytest.fixture(params=KINDS)
def databases(request: pytest.FixtureRequest) -> Databases:
    return KINDS[request.param](8 << 20)


def test_tables_are_shared_with_later_checkpoints_and_have_no_name_twice(
    databases: Databases, tmp_path: Path
) -> None:
    database = databases.open("op/0", tmp_path / "shard")
    contents: dict[str, bytes] = {}
    for batch in range(8):
        database.write({b"k%d" % batch: b"v"}, batch)
        assert database.checkpoint(tmp_path / f"{batch}") >= 1
        tables = {
            name: path for name, path in snapshot_files(tmp_path / f"{batch}").items() if ".sst" in name
        }
        if 0 < batch < 3:
            assert contents.keys() < tables.keys()
        for name, path in tables.items():
            assert contents.setdefault(name, path.read_bytes()) == path.read_bytes()
    with contextlib.closing(database), pytest.raises(Exception, match=r"(?i)exist"):
        database.checkpoint(tmp_path / "0")


def test_no_table_has_the_bytes_of_another_one(databases: Databases, tmp_path: Path) -> None:
    contents = set()
    for name in "ab":
        database = databases.open("op/0", tmp_path / name)
        database.write({b"k": b"v"}, 0)
        database.checkpoint(tmp_path / f"of {name}")
        database.close()
        [table] = (path for file, path in snapshot_files(tmp_path / f"of {name}").items() if ".sst" in file)
        contents.add(table.read_bytes())
    assert len(contents) == 2


def test_what_comes_after_the_end_is_refused(databases: Databases, tmp_path: Path) -> None:
    database = databases.open("op/0", tmp_path / "shard")
    database.write({b"k": b"v"}, 0)
    database.close()
    with pytest.raises(ShardClosedError):
        database.read([b"k"])
    with pytest.raises(ShardClosedError):
        next(database.scan(FIRST, LAST))
    for end in (lambda: database.write({b"k": b"w"}, 1), lambda: database.checkpoint(tmp_path / "late")):
        with pytest.raises(Exception, match=r"(?i)closed"):
            end()
