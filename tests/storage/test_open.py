"""From URIs to stores."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from chandy.storage import (
    InvalidNameError,
    InvalidUriError,
    LocalStore,
    UnknownStoreError,
    open_store,
    pipeline_uri,
)
from chandy.storage.open import BACKENDS, Backend


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
    "uri", ["", "relative/path", "file://host/path", "file:relative", "file:///a?b", "file:///a/../b"]
)
def test_a_uri_that_names_no_place_is_refused(uri: str) -> None:
    with pytest.raises(InvalidUriError, match=re.escape(repr(uri))):
        open_store(uri)


def test_an_unknown_scheme_is_named_with_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "here", Backend("chandy.storage.local", "here"))
    monkeypatch.setitem(BACKENDS, "away", Backend("chandy.storage.no_such_module", "away"))
    with pytest.raises(UnknownStoreError, match=r"no store for gopher://.*file://, .*here://") as caught:
        open_store("gopher://x")
    assert caught.value.extra is None
    assert "away" not in caught.value.supported


def test_a_backend_that_is_not_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "s3", Backend("chandy.storage.no_such_module", "s3"))
    with pytest.raises(UnknownStoreError, match=r'pip install --upgrade "chandy\[s3\]"') as caught:
        open_store("s3://bucket/prefix")
    assert caught.value.missing == "chandy.storage.no_such_module"


def test_a_pipeline_is_a_folder_of_the_storage() -> None:
    assert pipeline_uri("file:///var/", "flights") == "file:///var/flights"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "-a", ".hidden", "a\n", "ä", "x" * 129])
def test_a_pipeline_name_that_is_no_safe_part_of_a_path_is_refused(name: str) -> None:
    with pytest.raises(InvalidNameError, match="pipeline name"):
        pipeline_uri("file:///var", name)
