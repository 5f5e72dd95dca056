"""From URIs to stores."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import metadata, requires
from pathlib import Path
from typing import Any, NoReturn

import fsspec
import pytest
from botocore.exceptions import ClientError

from chandy.storage import InvalidNameError, InvalidPlaceError, ObjectExistsError, Store, StoreFailedError
from chandy.storage.backends import clients, s3
from chandy.storage.backends.fsspec_store import FsspecStore
from chandy.storage.backends.local import LocalStore
from chandy.storage.backends.open import EXTRAS, backends, open_store, pipeline_uri
from chandy.storage.backends.probe import probe_exclusive_create
from chandy.storage.backends.retrying import RetryingStore
from chandy.storage.uri import is_same_store, join_uri

from ...builders import MemoryStore


@pytest.mark.parametrize(
    ("uri", "root"),
    [
        ("file:///var/lib/chandy", "/var/lib/chandy"),
        ("file:///var/lib/chandy/", "/var/lib/chandy"),
        ("file://localhost/var", "/var"),
        ("FILE:///var", "/var"),
        ("file:///with%20space%3F", "/with space?"),
        ("/plain/path", "/plain/path"),
        ("/plain/odd?#%20", "/plain/odd?#%20"),
    ],
)
def test_a_local_uri_opens_its_folder(uri: str, root: str) -> None:
    store = open_store(uri)
    assert isinstance(store, LocalStore)
    assert store.root == Path(root)
    again = open_store(store.uri)
    assert isinstance(again, LocalStore)
    assert again.root == Path(root)


@pytest.mark.parametrize(
    "uri", ["relative/path", "file://host/path", "file:relative", "file:///a?b", "file:///a/../b"]
)
def test_a_uri_that_names_no_place_is_refused(uri: str) -> None:
    with pytest.raises(InvalidPlaceError, match=re.escape(repr(uri))):
        open_store(uri)


@pytest.mark.parametrize("uri", ["", " ", None, 3, Path("/tmp/x"), b"/tmp/x"])
@pytest.mark.parametrize(
    "use", [open_store, lambda uri: pipeline_uri(uri, "p"), lambda uri: join_uri(uri, "p")]
)
def test_what_is_no_text_names_no_storage(use: Callable[[Any], object], uri: Any) -> None:
    """Below an empty text would be the root of the file system."""
    with pytest.raises(InvalidPlaceError, match="no storage is named"):
        use(uri)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("s3://b/p", "s3://b/p?region=eu-central-1", True),
        ("s3://b/p?profile=a&endpoint=http://h:1", "s3a://b/p?endpoint=http://h:1", True),
        ("s3://b/p", "s3://b/p?endpoint=http://h:1", False),
        ("s3://b/p", "s3://b/q?region=x", False),
        ("hdfs://n:1/p", "hdfs://n:1/p?dfs.client.use.datanode.hostname=true", True),
        ("hdfs://n:1/p", "viewfs://n:1/p", False),
        ("file:///p", "file:///p", True),
        ("file:///p", "file:///q", False),
        ("other://h/p?a=1", "other://h/p?a=2", False),
    ],
)
def test_a_store_is_known_by_its_place_and_not_by_how_it_is_reached(one: str, other: str, same: bool) -> None:
    assert is_same_store(one, other) is same
    assert is_same_store(other, one) is same


def test_an_unknown_scheme_is_named_with_what_there_is() -> None:
    with pytest.raises(
        InvalidPlaceError, match=r"no store for 'gopher://x'.*file://, hdfs://, s3://.*found gopher://"
    ):
        open_store("gopher://x")


class _Broken:
    """An entry point of a backend whose package is not there."""

    def load(self) -> NoReturn:
        raise ModuleNotFoundError("No module named 'hdfs_native'", name="hdfs_native")


def test_a_backend_that_is_not_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backends(), "hdfs", _Broken())  # type: ignore[misc]
    with pytest.raises(InvalidPlaceError, match=r'\'hdfs_native\'.*`pip install "chandy\[hdfs\]"`'):
        open_store("hdfs://namenode/path")


@pytest.mark.parametrize(
    "uri",
    [
        "hdfs://u:PASSWORD@nn/x",
        "gopher://u:PASSWORD@h/x",
        "file://u:PASSWORD@h/x",
        "hdfs://nn/x?password=PASSWORD",
    ],
)
def test_a_secret_in_a_uri_is_in_no_error_whatever_else_is_wrong(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(backends(), "hdfs", _Broken())  # type: ignore[misc]
    with pytest.raises(InvalidPlaceError, match="because URIs are logged") as refused:
        open_store(uri)
    assert "PASSWORD" not in str(refused.value)


def test_s3_comes_with_a_plain_install_and_each_extra_that_is_named_is_there() -> None:
    needed = requires("chandy") or []
    assert any(need.startswith("s3fs") and "extra" not in need for need in needed)
    assert set(EXTRAS) <= set(backends())
    assert set(EXTRAS.values()) <= set(metadata("chandy").get_all("Provides-Extra"))


class _Entry:
    """An entry point of somebody else's distribution."""

    def load(self) -> Callable[[str], Store]:
        def open_uri(uri: str) -> Store:
            store = MemoryStore()
            store.uri = uri
            return store

        return open_uri


