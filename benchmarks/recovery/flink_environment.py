"""Apache Flink from PyPI, in a virtual environment of its own, which is created on first use and kept.

This module does what Flink's shell scripts do before they start a process: it sets the class path and the memory.
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
"""The options of every process on Java 17, from Flink's own ``conf/config.yaml``."""


class FlinkUnavailableError(Exception):
    """Flink cannot be installed on this machine. The message says why."""


@attrs.frozen
class Distribution:
    """Flink's package from PyPI."""

    environment: Path
    """The virtual environment."""

    @property
    def python(self) -> Path:
        """The Python of the environment."""
        return self.environment / "bin" / "python"

    @property
    def folder(self) -> Path:
        """The folder of its jars: ``pyflink`` of the package."""
        return next(self.environment.glob("lib/python3*/site-packages/pyflink"))

    @property
    def java(self) -> str:
        """The ``java`` command that runs it."""
        home = os.environ.get("JAVA_HOME")
        return str(Path(home) / "bin" / "java") if home else "java"

    @property
    def class_path(self) -> str:
        """The class path of the cluster's processes."""
        python = self.folder.glob("opt/flink-python-*.jar")
        return os.pathsep.join(map(str, [*python, *_jars(self.folder)]))

    def process_options(self, process: str, configuration: Path) -> tuple[list[str], list[str]]:
        """Return the options that follow from the memory settings: those of the JVM, and those of the process.

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
    """Return Flink's distribution. The first call installs it, which takes some minutes and about 1 GB.

    Raises:
        FlinkUnavailableError: Flink cannot be installed here.
    """
    environment, done = _HOME / VERSION, _HOME / f"{VERSION}.done"
    if not done.exists():
        shutil.rmtree(environment, ignore_errors=True)
        _output([sys.executable, "-m", "venv", str(environment)])
        pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--prefer-binary"]
        _output([*pip, f"apache-flink=={VERSION}"])
        # An environment cannot be moved into place, so a file beside it says that it is complete.
        done.touch()
    return Distribution(environment)


def parse_options(output: str) -> tuple[list[str], list[str]]:
    """Parse the output of Flink's tool: a line of JVM options and a line of process options, among logs."""
    lines = [line.removeprefix(_RESULT) for line in output.splitlines() if line.startswith(_RESULT)]
    jvm, own = lines
    return jvm.split(), own.split()


def _jars(folder: Path) -> list[Path]:
    # In the order of Flink's scripts: the distribution comes last.
    return sorted(folder.glob("lib/*.jar"), key=lambda jar: (jar.name.startswith("flink-dist"), jar.name))


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise FlinkUnavailableError(f"{command[0]} cannot be run: {error}") from error
    if done.returncode:
        # The last lines have the error. The lines before them are progress.
        reason = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise FlinkUnavailableError(f"{' '.join(command[:4])} ... failed: {reason}")
    return done.stdout
