"""Real servers for tests, as processes: S3 with conditional writes and without, and HDFS."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import attrs

from ..maven import class_path, program

ACCESS_KEY = "ACCESSKEYOFTESTS"
SECRET_KEY = "SECRETKEYOFTESTS"
BUCKET = "bucket"
DEADLINE = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@attrs.define
class Server:
    """A process that serves one port of this machine; it can be killed and started again."""

    command: list[str]
    port: int
    directory: Path
    is_ready: Callable[[Server], bool]
    environment: dict[str, str] = attrs.field(factory=dict)
    process: subprocess.Popen[bytes] | None = None
    deadline: float = DEADLINE
    """Seconds in which it starts; they only end a test that fails."""

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | self.environment,
            )
        deadline = time.monotonic() + self.deadline
        while not self.is_ready(self):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"{self.command[0]} did not start:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def answers(server: Server) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", server.port)) == 0


def moto(directory: Path) -> Server:
    """S3 in memory that honours ``If-None-Match``."""
    port = free_port()
    return Server(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], port, directory, answers
    )


def rclone(directory: Path) -> Server:
    """S3 on files that silently ignores ``If-None-Match``."""
    port = free_port()
    (directory / "data" / BUCKET).mkdir(parents=True)
    program = Path(sys.executable).with_name("rclone")
    keys = f"{ACCESS_KEY},{SECRET_KEY}"
    command = [
        str(program),
        "serve",
        "s3",
        "--config=/dev/null",
        f"--addr=127.0.0.1:{port}",
        f"--auth-key={keys}",
        str(directory / "data"),
    ]
    return Server(command, port, directory, answers)


def hdfs(directory: Path, cache: Path) -> Server:
    """A name node and a data node in one JVM.

    Raises:
        NoJavaServerError: no Maven, no Java, or no repository with the class path.
    """
    port = free_port()
    details = directory / "details.json"
    command = [
        program("java"),
        "-Xmx400m",
        "-cp",
        class_path(Path(__file__).with_name("hdfs") / "pom.xml", cache),
        "org.apache.hadoop.test.MiniDFSClusterManager",
        "-datanodes",
        "1",
        "-nnport",
        str(port),
        "-writeDetails",
        str(details),
        "-D",
        "dfs.namenode.fs-limits.min-block-size=1024",
        "-format",
    ]
    return Server(command, port, directory, lambda server: details.exists() and details.stat().st_size > 0)
