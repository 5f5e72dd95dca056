"""Starts Spark's Python workers with the PySpark that is installed: for Spark's setting ``spark.python.daemon.module``.

Spark puts a copy of PySpark, ``pyspark.zip``, in front of what its workers find. Nothing of it is compiled, and Python
keeps nothing of what it compiles out of an archive: half a second of processor time, which the first batch of every
driver waits for. Where the same PySpark is installed beside it, the archive is not needed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final
from zipimport import ZipImportError, zipimporter

ARCHIVE: Final = "pyspark.zip"
_VERSION: Final = "pyspark/version.py"


def without_archive(path: Sequence[str]) -> list[str]:
    """Return the places of a module search path but Spark's archive; all, unless the same PySpark is in another."""
    rest = [place for place in path if Path(place).name != ARCHIVE]
    archives = [place for place in path if Path(place).name == ARCHIVE and Path(place).exists()]
    installed = PathFinder.find_spec("pyspark", rest)
    if installed is None or installed.origin is None:
        return list(path)
    try:
        version = (Path(installed.origin).parent.parent / _VERSION).read_bytes()
        same = all(zipimporter(archive).get_data(_VERSION) == version for archive in archives)
    except (OSError, ZipImportError):
        return list(path)
    return rest if same else list(path)


def main() -> None:
    """Do what ``pyspark.daemon`` does."""
    sys.path[:] = without_archive(sys.path)
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
