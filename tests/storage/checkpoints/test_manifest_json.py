"""The manifest as a document."""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Iterator

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chandy.storage.checkpoints.manifest import (
    ChannelRecord,
    EpochRecord,
    FileRef,
    Handle,
    Manifest,
    OutputRecord,
    TopicPartition,
    UnreadFiles,
)
from chandy.storage.checkpoints.manifest_json import decode_manifest, encode_manifest
from chandy.storage.errors import SchemaTooNewError, UnfitError

from ...builders import make_manifest

STORE, KEY = "file:///store", "checkpoints/7/manifest.json"

shared_fixtures = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def manifest() -> Manifest:
    handle = Handle((FileRef("1.sst", "shared/ab/ab.sst", 5, "ab"), FileRef("Käse", "p.pack", 0, "cd", 9)))
    return make_manifest(id=7, shards=(None, handle), files=handle, new_bytes=12)


@pytest.fixture
def looks() -> Iterator[list[int]]:
    """Which generation the garbage collector has looked at, look by look; it is in a great hurry."""
    seen: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            seen.append(info["generation"])

    pace = gc.get_threshold()
    gc.set_threshold(100, 1, 1)
    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)
    gc.set_threshold(*pace)


def test_a_manifest_comes_back_equal(manifest: Manifest) -> None:
    assert decode_manifest(encode_manifest(manifest), STORE, KEY) == manifest


def test_the_document_says_its_schema_and_hash_beside_the_body(manifest: Manifest) -> None:
    document = json.loads(encode_manifest(manifest))
    assert set(document) == {"schema", "sha256", "manifest"}
    assert document["schema"] == 1
    assert document["manifest"]["id"] == 7


def test_only_an_unverified_one_needs_the_newer_schema(manifest: Manifest) -> None:
    assert "unverified" not in json.loads(encode_manifest(manifest))["manifest"]
    unverified = attrs.evolve(manifest, unverified=True)
    document = json.loads(encode_manifest(unverified))
    assert (document["schema"], document["manifest"]["unverified"]) == (2, True)
    assert decode_manifest(encode_manifest(unverified), STORE, KEY) == unverified


@pytest.mark.parametrize("unverified", [False, True])
def test_only_one_with_output_needs_the_schema_after_that_and_comes_back_equal(
    manifest: Manifest, unverified: bool
) -> None:
    assert "outputs" not in json.loads(encode_manifest(manifest))["manifest"]["queries"][0]
    staged = Handle((FileRef("0.parquet", "staged/delays/0.parquet", 5, "ab"),))
    outputs = (
        OutputRecord("table", (EpochRecord(5, 3, staged), EpochRecord(7, 1, note='{"a": "ä"}')), 4),
        OutputRecord("topic", ()),
    )
    queries = tuple(attrs.evolve(query, outputs=outputs) for query in manifest.queries)
    found = attrs.evolve(manifest, queries=queries, unverified=unverified)
    document = json.loads(encode_manifest(found))
    assert document["schema"] == 3
    assert decode_manifest(encode_manifest(found), STORE, KEY) == found
    # A restore needs its files.
    assert found.keys() - manifest.keys() == {"staged/delays/0.parquet"}
    assert found.size - manifest.size == 5


def test_only_one_with_channels_needs_the_schema_after_that_and_comes_back_equal(manifest: Manifest) -> None:
    assert "channels" not in json.loads(encode_manifest(manifest))["manifest"]
    channels = (
        ChannelRecord("a", None, "b", "/out", 4, 0, UnreadFiles(3, 500)),
        ChannelRecord("a", "sink", "c", "topic t", None, 7, None, (TopicPartition("t", 0, 5, None),)),
    )
    found = attrs.evolve(manifest, channels=channels)
    document = json.loads(encode_manifest(found))
    assert document["schema"] == 4
    assert decode_manifest(encode_manifest(found), STORE, KEY) == found


def test_only_one_with_states_to_delete_needs_the_newest_schema_and_comes_back_equal(
    manifest: Manifest, whole: Manifest
) -> None:
    assert "deleting" not in json.loads(encode_manifest(manifest))["manifest"]["operators"][0]
    assert json.loads(encode_manifest(whole))["schema"] == 5
    assert decode_manifest(encode_manifest(whole), STORE, KEY) == whole


@pytest.mark.parametrize("unverified", [False, True])
def test_a_changed_schema_is_found(manifest: Manifest, unverified: bool) -> None:
    document = encode_manifest(attrs.evolve(manifest, unverified=unverified))
    was, now = (b"2", b"1") if unverified else (b"1", b"2")
    changed = document.replace(b'"schema":' + was, b'"schema":' + now)
    with pytest.raises(
        UnfitError, match="schema 2, found schema 1" if unverified else "schema 1, found schema 2"
    ):
        decode_manifest(changed, STORE, KEY)


@pytest.mark.parametrize("digit", range(6, 10))
def test_a_schema_that_has_become_a_newer_one_is_damaged(manifest: Manifest, digit: int) -> None:
    changed = encode_manifest(manifest).replace(b'"schema":1', f'"schema":{digit}'.encode())
    with pytest.raises(UnfitError, match=f"schema 1, found schema {digit}"):
        decode_manifest(changed, STORE, KEY)


