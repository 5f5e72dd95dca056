"""Local files of snapshots: their SHA-256, private copies, and the machine's cache."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs
import xxhash

from .. import runtime
from ..disk.directories import make_private_folder
from ..logs import logger

CHUNK = 1 << 20
"""Bytes that are read at a time while a file is hashed or copied."""

_SEAL: Final = "user.chandy.seal"
"""The extended attribute that holds a file's SHA-256 and the XXH3 (128 bits) of the same bytes."""
_ENTRY: Final = re.compile(r"([0-9a-f]{2})/(?:\1[0-9a-f]{62}|\.[0-9a-f]{32})")
"""An entry of the cache, by its SHA-256, or one that was just being made."""
_log = logger(__name__)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file that nobody changes any more, in hex. Every byte is read.

    The file is sealed with it if the file system has extended attributes. From then on XXH3, which takes a seventh of
    the time, shows that the bytes are the same. A file without a seal, or with a wrong one, is hashed again.
    """
    return _sealed_sha256(path) or _seal(path)


def _sealed_sha256(path: Path) -> str | None:
    # There is an AttributeError if the operating system has no extended attributes.
    with suppress(OSError, AttributeError):
        sha256, _, quick = os.getxattr(path, _SEAL).decode("ascii", "replace").partition(":")
        with path.open("rb") as file:
            if hashlib.file_digest(file, xxhash.xxh3_128).hexdigest() == quick:
                return sha256
    return None


def _seal(path: Path) -> str:
    sha256, quick = hashlib.sha256(), xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            sha256.update(chunk)
            quick.update(chunk)
    with suppress(OSError, AttributeError):
        os.setxattr(path, _SEAL, f"{sha256.hexdigest()}:{quick.hexdigest()}".encode("ascii"))
    return sha256.hexdigest()


def copy_hashed(source: Path, target: Path) -> tuple[int, str]:
    """Copy a file to a new one, and return the size and SHA-256 of exactly the bytes that were copied."""
    digest = hashlib.sha256()
    size = 0
    with source.open("rb") as reader, target.open("xb") as writer:
        while chunk := reader.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
            writer.write(chunk)
    return size, digest.hexdigest()


def is_immutable(name: str) -> bool:
    """Whether RocksDB never changes the file in place, so that a hard link is as good as a copy.

    RocksDB writes an SST once. It appends to MANIFEST, OPTIONS and logs.
    """
    return name.endswith(".sst")


def is_bookkeeping(name: str) -> bool:
    """Whether the file describes a database. Such files change with it, so objects of their own are not worth it."""
    last = name.rpartition("/")[2]
    return last in ("CURRENT", "IDENTITY") or last.startswith(("MANIFEST-", "OPTIONS-"))


@attrs.define
class FileCache:
    """The snapshot files that a machine keeps, by their SHA-256, so that recovery is local.

    Only immutable files may be put here, because an entry is a hard link to a file that others use. Errors of the cache
    are only logged, because the store has every file. Several processes may share the directory.
    """

    directory: Path
    """The machine's cache directory. State hosts and changelogs have folders in it, too."""
    limit_bytes: int = 16 << 30
    """Bytes that ``trim`` keeps. Files that the store or a shard links to as well count in full."""

    @property
    def files(self) -> Path:
        """The folder of the entries.

        Drivers and hosts are given only the machine's cache directory, so all of them find and trim the same files.
        """
        return self.directory / "files"

    def has(self, sha256: str) -> bool:
        """Return whether there is an entry for the file with this content. It is not verified."""
        return self._entry(sha256).exists()

    def take(self, sha256: str, size: int, path: Path) -> bool:
        """Link the file with this content to the new file ``path``, and return whether that worked.

        Every byte is verified. An entry with other bytes is dropped.
        """
        entry = self._entry(sha256)
        try:
            self._link(entry, path)
            if path.stat().st_size == size and file_sha256(path) == sha256:
                # This marks the last use for ``trim``. Many file systems are mounted without access times.
                os.utime(entry)
                return True
            _log.warning("dropped a damaged file from the cache", path=str(entry))
            entry.unlink(missing_ok=True)
        except FileNotFoundError:
            pass
        except OSError as error:
            _log.warning("could not use the cache", path=str(entry), error=str(error))
        with suppress(OSError):
            path.unlink(missing_ok=True)
        return False

    def put(self, sha256: str, path: Path) -> None:
        """Keep a file whose SHA-256 is known."""
        entry = self._entry(sha256)
        temporary = entry.with_name(f".{runtime.token()}")
        try:
            make_private_folder(entry.parent)
            try:
                self._link(path, temporary)
                temporary.replace(entry)
            finally:
                # Renaming a link of a file onto another link of it does nothing, so it may still be there.
                temporary.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("could not cache a file", path=str(entry), error=str(error))

    def trim(self) -> None:
        """Drop the least recently used entries until the rest is within the limit."""
        try:
            entries = sorted(self._entries())
        except OSError as error:
            _log.warning("could not trim the cache", path=str(self.files), error=str(error))
            return
        excess = sum(size for _, size, _ in entries) - self.limit_bytes
        for _, size, path in entries:
            if excess <= 0:
                return
            try:
                path.unlink(missing_ok=True)
                excess -= size
            except OSError as error:
                _log.warning("could not drop a file from the cache", path=str(path), error=str(error))

    def _entries(self) -> Iterator[tuple[float, int, Path]]:
        """Return the last use, size and path of each entry. Only regular files of the cache's own names are entries."""
        for path in self.files.glob("*/*"):
            if not _ENTRY.fullmatch(f"{path.parent.name}/{path.name}"):
                continue
            with suppress(FileNotFoundError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    yield status.st_atime, status.st_size, path

    def _entry(self, sha256: str) -> Path:
        return self.files / sha256[:2] / sha256

    def _link(self, source: Path, target: Path) -> None:
        try:
            target.hardlink_to(source)
        except FileNotFoundError:
            raise
        except OSError:
            shutil.copyfile(source, target)
