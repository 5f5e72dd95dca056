"""What runs on Java: Maven resolves class paths."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

_SECONDS: Final = 900.0
"""How long Maven may take to download everything."""


class NoJavaServerError(Exception):
    """There is nothing here to run a server with. The message says what is missing."""


def class_path(pom: Path, cache: Path) -> str:
    """Return the class path of what a POM depends on; Maven is asked once, and when a jar is gone or the POM changed.

    Args:
        pom: the file.
        cache: an existing folder in which class paths are remembered.

    Raises:
        NoJavaServerError: no Maven, or no repository with the artefacts.
    """
    known = cache / f"classpath-{hashlib.sha256(pom.read_bytes()).hexdigest()}"
    if known.exists() and all(Path(jar).exists() for jar in known.read_text().split(":")):
        return known.read_text()
    # Another process may ask at the same time, so each has a file of its own until it is whole.
    written = known.with_name(f"{known.name}-{os.getpid()}")
    command = [program("mvn"), "-q", "-B", "-f", str(pom), "dependency:build-classpath"]
    found = subprocess.run(
        [*command, f"-Dmdep.outputFile={written}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
    )
    if found.returncode != 0:
        raise NoJavaServerError(f"Maven cannot resolve {pom}: {found.stdout[-500:]}")
    return written.replace(known).read_text()


def program(name: str) -> str:
    """Return the path of a program.

    Raises:
        NoJavaServerError: there is none.
    """
    path = shutil.which(name)
    if path is None:
        raise NoJavaServerError(f"there is no {name}")
    return path