@given(data=st.data())
@shared_fixtures
def test_any_changed_byte_is_found(manifest: Manifest, data: st.DataObject) -> None:
    document = bytearray(encode_manifest(manifest))
    position = data.draw(st.integers(0, len(document) - 1))
    document[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(UnfitError):
        decode_manifest(bytes(document), STORE, KEY)


@pytest.mark.parametrize(
    ("was", "now"), [(b",", b", "), (b"\\u00e4", b"\\u00E4"), (b'{"manifest', b' {"manifest')]
)
def test_even_a_change_that_json_does_not_care_for_is_found(
    manifest: Manifest, was: bytes, now: bytes
) -> None:
    document = encode_manifest(manifest)
    changed = document.replace(was, now, 1)
    assert changed != document
    assert json.loads(changed) == json.loads(document)
    with pytest.raises(UnfitError):
        decode_manifest(changed, STORE, KEY)


@given(data=st.data())
@shared_fixtures
def test_a_truncated_document_is_damaged(manifest: Manifest, data: st.DataObject) -> None:
    document = encode_manifest(manifest)
    with pytest.raises(UnfitError):
        decode_manifest(document[: data.draw(st.integers(0, len(document) - 1))], STORE, KEY)


@given(st.binary() | st.text().map(str.encode))
def test_garbage_is_damaged(data: bytes) -> None:
    with pytest.raises(UnfitError):
        decode_manifest(data, STORE, KEY)


def test_an_exchanged_body_is_damaged_though_it_is_a_manifest(manifest: Manifest) -> None:
    document = json.loads(encode_manifest(manifest))
    document["manifest"]["id"] = 8
    changed = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    with pytest.raises(UnfitError, match="SHA-256"):
        decode_manifest(changed, STORE, KEY)


Path = tuple[str | int, ...]


def leaves(document: object, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """Return what a document has that is neither an object nor a list, and where."""
    if isinstance(document, dict | list):
        items = document.items() if isinstance(document, dict) else enumerate(document)
        for key, value in items:
            yield from leaves(value, (*path, key))
    else:
        yield path, document


@pytest.fixture
def whole(manifest: Manifest) -> Manifest:
    """One of the newest schema, with all there is."""
    unread = UnreadFiles(1, 2, 3)
    channel = ChannelRecord("a", "s", "b", "t", 1, 2, unread, (TopicPartition("t", 0, 5, 4),))
    query = attrs.evolve(manifest.queries[0], outputs=(OutputRecord("s", (EpochRecord(7, 3),), 6),))
    operator = attrs.evolve(manifest.operators[0], deleting={"sum": 42})
    return attrs.evolve(manifest, queries=(query,), channels=(channel,), operators=(operator,))


def sealed(manifest: Manifest, path: Path, value: object) -> bytes:
    """A document that somebody has made, whose hash is right: one place has another value."""
    body = json.loads(encode_manifest(manifest))["manifest"]
    inner = body
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    return f'{{"manifest":{text},"schema":{manifest.schema},"sha256":"{sha256}"}}'.encode()


def places(manifest: Manifest, of: type) -> list[Path]:
    body = json.loads(encode_manifest(manifest))["manifest"]
    return [path for path, value in leaves(body) if type(value) is of]


def test_a_number_that_nothing_can_have_is_found_in_a_sealed_manifest(whole: Manifest) -> None:
    found = places(whole, int)
    assert len(found) > 15
    for path in found:
        with pytest.raises(UnfitError, match="a manifest of schema 5"):
            decode_manifest(sealed(whole, path, -2), STORE, KEY)


NO_NAMES = {
    # Files are checked when they are read (``validate_key``).
    *("key", "name of a file", "sha256"),
    # Schemas, versions of packages, a sink's own note.
    *("key_schema", "versions", "note"),
    # Places outside, and names that systems outside have given: they are shown, and nothing is looked up by them.
    *("target", "topic"),
}


def test_a_name_that_would_lead_elsewhere_is_found_in_a_sealed_manifest(whole: Manifest) -> None:
    taken = set()
    for path in places(whole, str):
        field = next(part for part in reversed(path) if isinstance(part, str))
        field = {"python": "versions", "chandy": "versions"}.get(field, field)
        field = "name of a file" if field == "name" and "files" in path else field
        for other in ("../../x", "a\x1b[2J", "a/b"):
            try:
                decode_manifest(sealed(whole, path, other), STORE, KEY)
            except UnfitError as error:
                assert "a manifest of schema 5" in str(error)
            else:
                taken.add(field)
    assert taken == NO_NAMES


def test_a_newer_schema_names_both_versions_and_says_to_upgrade(manifest: Manifest) -> None:
    document = json.loads(encode_manifest(manifest)) | {"schema": 6, "manifest": {"anything": "new"}}
    with pytest.raises(SchemaTooNewError, match=r"schema 6.*up to 5; upgrade chandy"):
        decode_manifest(json.dumps(document).encode(), STORE, KEY)


def test_the_collector_does_not_look_at_a_manifest_again_and_again(looks: list[int]) -> None:
    shards = tuple(Handle((FileRef(f"{n}.sst", "p.pack", 1, "ab", n),)) for n in range(2_000))
    manifest = make_manifest(id=7, shards=shards)
    looks.clear()
    data = encode_manifest(manifest)
    decode_manifest(data, STORE, KEY)
    assert len(looks) < 10


def test_the_collector_works_on_after_a_manifest_and_after_a_damaged_one(manifest: Manifest) -> None:
    decode_manifest(encode_manifest(manifest), STORE, KEY)
    assert gc.isenabled()
    with pytest.raises(UnfitError):
        decode_manifest(b"{}", STORE, KEY)
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off(manifest: Manifest) -> None:
    gc.disable()
    try:
        decode_manifest(encode_manifest(manifest), STORE, KEY)
        assert not gc.isenabled()
    finally:
        gc.enable()
