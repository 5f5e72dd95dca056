"""Files by their content: the seal saves time, and vouches for nothing that it has not seen."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from chandy.storage.checkpoints import files
from chandy.storage.checkpoints.files import FileCache, file_sha256

BYTES = bytes(range(256)) * 5000


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "1.sst"
    path.write_bytes(BYTES)
    return path


def no_sha256(*_: object) -> None:
    raise AssertionError("SHA-256 was asked for")


def flip(path: Path, at: int) -> bytes:
    """Change one bit in place, as a disk may: nothing tells of it but the bytes."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return bytes(data)


@pytest.mark.parametrize("size", [0, 1, files.CHUNK - 1, files.CHUNK, files.CHUNK + 1])
def test_the_hash_is_sha256_before_and_after_the_seal(path: Path, size: int) -> None:
    data = os.urandom(size)
    path.write_bytes(data)
    assert [file_sha256(path) for _ in range(2)] == [sha256(data)] * 2


@pytest.mark.skipif(not hasattr(os, "setxattr"), reason="no extended attributes here")
def test_a_sealed_file_is_not_hashed_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = file_sha256(path)
    link = path.with_name("link")
    link.hardlink_to(path)
    monkeypatch.setattr("chandy.storage.checkpoints.files.hashlib.sha256", no_sha256)
    assert [file_sha256(path), file_sha256(link)] == [expected] * 2


@pytest.mark.parametrize("at", [0, 1_000, len(BYTES) - 1])
def test_one_bit_that_changes_under_a_seal_is_found(path: Path, at: int) -> None:
    file_sha256(path)
    damaged = flip(path, at)
    assert file_sha256(path) == sha256(damaged) != sha256(BYTES)


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"x", lambda _: b""])
def test_another_length_under_a_seal_is_found(path: Path, change: object) -> None:
    assert callable(change)
    file_sha256(path)
    os.truncate(path, 0)
    with path.open("r+b") as file:
        file.write(change(BYTES))
    assert file_sha256(path) == sha256(change(BYTES))


@pytest.mark.skipif(not hasattr(os, "setxattr"), reason="no extended attributes here")
@pytest.mark.parametrize(
    "seal", [b"", b":", b"\xff", b"x" * 64, b"0" * 64 + b":", b"0" * 64 + b":" + b"0" * 32]
)
def test_a_seal_that_fits_nothing_is_not_trusted(path: Path, seal: bytes) -> None:
    os.setxattr(path, "user.chandy.seal", seal)
    assert file_sha256(path) == sha256(BYTES)


def test_a_file_system_that_notes_nothing_costs_time_only(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "setxattr", refuse, raising=False)
    monkeypatch.setattr(os, "getxattr", refuse, raising=False)
    assert [file_sha256(path) for _ in range(2)] == [sha256(BYTES)] * 2


def test_a_system_without_extended_attributes_costs_time_only(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "setxattr", raising=False)
    monkeypatch.delattr(os, "getxattr", raising=False)
    assert [file_sha256(path) for _ in range(2)] == [sha256(BYTES)] * 2


# --- the cache ----------------------------------------------------------------------------------------------


def kept(cache: FileCache) -> list[str]:
    return sorted(path.name for path in cache.files.glob("*/*"))


def test_a_trim_passes_over_what_is_no_file_of_the_cache(tmp_path: Path) -> None:
    cache = FileCache(tmp_path / "cache", limit_bytes=10)
    names = ["aa" * 32, "bb" * 32]
    for age, name in enumerate(names):
        (tmp_path / name).write_bytes(b"x" * 10)
        cache.put(name, tmp_path / name)
        os.utime(cache.files / name[:2] / name, (1000 + age, 1000))
    folder, link = cache.files / "aa" / "folder", cache.files / "bb" / "link"
    folder.mkdir()
    # Another program's: files beside entries, and in folders of its own.
    foreign = [cache.files / "aa" / "notes.txt", cache.files / "photos" / ("bb" * 32)]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 100)
    # Older than any file, so that they would be the first to go.
    for path in (folder, *foreign):
        os.utime(path, (1, 1))
    link.symlink_to(tmp_path / "nothing")
    cache.trim()
    assert kept(cache) == sorted([names[1], "folder", "link", *(path.name for path in foreign)])


def test_a_trim_touches_nothing_beside_the_files(tmp_path: Path) -> None:
    cache = FileCache(tmp_path / "cache", limit_bytes=0)
    (tmp_path / "1.sst").write_bytes(BYTES)
    cache.put(sha256(BYTES), tmp_path / "1.sst")
    beside = [tmp_path / "cache" / place / "file" for place in ("hosts/host", "changelogs/query")]
    for path in beside:
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x")
    cache.trim()
    assert kept(cache) == []
    assert all(path.exists() for path in beside)
