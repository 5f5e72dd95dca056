"""Values, stores and servers that the tests of storage share."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest

from chandy.storage import Store
from chandy.storage.backends.local import LocalStore
from chandy.storage.backends.open import open_store

from ..builders import MemoryStore
from ..maven import or_skip
from . import servers
from .servers import Server


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


# --- servers ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def s3_keys() -> Iterator[None]:
    """Credentials as a user has them: in the environment, and nothing of this machine's own."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("AWS_", "FSSPEC_"))]:
            patch.delenv(name)
        patch.setenv("AWS_ACCESS_KEY_ID", servers.ACCESS_KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", servers.SECRET_KEY)
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield


@pytest.fixture
def no_s3_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials anywhere that a client of S3 looks, and no looking for them in the network."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "FSSPEC_"))]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "BOTO_CONFIG"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setitem(fsspec.config.conf, "s3", {})


@pytest.fixture(scope="session")
def moto(s3_keys: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = servers.moto(tmp_path_factory.mktemp("moto"))
    server.start()
    store = open_store(s3_uri(server))
    store.store.fs.call_s3("create_bucket", Bucket=servers.BUCKET)  # type: ignore[attr-defined]
    yield server
    server.kill()


@pytest.fixture(scope="session")
def rclone(s3_keys: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = servers.rclone(tmp_path_factory.mktemp("rclone"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def hdfs(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Skips where it cannot be had, unless ``CHANDY_REQUIRE_HDFS=1``."""
    yield from _running(servers.hdfs, "hdfs", pytestconfig, tmp_path_factory)


@pytest.fixture(scope="session")
def s3proxy(
    s3_keys: None, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Skips where it cannot be had, unless ``CHANDY_REQUIRE_S3PROXY=1``."""
    yield from _running(servers.s3proxy, "s3proxy", pytestconfig, tmp_path_factory)


def _running(
    make: Callable[[Path, Path], Server],
    name: str,
    config: pytest.Config,
    folders: pytest.TempPathFactory,
) -> Iterator[Server]:
    assert config.cache is not None
    with or_skip(name, unless=f"CHANDY_REQUIRE_{name.upper()}"):
        server = make(folders.mktemp(name), config.cache.mkdir(name))
    server.start()
    yield server
    server.kill()


def s3_uri(server: Server, path: str = "") -> str:
    return f"s3://{servers.BUCKET}/{path}?endpoint=http://127.0.0.1:{server.port}&region=us-east-1"


def hdfs_uri(server: Server, path: str) -> str:
    return f"hdfs://127.0.0.1:{server.port}/{path}"


BACKENDS = ["file", "fake", "memory", "moto", "rclone", "hdfs"]
EXCLUSIVE = ["file", "fake", "memory", "moto", "hdfs"]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """The name of each backend; a test may name some of them by ``indirect``."""
    name: str = request.param
    return name


@pytest.fixture
def make_store(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """Opens the same empty place of a backend each time."""
    folder = uuid.uuid4().hex
    match backend:
        case "file":
            return lambda: open_store((tmp_path / "any").as_uri())
        case "fake":
            fake = MemoryStore()
            return lambda: fake
        case "memory":
            return lambda: open_store(f"memory://{folder}/p")
        case "hdfs":
            server = request.getfixturevalue("hdfs")
            return lambda: open_store(hdfs_uri(server, f"{folder}/p"))
        case _:
            server = request.getfixturevalue(backend)
            return lambda: open_store(s3_uri(server, f"{folder}/p"))


@pytest.fixture
def any_store(make_store: Callable[[], Store]) -> Store:
    return make_store()