def test_a_backend_is_an_entry_point_and_its_errors_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backends(), "mine", _Entry())  # type: ignore[misc]
    store = open_store("mine://place")
    assert isinstance(store, RetryingStore)
    assert store.uri == "mine://place"


def test_any_protocol_of_fsspec_opens_and_says_whether_it_is_fenced() -> None:
    assert open_store("memory://x/y").fenced
    assert not open_store("ftp://host/folder").fenced
    with pytest.raises(InvalidPlaceError, match=r"what fsspec needs for sftp://.*install"):
        open_store("sftp://host/folder")


@pytest.mark.parametrize(
    ("uri", "distribution", "old"),
    [("s3://bucket/p", "s3fs", "0.4.2"), ("hdfs://names/p", "hdfs-native", "0.9.9")],
)
def test_a_client_that_is_too_old_is_named_before_the_store_is_blamed(
    monkeypatch: pytest.MonkeyPatch, uri: str, distribution: str, old: str
) -> None:
    open_store(uri)
    clients._versions.cache_clear()
    monkeypatch.setattr(clients.metadata, "version", {distribution: old}.__getitem__)
    try:
        with pytest.raises(InvalidPlaceError, match=f'run `pip install "{distribution}>=') as caught:
            open_store(uri)
        assert caught.value.found == f"{distribution} {old}"
    finally:
        clients._versions.cache_clear()


def test_a_store_that_looks_first_and_writes_then_is_refused_whatever_the_race_says() -> None:
    # Two creates one after the other would pass.
    store = FsspecStore("odd://x", lambda: fsspec.filesystem("memory"), "/odd", fenced=False)
    with pytest.raises(InvalidPlaceError):
        probe_exclusive_create(store)
    store.create("x", b"1")
    with pytest.raises(ObjectExistsError):
        store.create("x", b"2")
    assert store.read("x") == b"1"
    store.delete("x")


# --- URIs of remote stores ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "same"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3a://bucket/a/", "s3://bucket/a"),
        ("s3://b/p%20q?region=r&endpoint=http://h:1", "s3://b/p%20q?endpoint=http://h:1&region=r"),
        ("hdfs://name/a?dfs.client.x=1", "hdfs://name/a?dfs.client.x=1"),
        ("hdfs:///a", "hdfs:///a"),
    ],
)
def test_a_store_tells_a_uri_that_opens_it_again(uri: str, same: str) -> None:
    assert open_store(uri).uri == same
    assert open_store(same).uri == same


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("s3:///prefix", "expected s3://bucket/prefix, found no bucket"),
        ("s3://b/p?regoin=x", "region.*unknown option 'regoin'"),
        ("s3://b/p?region=x&region=y", "twice"),
        ("s3://b/../c", r"without '\.\.'"),
        ("s3://b/a//c", "empty parts"),
        ("s3://b/a#c", "%23"),
        ("hdfs://n/a?user=me", "unknown option 'user'"),
    ],
)
def test_a_remote_uri_that_cannot_be_meant_is_refused(uri: str, says: str) -> None:
    with pytest.raises(InvalidPlaceError, match=says):
        open_store(uri)


@pytest.mark.parametrize(
    "uri",
    [
        "s3://b/p?secret=hunter2",
        "s3://b/p?key=hunter2",
        "s3://id:hunter2@b/p",
        "s3://b/p?token=hunter2",
        "s3://b/p?endpoint=https://id:hunter2@minio:9000",
        "s3://b/p?endpoint=https%3A%2F%2Fhunter2%40minio",
        "abfs://c/p?account_name=x&account_key=hunter2",
        "abfs://c/p?connection_string=AccountKey%3Dhunter2",
        "oss://b/p?access_key=hunter2",
        "gs://b/p?apikey=hunter2",
        "sftp://host/p?passphrase=hunter2",
        "webhdfs://host/p?pw=hunter2",
        "abfs://c/p?sas_token=hunter2",
    ],
)
def test_a_secret_in_a_uri_is_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises(InvalidPlaceError) as caught:
        open_store(uri)
    assert "hunter2" not in str(caught.value)


