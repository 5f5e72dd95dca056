"""Storing the files of snapshots and bringing them back."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chandy.storage import DamagedError, InvalidNameError, ObjectMissingError, Store, StoreFailedError
from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints import snapshots
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.collect import discard, ended
from chandy.storage.checkpoints.files import FileCache, file_sha256
from chandy.storage.checkpoints.layout import shadow_folder
from chandy.storage.checkpoints.manifest import FileRef, Handle, Manifest
from chandy.storage.checkpoints.packs import MOST_PACKS
from chandy.storage.checkpoints.proof import Unshared
from chandy.storage.checkpoints.restore import THREADS, restore_files
from chandy.storage.checkpoints.snapshots import (
    PACK_BELOW,
    SnapshotSource,
    SnapshotWriter,
    StoredSnapshot,
    copy_snapshot,
)

from ...builders import MemoryStore, make_manifest
from ...effort import examples

LARGE = PACK_BELOW + 1

Contents = dict[str, bytes]


def fill(directory: Path, contents: Contents) -> dict[str, Path]:
    for name, content in contents.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return {name: directory / name for name in contents}


def contents_of(directory: Path) -> Contents:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def snapshot(
    store: Store, directory: Path, contents: Contents, checkpoint: int = 1, base: Handle | None = None
) -> StoredSnapshot:
    writer = SnapshotWriter(store, f"checkpoints/{checkpoint}/host.pack")
    writer.add("0", fill(directory, contents), base)
    return writer.finish()["0"]


@pytest.fixture
def contents() -> Contents:
    return {
        "000012.sst": os.urandom(LARGE),
        "000013.sst": os.urandom(100),
        "state/0/1.delta": os.urandom(LARGE + 3),
        "MANIFEST-000009": os.urandom(LARGE + 5),
        "CURRENT": b"MANIFEST-000009\n",
        "sources/0/3": b"v1\n{}",
        "empty": b"",
    }


def test_restored_files_are_the_stored_ones(store: LocalStore, tmp_path: Path, contents: Contents) -> None:
    stored = snapshot(store, tmp_path / "a", contents)
    report = restore_files(store, stored.handle, tmp_path / "b")
    assert contents_of(tmp_path / "b") == contents
    total = sum(map(len, contents.values()))
    # Sizes are bytes, not numbers of files.
    assert stored.handle.size == stored.new_bytes == total
    assert (report.files, report.bytes, report.cached_bytes, report.downloaded_bytes) == (7, total, 0, total)


@settings(max_examples=examples(8), deadline=None)
@given(
    groups=st.dictionaries(
        st.text("ab", max_size=2),
        st.dictionaries(st.sampled_from(["a.sst", "b.sst", "C", "d/e"]), st.binary(max_size=40), max_size=4),
        max_size=3,
    ),
    pack_below=st.integers(0, 45),
)
def test_any_groups_of_files_come_back(groups: dict[str, Contents], pack_below: int) -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        store = LocalStore(root / "store")
        writer = SnapshotWriter(store, "checkpoints/1/host.pack", pack_below)
        for number, (group, contents) in enumerate(groups.items()):
            writer.add(group, fill(root / str(number), contents))
        stored = writer.finish()
        assert set(stored) == set(groups)
        for group, contents in groups.items():
            restore_files(store, stored[group].handle, root / f"restored-{group}")
            assert contents_of(root / f"restored-{group}") == contents
        written = sum(len(store.read(key)) for key in store.list())
        assert sum(one.new_bytes for one in stored.values()) == written


def test_small_files_of_all_groups_go_into_one_pack(store: LocalStore, tmp_path: Path) -> None:
    writer = SnapshotWriter(store, "checkpoints/1/host.pack")
    for group in ("0", "1", "2"):
        writer.add(group, fill(tmp_path / group, {"CURRENT": b"same", "IDENTITY": group.encode()}))
    stored = writer.finish()
    (pack,) = store.list()
    assert pack.startswith("checkpoints/1/host-")
    assert len(store.read(pack)) == len("same") + 3
    assert [stored[group].new_bytes for group in "012"] == [5, 1, 1]


def test_two_writers_with_one_pack_key_do_not_write_over_each_other(
    store: LocalStore, tmp_path: Path
) -> None:
    # A fenced coordinator and its successor may both take a checkpoint of the same id.
    old = snapshot(store, tmp_path / "a", {"CURRENT": b"old"})
    new = snapshot(store, tmp_path / "b", {"CURRENT": b"new"})
    for stored, target in ((old, "c"), (new, "d")):
        restore_files(store, stored.handle, tmp_path / target)
    assert contents_of(tmp_path / "c") == {"CURRENT": b"old"}
    assert contents_of(tmp_path / "d") == {"CURRENT": b"new"}


def test_without_small_files_there_is_no_pack(store: LocalStore, tmp_path: Path) -> None:
    snapshot(store, tmp_path / "a", {"1.sst": b"x" * LARGE})
    assert all(key.startswith("shared/") for key in store.list())
    assert SnapshotWriter(store, "checkpoints/2/host.pack").finish() == {}
    assert len(store.list()) == 1


def test_what_the_base_has_is_not_stored_again(store: LocalStore, tmp_path: Path, contents: Contents) -> None:
    base = snapshot(store, tmp_path / "a", contents)
    for key in store.list():
        store.delete(key)
    more = {"000014.sst": b"n" * LARGE, "000015.sst": b"small"}
    again = snapshot(store, tmp_path / "b", contents | more, 2, base.handle)
    # The only objects that were written hold what the base does not have.
    assert sorted(len(store.read(key)) for key in store.list()) == [len(b"small"), LARGE]
    assert again.new_bytes == LARGE + len(b"small")
    assert again.handle.size == sum(map(len, (contents | more).values()))


def test_what_a_shadow_has_written_is_named_where_it_is_and_copied_to_where_it_belongs(
    store: LocalStore, tmp_path: Path, contents: Contents
) -> None:
    folder = shadow_folder("life")
    own = LocalStore(Path(store.uri.removeprefix("file://")) / folder)
    written = snapshot(own, tmp_path / "a", contents).handle.files
    base = Handle(tuple(attrs.evolve(file, key=folder + file.key) for file in written))
    following = snapshot(store, tmp_path / "a", contents | {"000014.sst": os.urandom(LARGE)}, 2, base)
    assert following.new_bytes == LARGE
    restore_files(store, following.handle, tmp_path / "b")
    assert contents_of(tmp_path / "b") == contents_of(tmp_path / "a")
    for number, copies in enumerate((store, MemoryStore())):
        savepoint = LocalStore(tmp_path / "savepoint") if copies is store else copies
        writer = SnapshotWriter(savepoint, "checkpoints/3/host.pack")
        copy_snapshot(store, following.handle, writer, "0", tmp_path / f"scratch-{number}")
        copied = writer.finish()["0"].handle
        assert not any(file.key.startswith(folder) for file in copied.files)
        restore_files(savepoint, copied, tmp_path / f"c-{number}")
        assert contents_of(tmp_path / f"c-{number}") == contents_of(tmp_path / "a")


def test_a_snapshot_without_changes_writes_nothing(
    store: LocalStore, tmp_path: Path, contents: Contents
) -> None:
    base = snapshot(store, tmp_path / "a", contents)
    objects = store.list()
    again = snapshot(store, tmp_path / "b", contents, 2, base.handle)
    assert store.list() == objects
    assert (again.handle, again.new_bytes) == (base.handle, 0)


@settings(max_examples=examples(12), deadline=None)
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["1.sst", "2.sst", "3.sst", "4.sst", "5.sst", "CURRENT", "MANIFEST-1"]),
            st.binary(max_size=200),
            max_size=4,
        ),
        min_size=1,
        max_size=12,
    )
)
def test_any_chain_of_snapshots_restores_after_retention_has_dropped_the_ones_before(
    chain: list[Contents],
) -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        store = LocalStore(root / "store")
        contents: Contents = {}
        before: Manifest | None = None
        for checkpoint, changes in enumerate(chain, 1):
            # RocksDB gives no name twice to another SST.
            renamed = {f"{checkpoint}-{name}": content for name, content in changes.items()}
            kept = {name: content for name, content in contents.items() if not name.endswith(tuple(changes))}
            contents = kept | renamed
            base = before.operators[0].shards[0] if before else None
            stored = snapshot(store, root / f"{checkpoint}", contents, checkpoint, base)
            manifest = make_manifest(checkpoint, 1, [stored.handle])
            if before:
                ended(discard(store, [before], lambda kept=manifest: [kept], Unshared()))
            restore_files(store, stored.handle, root / f"restored-{checkpoint}")
            assert contents_of(root / f"restored-{checkpoint}") == contents
            assert len({file.key for file in stored.handle.files}) <= MOST_PACKS
            before = manifest


def test_a_base_that_has_the_bytes_only_in_a_pack_does_not_count(store: LocalStore, tmp_path: Path) -> None:
    writer = SnapshotWriter(store, "checkpoints/1/host.pack", pack_below=1 << 30)
    writer.add("0", fill(tmp_path / "a", {"1.sst": b"x" * LARGE}))
    base = writer.finish()["0"].handle
    again = snapshot(store, tmp_path / "b", {"1.sst": b"x" * LARGE}, 2, base)
    assert again.new_bytes == LARGE
    restore_files(store, again.handle, tmp_path / "c")


def test_one_content_is_uploaded_once_for_all_groups(store: LocalStore, tmp_path: Path) -> None:
    writer = SnapshotWriter(store, "checkpoints/1/host.pack")
    for group in ("0", "1"):
        writer.add(group, fill(tmp_path / group, {f"{group}.sst": b"x" * LARGE}))
    stored = writer.finish()
    assert sum(one.new_bytes for one in stored.values()) == LARGE
    assert len(store.list()) == 1


def test_an_immutable_file_is_hashed_once(store: LocalStore, tmp_path: Path) -> None:
    known: dict[tuple[str, int], str] = {}
    files = fill(tmp_path / "a", {"1.sst": b"x" * LARGE, "MANIFEST": b"m" * LARGE})
    writer = SnapshotWriter(store, "checkpoints/1/host.pack")
    writer.add("0", files, known=known)
    handle = writer.finish()["0"].handle
    assert known == {("1.sst", LARGE): handle.files[0].sha256}
    # A wrong entry shows that the second time nobody looks at the bytes.
    known["1.sst", LARGE] = "ab" * 32
    writer = SnapshotWriter(store, "checkpoints/2/host.pack")
    writer.add("0", files, known=known)
    assert writer.finish()["0"].handle.files[0].sha256 == "ab" * 32


def test_only_immutable_files_are_linked(store: LocalStore, tmp_path: Path, contents: Contents) -> None:
    stored = snapshot(store, tmp_path / "a", contents)
    cache = FileCache(tmp_path / "cache")
    for target in ("b", "c"):
        restore_files(store, stored.handle, tmp_path / target, cache)
        for path in (tmp_path / target).rglob("*"):
            if path.is_file() and not path.name.endswith(".sst"):
                with path.open("ab") as file:
                    file.write(b"appended")
    for name in ("MANIFEST-000009", "state/0/1.delta", "CURRENT"):
        with (tmp_path / "a" / name).open("ab") as file:
            file.write(b"appended")
    restore_files(store, stored.handle, tmp_path / "d", cache)
    assert contents_of(tmp_path / "d") == contents
    assert (tmp_path / "d" / "000012.sst").samefile(tmp_path / "a" / "000012.sst")


def test_a_failing_upload_fails_the_snapshot(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    writer = SnapshotWriter(LocalStore(tmp_path / "file" / "store"), "checkpoints/1/host.pack")
    writer.add("0", fill(tmp_path / "a", {"1.sst": b"x" * LARGE}))
    with pytest.raises(StoreFailedError):
        writer.finish()


def test_a_pool_that_was_passed_in_stays_usable(store: LocalStore, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        writer = SnapshotWriter(store, "checkpoints/1/host.pack", pool=pool)
        writer.add("0", fill(tmp_path / "a", {"1.sst": b"x" * LARGE}))
        writer.finish()
        assert pool.submit(lambda: 1).result() == 1


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil"])
def test_a_file_name_that_leads_out_of_the_folder_is_refused(
    store: LocalStore, tmp_path: Path, name: str
) -> None:
    store.write("checkpoints/1/host.pack", b"")
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    with pytest.raises(InvalidNameError):
        restore_files(store, Handle((FileRef(name, "checkpoints/1/host.pack", 0, empty),)), tmp_path / "b")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidNameError):
        SnapshotWriter(store, "checkpoints/1/host.pack").add("0", {name: tmp_path / "file"})


# --- damage (promise 5) -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalStore, Handle, Contents]]:
    root = tmp_path_factory.mktemp("damage")
    contents = {
        "1.sst": bytes(range(256)) * 260,
        "MANIFEST-2": bytes(255) * 300,
        "CURRENT": b"2\n",
        "a/b": b"abc",
    }
    store = LocalStore(root / "store")
    stored = snapshot(store, root / "files", contents)
    yield store, stored.handle, contents


@settings(max_examples=examples(15), deadline=None)
@given(data=st.data())
def test_any_changed_byte_of_any_object_is_found_and_named(
    stored_once: tuple[LocalStore, Handle, Contents], data: st.DataObject
) -> None:
    store, handle, contents = stored_once
    key = data.draw(st.sampled_from(store.list()))
    whole = store.read(key)
    position = data.draw(st.integers(0, len(whole) - 1))
    change = data.draw(st.sampled_from(["flip", "truncate", "append"]))
    damaged = {
        "flip": whole[:position]
        + bytes([whole[position] ^ data.draw(st.integers(1, 255))])
        + whole[position + 1 :],
        "truncate": whole[:position],
        "append": whole + b"x",
    }[change]
    if change == "append" and key.endswith(".pack"):
        return  # bytes behind the last file of a pack are nobody's
    with TemporaryDirectory(dir=store.root.parent) as folder:
        store.write(key, damaged)
        try:
            with pytest.raises(DamagedError) as caught:
                restore_files(store, handle, Path(folder))
        finally:
            store.write(key, whole)
        named = [
            file.name for file in handle.files if file.key == key and repr(file.name) in str(caught.value)
        ]
        assert caught.value.key == key
        assert len(named) == 1
        # Whatever is there under its own name is whole.
        restored = contents_of(Path(folder))
        assert restored.items() <= contents.items()
        assert named[0] not in restored
    with TemporaryDirectory(dir=store.root.parent) as folder:
        restore_files(store, handle, Path(folder))
        assert contents_of(Path(folder)) == contents


def test_a_missing_object_is_named(store: LocalStore, tmp_path: Path, contents: Contents) -> None:
    stored = snapshot(store, tmp_path / "a", contents)
    for key in store.list():
        data = store.read(key)
        store.delete(key)
        with pytest.raises(ObjectMissingError) as caught:
            restore_files(store, stored.handle, tmp_path / "b")
        assert caught.value.key == key
        store.write(key, data)


# --- the cache ----------------------------------------------------------------------------------------------


def cached_entry(cache: FileCache) -> Path:
    (entry,) = (path for path in cache.directory.rglob("*") if path.is_file())
    return entry


def test_a_second_restore_on_the_machine_needs_no_download(
    store: LocalStore, tmp_path: Path, contents: Contents
) -> None:
    cache = FileCache(tmp_path / "cache")
    stored = snapshot(store, tmp_path / "a", contents)
    first = restore_files(store, stored.handle, tmp_path / "b", cache)
    store.delete(next(file.key for file in stored.handle.files if file.name == "000012.sst"))
    second = restore_files(store, stored.handle, tmp_path / "c", cache)
    assert contents_of(tmp_path / "c") == contents
    assert (first.cached_bytes, second.cached_bytes) == (0, LARGE)
    assert second.downloaded_bytes == second.bytes - LARGE


def test_the_writer_fills_the_cache(store: LocalStore, tmp_path: Path) -> None:
    cache = FileCache(tmp_path / "cache")
    writer = SnapshotWriter(store, "checkpoints/1/host.pack", cache=cache)
    writer.add("0", fill(tmp_path / "a", {"1.sst": b"x" * LARGE, "MANIFEST": b"y" * LARGE}))
    report = restore_files(store, writer.finish()["0"].handle, tmp_path / "b", cache)
    assert report.cached_bytes == LARGE


@pytest.mark.parametrize("damage", [b"", b"wrong", b"y" * LARGE])
def test_a_corrupt_cached_file_falls_back_to_the_store_and_is_replaced(
    store: LocalStore, tmp_path: Path, damage: bytes
) -> None:
    cache = FileCache(tmp_path / "cache")
    stored = snapshot(store, tmp_path / "a", {"1.sst": b"x" * LARGE})
    restore_files(store, stored.handle, tmp_path / "b", cache)
    entry = cached_entry(cache)
    entry.unlink()
    entry.write_bytes(damage)
    report = restore_files(store, stored.handle, tmp_path / "c", cache)
    assert contents_of(tmp_path / "c") == {"1.sst": b"x" * LARGE}
    assert report.cached_bytes == 0
    assert restore_files(store, stored.handle, tmp_path / "d", cache).cached_bytes == LARGE


def test_a_cached_file_that_changes_under_its_seal_falls_back_to_the_store(
    store: LocalStore, tmp_path: Path
) -> None:
    cache = FileCache(tmp_path / "cache")
    stored = snapshot(store, tmp_path / "a", {"1.sst": b"x" * LARGE})
    entry = tmp_path / "entry"
    entry.write_bytes(b"x" * LARGE)
    # Sealed, and no link of the store's file.
    cache.put(file_sha256(entry), entry)
    with entry.open("r+b") as file:
        file.write(b"y")
    report = restore_files(store, stored.handle, tmp_path / "b", cache)
    assert contents_of(tmp_path / "b") == {"1.sst": b"x" * LARGE}
    assert report.cached_bytes == 0


def test_a_missing_cached_file_falls_back_to_the_store(store: LocalStore, tmp_path: Path) -> None:
    cache = FileCache(tmp_path / "cache")
    stored = snapshot(store, tmp_path / "a", {"1.sst": b"x" * LARGE})
    restore_files(store, stored.handle, tmp_path / "b", cache)
    cached_entry(cache).unlink()
    assert restore_files(store, stored.handle, tmp_path / "c", cache).cached_bytes == 0


def test_a_cache_that_cannot_be_used_fails_neither_snapshot_nor_restore(
    store: LocalStore, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = FileCache(tmp_path / "file" / "cache")
    writer = SnapshotWriter(store, "checkpoints/1/host.pack", cache=cache)
    writer.add("0", fill(tmp_path / "a", {"1.sst": b"x" * LARGE}))
    restore_files(store, writer.finish()["0"].handle, tmp_path / "b", cache)
    assert contents_of(tmp_path / "b") == {"1.sst": b"x" * LARGE}


def test_the_cache_drops_what_was_used_longest_ago(tmp_path: Path) -> None:
    cache = FileCache(tmp_path / "cache", limit_bytes=20)
    names = ["aa" * 32, "bb" * 32, "cc" * 32]
    for age, name in enumerate(names):
        (tmp_path / name).write_bytes(b"x" * 10)
        cache.put(name, tmp_path / name)
        os.utime(cache.files / name[:2] / name, (1000 + age, 1000))
    cache.trim()
    assert sorted(path.name for path in cache.files.glob("*/*")) == names[1:]


def test_using_a_cached_file_keeps_it(store: LocalStore, tmp_path: Path) -> None:
    cache = FileCache(tmp_path / "cache", limit_bytes=LARGE)
    stored = snapshot(store, tmp_path / "a", {"1.sst": b"x" * LARGE})
    restore_files(store, stored.handle, tmp_path / "b", cache)
    used = cached_entry(cache)
    (tmp_path / "other").write_bytes(b"y" * LARGE)
    cache.put("ab" * 32, tmp_path / "other")
    os.utime(used, (1000, 1000))
    os.utime(cache.files / "ab" / ("ab" * 32), (2000, 2000))
    restore_files(store, stored.handle, tmp_path / "c", cache)
    assert cached_entry(cache) == used


# --- copies and moves ---------------------------------------------------------------------------------------


def test_a_copied_snapshot_lives_without_its_source(
    store: LocalStore, tmp_path: Path, contents: Contents
) -> None:
    stored = snapshot(store, tmp_path / "a", contents)
    savepoint = LocalStore(tmp_path / "savepoint")
    writer = SnapshotWriter(savepoint, "checkpoints/9/driver.pack")
    copy_snapshot(store, stored.handle, writer, "7", tmp_path / "scratch")
    copied = writer.finish()["7"]
    for key in store.list():
        store.delete(key)
    restore_files(savepoint, copied.handle, tmp_path / "b")
    assert contents_of(tmp_path / "b") == contents
    assert copied.new_bytes == copied.handle.size


def large_files(folder: Path) -> int:
    """How many there are, while other threads write and delete."""
    found = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                found += name.endswith(".sst") and Path(where, name).stat().st_size >= LARGE
    return found


def test_few_large_files_at_a_time_are_on_the_disk_between_kinds_of_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, disk = MemoryStore(), tmp_path / "disk"
    disk.mkdir()
    contents = {f"{number:06}.sst": os.urandom(LARGE) for number in range(40)}
    stored = snapshot(store, tmp_path / "a", contents)
    seen = list[int]()

    class Watched(MemoryStore):
        def upload(self, path: Path, key: str) -> None:
            seen.append(large_files(disk))
            super().upload(path, key)

    monkeypatch.setenv("CHANDY_RUNTIME_DIR", str(disk))
    target = Watched()
    writer = SnapshotWriter(target, "checkpoints/9/driver.pack")
    copy_snapshot(store, stored.handle, writer, "7", disk / "copies")
    copied = writer.finish()["7"]
    assert len(seen) == 40
    assert max(seen) <= THREADS
    assert not list(disk.rglob("*.sst"))
    restore_files(target, copied.handle, tmp_path / "b")
    assert contents_of(tmp_path / "b") == contents


def test_damage_is_not_copied_between_kinds_of_stores(tmp_path: Path, contents: Contents) -> None:
    store = MemoryStore()
    stored = snapshot(store, tmp_path / "a", contents)
    key = store.list("shared/")[0]
    store.write(key, b"wrong")
    writer = SnapshotWriter(LocalStore(tmp_path / "savepoint"), "checkpoints/9/driver.pack")
    with pytest.raises(DamagedError):
        copy_snapshot(store, stored.handle, writer, "7", tmp_path / "scratch")
        writer.finish()


class _Service(MemoryStore):
    """One of several places of a service that copies between them, and counts what goes through the client."""

    def __init__(self) -> None:
        super().__init__()
        self.moved = 0
        self.requests: Counter[str] = Counter()
        self.copied: list[str] = []

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        data = super().read(key, offset, length)
        self.moved += len(data)
        self.requests["read"] += 1
        return data

    def write(self, key: str, data: bytes) -> None:
        self.moved += len(data)
        self.requests["write"] += 1
        super().write(key, data)

    def create(self, key: str, data: bytes) -> None:
        self.requests["create"] += 1
        super().create(key, data)

    def copy(self, source: Store, source_key: str, key: str) -> bool:
        if not isinstance(source, _Service):
            return False
        self.copied.append(key)
        MemoryStore.write(self, key, MemoryStore.read(source, source_key))
        return True


def test_within_one_service_the_bytes_of_large_files_do_not_come_by(
    tmp_path: Path, contents: Contents
) -> None:
    source, target = _Service(), _Service()
    stored = snapshot(source, tmp_path / "a", contents)
    source.moved = 0
    writer = SnapshotWriter(target, "checkpoints/9/driver.pack")
    copy_snapshot(source, stored.handle, writer, "7", tmp_path / "scratch")
    copied = writer.finish()["7"]
    assert sorted(target.copied) == source.list("shared/")
    assert (
        source.moved
        == target.moved
        == sum(file.size for file in stored.handle.files if file.key.endswith(".pack"))
    )
    source.objects.clear()
    restore_files(target, copied.handle, tmp_path / "b")
    assert contents_of(tmp_path / "b") == contents
    assert copied.new_bytes == copied.handle.size


def test_a_savepoint_copies_what_the_last_checkpoint_has_and_uploads_the_rest(
    tmp_path: Path, contents: Contents
) -> None:
    pipeline, savepoint = _Service(), _Service()
    last = snapshot(pipeline, tmp_path / "a", contents)
    files = fill(tmp_path / "b", contents | {"000014.sst": os.urandom(LARGE)})
    (gone, *_) = pipeline.list("shared/")
    pipeline.delete(gone)
    writer = SnapshotWriter(savepoint, "checkpoints/2/host.pack")
    writer.add("0", files, source=SnapshotSource(pipeline, last.handle))
    stored = writer.finish()["0"]
    pipeline.objects.clear()
    restore_files(savepoint, stored.handle, tmp_path / "c")
    assert contents_of(tmp_path / "c") == {name: path.read_bytes() for name, path in files.items()}
    assert stored.new_bytes == stored.handle.size
    assert set(savepoint.copied) == {file.key for file in last.handle.files if file.key.startswith("shared/")}


@pytest.mark.parametrize(
    "error",
    [
        StoreFailedError("memory://test", "key", "copy", "not allowed to read there"),
        ObjectMissingError("memory://test", "key"),
        PermissionError("not allowed to read there"),
    ],
)
def test_what_the_service_does_not_copy_into_a_savepoint_is_uploaded(
    tmp_path: Path, contents: Contents, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    pipeline, savepoint = _Service(), _Service()
    last = snapshot(pipeline, tmp_path / "a", contents)

    def refuse(*_: object) -> bool:
        raise error

    monkeypatch.setattr(savepoint, "copy", refuse)
    writer = SnapshotWriter(savepoint, "checkpoints/2/host.pack")
    writer.add("0", fill(tmp_path / "b", contents), source=SnapshotSource(pipeline, last.handle))
    restore_files(savepoint, writer.finish()["0"].handle, tmp_path / "c")
    assert contents_of(tmp_path / "c") == contents


# --- requests -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 16, 64])
def test_a_checkpoint_takes_a_request_for_each_new_file_and_host_and_a_constant(
    tmp_path: Path, shards: int
) -> None:
    store = _Service()
    catalog = Catalog(store)
    generation = catalog.take_over("driver", 1.0).generation
    hosts, bases = 4, dict[int, Handle]()
    for checkpoint in (1, 2):
        new = 0
        handles: dict[int, Handle] = {}
        store.requests.clear()
        for host in range(hosts):
            writer = SnapshotWriter(store, f"checkpoints/{checkpoint}/host-{host}.pack")
            for shard in range(host, shards, hosts):
                files = {
                    "000012.sst": b"%d" % shard * LARGE,
                    "MANIFEST-000005": os.urandom(2 * LARGE),
                    "OPTIONS-000007": b"o" * 9000,
                    "CURRENT": b"MANIFEST-000005",
                    "IDENTITY": b"%d" % shard,
                }
                if checkpoint == 1 or shard % 3 == 0:
                    files["000013.sst"] = os.urandom(LARGE)
                    new += 1 if checkpoint == 2 else 2
                elif checkpoint == 2:
                    files["000014.sst"] = b"small" * 10
                paths = fill(tmp_path / f"{checkpoint}-{shard}", files)
                writer.add(str(shard), paths, bases.get(shard))
            handles |= {int(name): stored.handle for name, stored in writer.finish().items()}
        catalog.check_not_fenced(generation)
        manifest = make_manifest(checkpoint, generation, [handles[shard] for shard in range(shards)])
        catalog.commit(manifest)
        catalog.confirm(manifest)
        assert store.requests.total() <= new + hosts + 3, store.requests
        bases = handles


def test_a_large_pack_goes_by_way_of_the_disk(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "PACK_IN_MEMORY", 1000)
    contents = {f"{number}/MANIFEST-1": os.urandom(700) for number in range(9)}
    monkeypatch.setattr(store, "write", None)
    stored = snapshot(store, tmp_path / "a", contents)
    assert len(store.list()) == 1
    restore_files(store, stored.handle, tmp_path / "b")
    assert contents_of(tmp_path / "b") == contents


def test_a_restore_tells_how_far_it_is(store: LocalStore, tmp_path: Path, contents: Contents) -> None:
    stored = snapshot(store, tmp_path / "a", contents)
    told: list[int] = []
    restore_files(store, stored.handle, tmp_path / "b", progress=told.append)
    assert sum(told) == stored.handle.size
    assert len(told) > 1


def test_a_folder_that_was_moved_restores(store: LocalStore, tmp_path: Path, contents: Contents) -> None:
    stored = snapshot(store, tmp_path / "a", contents)
    moved = LocalStore(store.root.rename(tmp_path / "elsewhere"))
    restore_files(moved, stored.handle, tmp_path / "b")
    assert contents_of(tmp_path / "b") == contents
