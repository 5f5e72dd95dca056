"""Servers of HDFS that never answer: the client waits for them for ever, the store does not."""

from __future__ import annotations

import os
import signal
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chandy.storage import Store, StoreFailedError
from chandy.storage.backends import hdfs as hdfs_module
from chandy.storage.errors import NotDeletedError
from chandy.storage.transfer import PART

from ...waiting import eventually, freeze
from ..conftest import hdfs_uri
from ..servers import Server

OPERATIONS: dict[str, Callable[[Store, Path], object]] = {
    "read a part": lambda store, path: store.read("key", 0, 1),
    "download a small file": lambda store, path: store.download("key", path / "small", 1),
    "download a large file": lambda store, path: store.download("key", path / "large", 3 * PART),
    "write": lambda store, path: store.write("key", b"data"),
    "create": lambda store, path: store.create("key", b"data"),
    "upload": lambda store, path: store.upload(path / "file", "key"),
    "list": lambda store, path: store.list(),
    "scan": lambda store, path: store.scan("folder/"),
    "stat": lambda store, path: store.stat("key"),
    "delete": lambda store, path: store.delete("key"),
    "delete all": lambda store, path: store.delete_all([f"{n}/key" for n in range(9)]),
    "sweep": lambda store, path: store.sweep(0),
}


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody have time to answer who does not do it at once."""
    monkeypatch.setattr(hdfs_module, "_PATIENCE", 0.01)
    monkeypatch.setattr(hdfs_module, "_SLOWEST", 1 << 40)


@pytest.fixture(scope="module")
def silent_port() -> Iterator[int]:
    """The port of a name node that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]
    await_calls()


@pytest.fixture
def silent(silent_port: int) -> hdfs_module.HdfsStore:
    store = hdfs_module.open_uri(f"hdfs://127.0.0.1:{silent_port}/folder")
    assert isinstance(store, hdfs_module.HdfsStore)
    return store


def await_calls() -> None:
    """Wait for the end of the calls that were given up: one that ends while the process does ends it badly."""
    eventually(
        lambda: not any(thread.name == "chandy-hdfs" for thread in threading.enumerate()),
        "the end of the calls that were given up",
    )


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_gets_no_answer_fails_and_the_next_attempt_connects_anew(
    silent: hdfs_module.HdfsStore, tmp_path: Path, operation: str
) -> None:
    (tmp_path / "file").write_bytes(b"data")
    with pytest.raises((StoreFailedError, NotDeletedError), match="no answer within 0 s") as failed:
        OPERATIONS[operation](silent, tmp_path)
    assert failed.value.transient
    assert silent._connected is None


def test_an_upload_to_a_server_that_freezes_half_way_fails_and_leaves_no_object(
    hdfs: Server, request: pytest.FixtureRequest
) -> None:
    store = hdfs_module.open_uri(hdfs_uri(hdfs, uuid.uuid4().hex))
    assert isinstance(store, hdfs_module.HdfsStore)

    def chunks() -> Iterator[bytes]:
        yield bytes(PART)
        # What comes now is in the buffers of this machine at first.
        freeze(hdfs.pid)
        request.getfixturevalue("hurry")
        for _ in range(64):
            yield bytes(PART)

    try:
        with pytest.raises(TimeoutError, match="no answer"), store._written("key", chunks()):
            pytest.fail("everything was written")
    finally:
        os.kill(hdfs.pid, signal.SIGCONT)
    request.getfixturevalue("monkeypatch").undo()
    assert store.list() == []
    store.write("key", b"data")
    assert store.list() == ["key"]
