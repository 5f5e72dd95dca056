"""What the demos share: their console, and the folder in which each runs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from chandy.storage.uri import join_uri

from .lives import await_hosts, runtime
from .watching import DriverFailedError

PLAIN_WIDTH: Final = 120
"""The width of tables if the output is not a terminal."""


def demo_console() -> Console:
    """Return the console of a demo."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(width=PLAIN_WIDTH, highlight=False)


@contextmanager
def demo_folder(
    console: Console,
    *,
    keep: bool,
    storage: str = "",
    failures: tuple[type[Exception], ...] = (DriverFailedError,),
) -> Iterator[Path]:
    """Provide a folder. Delete it at the end, unless it is to be kept or the demo has failed: then it has the log.

    Args:
        console: says what is kept.
        keep: whether to keep it.
        storage: URI below which the checkpoints are, if they are not in the folder.
        failures: errors that say what is wrong in a sentence.

    Raises:
        SystemExit: the demo has failed, or a state host still runs.
    """
    # Resolve symbolic links, because paths of sockets must be short.
    folder = Path(tempfile.mkdtemp(prefix="chandy-")).resolve()
    try:
        yield folder
    except failures as error:
        keep = True
        console.print(Text(str(error), "red"), soft_wrap=True)
        raise SystemExit(2) from None
    finally:
        # The hosts of a killed driver end by themselves when they lose their lease.
        ended = await_hosts(folder)
        if keep:
            console.print(f"Kept {folder}; try: chandy list {checkpoints(folder, storage)}", soft_wrap=True)
        elif ended:
            shutil.rmtree(folder, ignore_errors=True)
    if not ended:
        console.print(Text(f"A state host still runs; its log is below {runtime(folder)}", "red"))
        raise SystemExit(2)


def checkpoints(folder: Path, storage: str = "") -> str:
    """Return the URI where the checkpoints of a demo go: each demo has its own, and finds none of an earlier run."""
    return join_uri(storage, folder.name) if storage else (folder / "checkpoints").as_uri()