def test_what_is_below_a_uri_comes_before_its_options() -> None:
    assert pipeline_uri("s3://b/p/?region=r", "flights") == "s3://b/p/flights?region=r"
    assert join_uri("s3://b?region=r", "a", "b") == "s3://b/a/b?region=r"
    assert join_uri("/plain?", "a") == "/plain?/a"
    assert join_uri("file:///x/", "a") == "file:///x/a"


def test_the_options_of_a_uri_reach_the_s3_client(s3_keys: None) -> None:
    store = open_store(
        "s3://b/p?endpoint=http://h:1&region=r&addressing=path&sse=aws:kms&sse_kms_id=k&requester_pays=true"
    )
    assert isinstance(store, RetryingStore)
    fs = store.store.fs  # type: ignore[attr-defined]
    assert fs.endpoint_url == "http://h:1"
    assert fs.client_kwargs == {"region_name": "r"}
    assert fs.config_kwargs["s3"] == {"addressing_style": "path"}
    assert fs.s3_additional_kwargs == {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "k"}
    assert fs.requester_pays
    assert fs.retries == 1
    assert open_store(store.uri).store.fs is fs  # type: ignore[attr-defined]


def test_what_fsspec_is_configured_with_reaches_the_s3_client(
    s3_keys: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        fsspec.config.conf, "s3", {"key": "id", "client_kwargs": {"verify": False}, "config_kwargs": {"x": 1}}
    )
    fs = open_store("s3://b/p?region=configured").store.fs  # type: ignore[attr-defined]
    assert fs.key == "id"
    assert fs.client_kwargs == {"verify": False, "region_name": "configured"}
    assert fs.config_kwargs["x"] == 1
    assert fs.config_kwargs["retries"]["total_max_attempts"] == 1


def test_without_credentials_it_is_said_how_to_give_them_and_they_are_looked_for_again(
    no_s3_keys: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A region of its own, for clients are shared by those of one URI's options.
    store = open_store("s3://bucket/prefix?region=without-keys")
    with pytest.raises(
        StoreFailedError, match=r"could not create 'probes/.*AWS_ACCESS_KEY_ID.*executors"
    ) as caught:
        probe_exclusive_create(store)
    assert caught.value.store == store.uri
    assert not caught.value.transient
    with pytest.raises(StoreFailedError, match=r"profile .nobody. could not be found"):
        open_store("s3://bucket/prefix?profile=nobody").list()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    for again in (store, open_store(store.uri)):
        with pytest.raises(StoreFailedError, match=r"AWS_SECRET_ACCESS_KEY.*give") as caught:
            again.read("a")
        assert "Partial" in caught.value.reason


def test_a_pipeline_is_a_folder_of_the_storage() -> None:
    assert pipeline_uri("file:///var/", "flights") == "file:///var/flights"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "-a", ".hidden", "a\n", "ä", "x" * 129, 7])
def test_a_pipeline_name_that_is_no_safe_part_of_a_path_is_refused(name: str) -> None:
    with pytest.raises(InvalidNameError, match="pipeline name"):
        pipeline_uri("file:///var", name)


@pytest.mark.parametrize(
    ("code", "passes"), [("ExpiredToken", True), ("InvalidAccessKeyId", False), ("AccessDenied", None)]
)
def test_keys_that_were_rotated_are_looked_for_again(s3_keys: None, code: str, passes: bool | None) -> None:
    store = s3.open_uri("s3://bucket/rotated")
    assert isinstance(store, s3.S3Store)
    before = store.fs
    error = OSError("it is refused")
    error.__cause__ = ClientError(
        {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": 400}},  # type: ignore[typeddict-item]
        "PutObject",
    )
    assert store.failure("key", "write", error).transient is bool(passes)
    assert (store.fs is before) is (passes is None)


def test_markers_that_show_a_folder_are_no_objects() -> None:
    """As the console of S3 and Hadoop make them."""
    store = open_store("memory://markers/p")
    store.write("a", b"x")
    inner = store.store  # type: ignore[attr-defined]
    found = [{"name": f"/markers/p/{key}", "type": "file", "size": 0} for key in ("", "sub/", "a")]
    inner._find = lambda prefix: found
    assert store.list() == ["a"]


def test_a_second_look_at_s3_has_connections_of_its_own() -> None:
    store = open_store("s3://bucket/p?endpoint=http://127.0.0.1:1&anonymous=true")
    assert isinstance(store, RetryingStore)
    again = store.afresh()
    assert isinstance(again, RetryingStore)
    assert isinstance(store.store, FsspecStore)
    assert isinstance(again.store, FsspecStore)
    assert again.uri == store.uri
    assert again.store.fs is not store.store.fs
