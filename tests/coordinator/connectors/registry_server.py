"""A real schema registry for tests, as a process."""

from __future__ import annotations

import json
import os
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

from benchmarks.servers.process import Server

from ...maven import class_path, or_skip, program
from ...storage.servers import free_port

POM: Final = Path(__file__).with_name("schema_registry.pom.xml")
_API: Final = "/apis/ccompat/v7"
_TYPE: Final = "application/vnd.schemaregistry.v1+json"


@attrs.frozen
class Registry:
    """A registry without schemas, which forgets them when it ends."""

    server: Server

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}{_API}"

    def ask(self, path: str, method: str = "GET", **body: Any) -> Any:
        """Return what the registry answers to a request, by its own API."""
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(
            self.url + path, data, headers={"Content-Type": _TYPE}, method=method
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())


def registry(directory: Path, cache: Path) -> Registry:
    """Return a registry that is not started.

    Args:
        directory: for its log. It exists.
        cache: where its archive is unpacked, once.

    Raises:
        NoJavaServerError: no Maven, no Java, or no repository with the archive.
    """
    archive = Path(class_path(POM, cache))
    home = cache / archive.stem
    if not home.exists():
        new = cache / f"{archive.stem}.{os.getpid()}"
        with tarfile.open(archive) as packed:
            packed.extractall(new, filter="data")
        try:
            new.rename(home)
        except OSError:
            # Another process of the tests was faster.
            assert home.exists()
    (jar,) = home.glob("*-runner.jar")
    port = free_port()
    settings = {"http.port": port, "http.host": "127.0.0.1", "log.level": "WARN"}
    options = [f"-Dquarkus.{name}={value}" for name, value in settings.items()]
    java = [program("java"), "-Xmx300m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    return Registry(Server([*java, *options, "-jar", str(jar)], port, directory, _is_ready))


def _is_ready(server: Server) -> bool:
    try:
        return bool(Registry(server).ask("/subjects") == [])
    except urllib.error.URLError:
        return False


@pytest.fixture(scope="session")
def schema_registry(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Registry]:
    """The registry that tests share."""
    assert pytestconfig.cache is not None
    with or_skip("schema registry", unless="CHANDY_REQUIRE_KAFKA"):
        made = registry(tmp_path_factory.mktemp("registry"), pytestconfig.cache.mkdir("schema-registry"))
    try:
        made.server.start()
        yield made
    finally:
        made.server.kill()
