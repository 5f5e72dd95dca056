"""The files that Spark's readers find in the folder of a file sink."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from chandy.coordinator.spark.logs.compact_log import entry_number


def entries(log: Path) -> dict[int, Path]:
    found = [path for path in log.iterdir() if entry_number(path.name) is not None] if log.is_dir() else []
    return {number: path for path in found if (number := entry_number(path.name)) is not None}


def lines(log: Path) -> list[dict[str, Any]]:
    """What a compacting log names, in its order: from the latest compact entry on."""
    by_number = entries(log)
    latest = max((n for n, path in by_number.items() if path.name.endswith(".compact")), default=-1)
    return [
        json.loads(line)
        for number, path in sorted(by_number.items())
        if number >= latest
        for line in path.read_text().splitlines()[1:]
    ]


def local(uri: str) -> Path:
    return Path(unquote(urlsplit(uri).path))


def listed(output: Path) -> list[str]:
    """What Spark's file source finds in a directory that has a log, oldest first."""
    return [one["path"] for one in lines(output / "_spark_metadata") if not one.get("isDir")]
