"""A read from HDFS that never comes to an end, as the client has none of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chandy.storage import Store, StoreFailedError, hdfs
from chandy.storage.transfer import PART


class Silent:
    """A client whose data node never answers."""

    def __init__(self) -> None:
        self.end = threading.Event()

    def read(self, path: str) -> Any:
        self.end.wait()
        raise OSError("over")


@pytest.fixture
def silent() -> Iterator[Silent]:
    client = Silent()
    yield client
    client.end.set()


@pytest.mark.parametrize(
    "read",
    [
        lambda store, path: store.read("key", 0, 1),
        lambda store, path: store.download("key", path / "small", 1),
        lambda store, path: store.download("key", path / "large", 3 * PART),
    ],
    ids=["a part", "a small file", "a large file"],
)
def test_a_read_without_an_answer_fails_and_the_next_one_connects_anew(
    silent: Silent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, read: Callable[[Store, Path], object]
) -> None:
    monkeypatch.setattr(hdfs, "_PATIENCE", 0.01)
    monkeypatch.setattr(hdfs, "_SLOWEST", 1 << 40)
    store = hdfs.open_uri("hdfs://127.0.0.1:1/folder")
    assert isinstance(store, hdfs.HdfsStore)
    monkeypatch.setattr(hdfs.HdfsStore, "_client", silent)
    store._connected = (1, silent)
    with pytest.raises(StoreFailedError, match="no answer within 0 s") as failed:
        read(store, tmp_path)
    assert failed.value.transient
    assert store._connected is None


def test_an_error_of_a_read_is_its_callers(silent: Silent, monkeypatch: pytest.MonkeyPatch) -> None:
    silent.end.set()
    store = hdfs.open_uri("hdfs://127.0.0.1:1/folder")
    monkeypatch.setattr(hdfs.HdfsStore, "_client", silent)
    with pytest.raises(StoreFailedError, match="over"):
        store.read("key")
