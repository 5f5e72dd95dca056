"""Starts Spark's Python workers with the installed PySpark; the value of ``spark.python.daemon.module``.

Spark puts a copy of PySpark, ``pyspark.zip``, first into the module search path of its workers. It contains no compiled
modules, and Python does not cache what it compiles from an archive. That costs half a second of processor time, for
which the first batch of every driver waits. If the same version of PySpark is installed, the archive is not needed.

Workers are forks of the daemon. So it imports, once, what each of them would need 0.4 seconds to import.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final
from zipimport import ZipImportError, zipimporter

ARCHIVE: Final = "pyspark.zip"
_VERSION: Final = "pyspark/version.py"
_OF_TASKS: Final = ("..host.discovery", ".dataframe", ".dead_letters", ".engine")
"""What every task imports, with all that it imports in turn."""


def without_archive(path: Sequence[str]) -> list[str]:
    """Return a module search path without Spark's archive, or unchanged unless it has the same PySpark elsewhere."""
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
    """Run ``pyspark.daemon`` with the changed search path, and with what tasks import."""
    sys.path[:] = without_archive(sys.path)
    from pyspark.daemon import manager

    for module in _OF_TASKS:
        # The task that needs it says what cannot be imported. Workers that run no task of Chandy do not.
        with suppress(ImportError):
            import_module(module, __package__)

    manager()


if __name__ == "__main__":
    main()
