"""The newest commits of a Delta table, read by a process of its own.

delta-rs holds Python's global lock while it reads them, so a store that does not answer would stop the whole driver.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Final

NOTE: Final = "chandy"
"""The key of what a commit says about itself in its ``commitInfo``."""
_LOOKS: Final = (1, 20, 1_000, 4_000, 16_000, 64_000, None)
"""How many commits are read, one file each: mostly the writer's own is the newest one, and all of a large table take
minutes. None: all."""


def newest_commits(uri: str, options: Mapping[str, str], writer: str, seconds: float) -> list[dict[str, Any]]:
    """Return what commits say about themselves, the newest first, down to one of a writer at least.

    If a ``RESTORE`` comes before that, it is all of them.

    Args:
        uri: the table.
        options: of delta-rs, for its store.
        writer: the name that the writer's commits have in their notes.
        seconds: how long it may take.

    Raises:
        TimeoutError: it took longer.
        OSError: they cannot be read.
    """
    # The options may have credentials, which arguments would show.
    given = json.dumps({"uri": uri, "options": dict(options), "writer": writer})
    command = [sys.executable, "-m", "chandy.coordinator.connectors.tables.delta_history"]
    try:
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(
            f"the table's history timed out after {seconds:g} s, `timeout` of the sink"
        ) from error
    if done.returncode:
        raise OSError(f"the table's history cannot be read: {done.stderr.strip()[-1000:]}")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def is_restore(commit: Mapping[str, Any]) -> bool:
    """Return whether a commit has restored an earlier version."""
    return commit.get("operation") == "RESTORE"


def is_by(commit: Mapping[str, Any], writer: str) -> bool:
    """Return whether a commit is one of a writer."""
    return bool(commit.get(NOTE, {}).get("writer") == writer)


def read_commits(uri: str, options: Mapping[str, str], writer: str) -> list[dict[str, Any]]:
    """Return what ``newest_commits`` does, read by this process."""
    from deltalake import DeltaTable

    table = DeltaTable(uri, storage_options=dict(options))
    for limit in _LOOKS:
        found = table.history(limit)
        told = [one for one in found if is_restore(one) or is_by(one, writer)]
        # What was restored may be any older version, which may be a restored one itself.
        if limit is None or len(found) < limit or (told and not is_restore(told[0])):
            break
    return found


def _main() -> None:
    json.dump(read_commits(**json.load(sys.stdin)), sys.stdout, default=str)


if __name__ == "__main__":
    _main()
