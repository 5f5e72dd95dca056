"""State hosts are waited for as long as they live, and no longer."""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks import lives
from benchmarks.lives import await_hosts, runtime


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a name short enough for sockets."""
    made = Path(tempfile.mkdtemp(prefix="chandy-"))
    yield made
    shutil.rmtree(made)


def serve(folder: Path, host: str) -> socket.socket:
    place = runtime(folder) / "meet" / host
    place.mkdir(parents=True)
    served = socket.socket(socket.AF_UNIX)
    served.bind(str(place / "host.sock"))
    served.listen()
    return served


def test_without_a_discovery_directory_there_is_no_host_to_wait_for(folder: Path) -> None:
    assert await_hosts(folder)


def test_a_host_that_lives_is_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lives, "_HOSTS_DEADLINE_SECONDS", 0.0)
    serve(folder, "dead").close()
    with serve(folder, "alive"):
        assert not await_hosts(folder)


def test_a_host_that_was_killed_is_not_waited_for_although_its_socket_is_there(folder: Path) -> None:
    serve(folder, "killed").close()
    assert await_hosts(folder)
    assert list(folder.glob("r/meet/*/host.sock"))


def test_a_host_may_delete_its_directory_while_it_is_looked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, going: Callable[[Path], None]
) -> None:
    serve(folder, "ending").close()
    going(runtime(folder) / "meet" / "ending")
    assert await_hosts(folder)
    assert list((runtime(folder) / "meet").iterdir()) == []
