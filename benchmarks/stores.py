"""Stores for Chandy's checkpoints: this machine's disk, and S3 on this machine or 30 ms away.

``rclone serve s3`` serves S3 from files of this machine. It ignores the condition of an exclusive create, so drivers
are not fenced there. Recovery reads and writes the same objects.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import attrs

from .lives import REPOSITORY
from .ports import free_ports

LATENCY_SECONDS: Final = 0.03
"""The round trip of a request to the distant S3."""
_ACCESS_KEY, _SECRET_KEY, _BUCKET = "benchmarkaccesskey", "benchmarksecretkey", "bucket"
_DEADLINE_SECONDS: Final = 30.0


@attrs.frozen
class StoreAt:
    """A store for checkpoints."""

    uri: str
    environment: Mapping[str, str] = attrs.field(factory=dict)
    """Environment variables for its clients."""
    fenced: bool = True
    """Whether it supports exclusive creates."""
    remote: bool = False
    """Whether it survives the loss of the machine."""


@contextlib.contextmanager
def local(folder: Path) -> Iterator[StoreAt]:
    """Provide a store in a folder."""
    yield StoreAt(folder.as_uri())


@contextlib.contextmanager
def s3(folder: Path, latency: float = 0.0) -> Iterator[StoreAt]:
    """Serve S3 from a folder for the duration of the context.

    Args:
        folder: takes the files of the server. It is created.
        latency: seconds that are added to each request.
    """
    (folder / "data" / _BUCKET).mkdir(parents=True)
    with contextlib.ExitStack() as stack, (folder / "server.log").open("ab") as log:
        port, front = free_ports(2)
        command = [
            str(Path(sys.executable).with_name("rclone")),
            *("serve", "s3", "--config=/dev/null"),
            *(f"--addr=127.0.0.1:{port}", f"--auth-key={_ACCESS_KEY},{_SECRET_KEY}"),
            str(folder / "data"),
        ]
        stack.enter_context(_server(command, port, log.fileno()))
        if latency:
            behind, port = port, front
            proxy = [
                sys.executable,
                "-m",
                "benchmarks.far",
                str(port),
                str(behind),
                str(latency / 2),
            ]
            stack.enter_context(_server(proxy, port, log.fileno()))
        environment = {
            "AWS_ACCESS_KEY_ID": _ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": _SECRET_KEY,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{port}",
        }
        yield StoreAt(f"s3://{_BUCKET}/checkpoints", environment, fenced=False, remote=True)


@contextlib.contextmanager
def _server(command: list[str], port: int, log: int) -> Iterator[None]:
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=REPOSITORY, env=os.environ
    )
    try:
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} did not start")
            time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
