"""Apache Flink from PyPI, in a virtual environment of its own; made on first use, kept for the next.

What Flink's shell scripts do before they start a process (class path, memory) is done here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import attrs

from ..lives import REPOSITORY

VERSION: Final = "2.3.0"
_HOME: Final = REPOSITORY / ".flink"
_RESULT: Final = "BASH_JAVA_UTILS_EXEC_RESULT:"
_CONCURRENT: Final = ("util.concurrent", "util.concurrent.atomic", "util.concurrent.locks")
_OPENED: Final = ("lang", "net", "io", "nio", "lang.reflect", "text", "time", "util", *_CONCURRENT)
JAVA_OPTIONS: Final = (
    *(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _OPENED),
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.rmi/sun.rmi.registry=ALL-UNNAMED",
    "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
)
"""What Flink's own ``conf/config.yaml`` gives every process on Java 17."""


class FlinkUnavailableError(Exception):
    """Flink cannot be had on this machine; the text says why."""


@attrs.frozen
class Distribution:
    """Flink as PyPI has it."""

    environment: Path
    """The virtual environment."""

    @property
    def python(self) -> Path:
        """Runs Flink's Python."""
        return self.environment / "bin" / "python"

    @property
    def folder(self) -> Path:
        """Where its jars are: ``pyflink`` of the package."""
        return next(self.environment.glob("lib/python3*/site-packages/pyflink"))

    @property
    def java(self) -> str:
        """The ``java`` to run it with."""
        home = os.environ.get("JAVA_HOME")
        return str(Path(home) / "bin" / "java") if home else "java"

    @property
    def class_path(self) -> str:
        """Of a process of the cluster."""
        python = self.folder.glob("opt/flink-python-*.jar")
        return os.pathsep.join(map(str, [*python, *_jars(self.folder)]))

    def process_options(self, process: str, configuration: Path) -> tuple[list[str], list[str]]:
        """Return what the memory settings mean for a process: options of the JVM, and of the process.

        Args:
            process: ``JM`` or ``TM``.
            configuration: the folder of ``config.yaml``.
        """
        tools = os.pathsep.join(map(str, [*self.folder.glob("bin/bash-java-utils.jar"), *_jars(self.folder)]))
        utility = "org.apache.flink.runtime.util.bash.BashJavaUtils"
        command = [self.java, "-cp", tools, utility, f"GET_{process}_RESOURCE_PARAMS"]
        output = _output([*command, "--configDir", str(configuration)])
        return parse_options(output)


def distribution() -> Distribution:
    """Return Flink's distribution; install it if it is not there yet, which takes some minutes and about 1 GB.

    Raises:
        FlinkUnavailableError: that is impossible here.
    """
    environment, done = _HOME / VERSION, _HOME / f"{VERSION}.done"
    if not done.exists():
        shutil.rmtree(environment, ignore_errors=True)
        _output([sys.executable, "-m", "venv", str(environment)])
        pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--prefer-binary"]
        _output([*pip, f"apache-flink=={VERSION}"])
        # An environment cannot be moved; so a file beside it says that it is whole.
        done.touch()
    return Distribution(environment)


def parse_options(output: str) -> tuple[list[str], list[str]]:
    """Read the answer of Flink's tool: a line of JVM options, and one of the process' own; logs are among them."""
    lines = [line.removeprefix(_RESULT) for line in output.splitlines() if line.startswith(_RESULT)]
    jvm, own = lines
    return jvm.split(), own.split()


def _jars(folder: Path) -> list[Path]:
    # As Flink's scripts have them: the distribution comes last.
    return sorted(folder.glob("lib/*.jar"), key=lambda jar: (jar.name.startswith("flink-dist"), jar.name))


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise FlinkUnavailableError(f"{command[0]} cannot be run: {error}") from error
    if done.returncode:
        # The last lines say what was wrong; those before them are progress.
        reason = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise FlinkUnavailableError(f"{' '.join(command[:4])} ... failed: {reason}")
    return done.stdout
