"""A read from HDFS that never comes to an end, as the client has none of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from chandy.storage import StoreFailedError, hdfs


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


def test_a_read_without_an_answer_fails_and_the_next_one_connects_anew(
    silent: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdfs, "_PATIENCE", 0.01)
    store = hdfs.open_uri("hdfs://127.0.0.1:1/folder")
    assert isinstance(store, hdfs.HdfsStore)
    monkeypatch.setattr(hdfs.HdfsStore, "_client", silent)
    store._connected = (1, silent)
    with pytest.raises(StoreFailedError, match="no answer within 0 s") as failed:
        store.read("key", 0, 1)
    assert failed.value.transient
    assert store._connected is None


def test_an_error_of_a_read_is_its_callers(silent: Silent, monkeypatch: pytest.MonkeyPatch) -> None:
    silent.end.set()
    store = hdfs.open_uri("hdfs://127.0.0.1:1/folder")
    monkeypatch.setattr(hdfs.HdfsStore, "_client", silent)
    with pytest.raises(StoreFailedError, match="over"):
        store.read("key")
