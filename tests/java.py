"""How the Java virtual machines of tests start: hundreds do, and none lives long.

They compile with the fast compiler alone, and collect garbage in one thread. What Spark loads comes from an archive of
classes, which is written once for each environment (``python -m tests.java``). With both, a session that runs one
streaming query takes a quarter of the processor time. For what the fast compiler makes, Java reserves so little room
that a session of many tests throws it away and compiles it again: a sixth of its time, which more room saves. Java
passes over an archive that is missing, or that was written by another version or with other jars.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "classes.jsa"
LIGHT = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC -Xlog:disable"


def configure() -> None:
    """Have all Java virtual machines that this process and its children start use the archive."""
    # The launcher of Java reads it, and splits it at spaces. A value that the user has set stays.
    os.environ.setdefault("JDK_JAVA_OPTIONS", f'{LIGHT} "-XX:SharedArchiveFile={ARCHIVE}"')


if __name__ == "__main__":
    from chandy.coordinator.cli.class_archive import write

    write(ARCHIVE, LIGHT)
