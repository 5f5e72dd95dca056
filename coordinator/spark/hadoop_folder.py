"""A folder on one of Hadoop's file systems as Spark's own driver sees it: its settings, credentials and classes."""

from __future__ import annotations

import contextlib
import copy
import errno
import re
import uuid
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError, Py4JJavaError

from ..errors import WorkingDirectoryError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_AT_ONCE: Final = 8
"""How many files are transferred at a time. Most are small, and a store answers in milliseconds."""
_PATH: Final = re.compile(r"\bpath=(.*?); isDirectory=")
"""In the text of a ``FileStatus``."""
_MISSING: Final = "java.io.FileNotFoundException"


class HadoopFolder:
    """A folder by its URI. Names are relative to it. All methods may be called from any thread.

    Raises:
        WorkingDirectoryError: by all methods, if the file system cannot do it: it is away or full, or permission is
            missing.
    """

    def __init__(self, spark: SparkSession, uri: str) -> None:
        """Connect to the file system.

        Args:
            spark: a classic session.
            uri: with a scheme, as Hadoop writes it.
        """
        jvm: Any = spark.sparkContext._jvm
        self._path = getattr(jvm, "org.apache.hadoop.fs.Path")
        self._iterators = getattr(jvm, "org.apache.hadoop.util.functional.RemoteIterators")
        self.uri = uri
        with self._explained("open", ""):
            settings = spark._jsparkSession.sessionState().newHadoopConf()
            self._system = self._path(uri).getFileSystem(settings)
            # As listings have it: with the name node that the URI left out.
            self.uri = str(self._system.makeQualified(self._path(uri)).toString()).rstrip("/")

    def below(self, name: str) -> HadoopFolder:
        """Return a folder in this one, whether it exists or not."""
        found = copy.copy(self)
        found.uri = f"{self.uri}/{name}"
        return found

    # --- looking --------------------------------------------------------------------------------------------

    def exists(self, name: str) -> bool:
        """Return whether there is a file or folder."""
        with self._explained("look at", name):
            return bool(self._system.exists(self._at(name)))

    def names(self, folder: str = "") -> list[str]:
        """Return the names of the files and folders in a folder; nothing if it does not exist."""
        try:
            with self._explained("list", folder):
                return self._listed(self._system.listStatusIterator(self._at(folder)), folder)
        except FileNotFoundError:
            return []

    def files_below(self, folder: str = "") -> list[str]:
        """Return the files at any depth below a folder, relative to it; nothing if it does not exist.

        Raises:
            FileNotFoundError: a folder was deleted while it was listed; list again.
        """
        try:
            with self._explained("list", folder):
                return self._listed(self._system.listFiles(self._at(folder), True), folder)
        except FileNotFoundError:
            if self.exists(folder):
                raise
            return []

    # --- moving files ---------------------------------------------------------------------------------------

    def download(self, names: Collection[str], target: Path) -> None:
        """Copy files to a local directory, under their names there; each appears whole.

        Raises:
            FileNotFoundError: one does not exist. Others may be there.
        """
        self._each(names, lambda name: self._download(name, target / name))

    def upload(self, names: Collection[str], source: Path) -> None:
        """Copy files from a local directory, under their names there."""
        self._each(names, lambda name: self._upload(source / name, name))

    def delete(self, name: str = "") -> None:
        """Delete a file or folder with all that is in it, if it exists."""
        with self._explained("delete", name):
            self._system.delete(self._at(name), True)

    def probe(self) -> None:
        """Find out whether files can be written into the folder, which is made if it does not exist."""
        name = f".chandy-{uuid.uuid4().hex}"
        try:
            with self._explained("write", name):
                stream = self._system.create(self._at(name), False)
                try:
                    stream.write(bytearray(b"chandy"))
                finally:
                    stream.close()
        finally:
            # A user who may not write may not delete either, and left nothing.
            with contextlib.suppress(WorkingDirectoryError):
                self.delete(name)

    # --- Hadoop's calls -------------------------------------------------------------------------------------

    def _download(self, name: str, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        hidden = target.with_name(f".{target.name}-{uuid.uuid4().hex}")
        try:
            with self._explained("read", name):
                # Without Hadoop's own checksums beside the copy.
                self._system.copyToLocalFile(False, self._at(name), self._local(hidden), True)
            hidden.replace(target)
        finally:
            hidden.unlink(missing_ok=True)

    def _upload(self, source: Path, name: str) -> None:
        with self._explained("write", name):
            self._system.copyFromLocalFile(False, True, self._local(source), self._at(name))

    @staticmethod
    def _each(names: Collection[str], act: Any) -> None:
        if not names:
            return
        with ThreadPoolExecutor(min(_AT_ONCE, len(names)), "chandy-files") as pool:
            # The first error, once all have ended.
            for done in [pool.submit(act, name) for name in names]:
                done.result()

    def _at(self, name: str) -> Any:
        return self._path(f"{self.uri}/{name}" if name else self.uri)

    def _local(self, path: Path) -> Any:
        return self._path("file", None, str(path.absolute()))

    def _listed(self, statuses: Any, folder: str) -> list[str]:
        """Return the names that an iterator of statuses has."""
        root = f"{self.uri}/{folder}".rstrip("/") + "/"
        # An iterator that is read from here costs several calls for each file, its text one for all.
        every = self._iterators.toList(statuses)
        paths = _PATH.findall(str(every.toString()))
        if len(paths) != every.size() or not all(path.startswith(root) for path in paths):
            paths = [str(status.getPath().toString()) for status in every]
        return [path.removeprefix(root) for path in paths]

    @contextmanager
    def _explained(self, operation: str, name: str) -> Iterator[None]:
        where = f"{self.uri}/{name}" if name else self.uri
        try:
            yield
        except Py4JJavaError as error:
            kind = str(error.java_exception.getClass().getName())
            message = str(error.java_exception.getMessage()).partition("\n")[0]
            if kind == _MISSING and operation != "write":
                raise FileNotFoundError(errno.ENOENT, message, where) from None
            raise _failed(operation, where, f"{kind.rpartition('.')[2]}: {message}") from error
        except Py4JError as error:
            raise _failed(operation, where, str(error).partition("\n")[0] or type(error).__name__) from error


def _failed(operation: str, where: str, found: str) -> WorkingDirectoryError:
    return WorkingDirectoryError(
        f"cannot {operation} {where}",
        "the file system of CheckpointConfig.work_dir to do so for Spark's driver",
        found,
        "see that Spark has the classes and settings of this file system (spark.hadoop.*), that its user may write "
        "there, and that it is not full",
    )
