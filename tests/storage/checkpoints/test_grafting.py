"""What of a graft is the leader's and what is the shadow's, and that its bytes outlive the shadow."""

from __future__ import annotations

import json

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.storage.checkpoints import collect
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.grafting import GraftError, graft
from chandy.storage.checkpoints.layout import is_shared, shadow_folder, shared_key, verdict_key
from chandy.storage.checkpoints.manifest import (
    EpochRecord,
    FileRef,
    Handle,
    Manifest,
    OperatorRecord,
    OutputRecord,
    QueryRecord,
    StateRecord,
)

from ...builders import AskingProof, MemoryStore, pack

FOLDER = shadow_folder("life")
NAMES = st.sampled_from(["delays", "totals", "letters"])


def ref(name: str, digit: str, key: str = "") -> FileRef:
    return FileRef(name, key or shared_key(digit * 64), 5, digit * 64)


@st.composite
def sides(draw: st.DrawFn) -> tuple[Manifest, Manifest]:
    """A leader's checkpoint and a shadow's, at one cut: all else may differ."""
    cut = draw(st.dictionaries(NAMES, st.integers(0, 5), min_size=1))

    def side(digits: str) -> Manifest:
        queries, operators = [], []
        digit = st.sampled_from(digits)
        for name, batch in cut.items():
            files = [
                ref(f"working/offsets/{batch}", "0", pack(1)),
                ref(f"working/commits/{batch}", draw(digit)),
            ]
            files += [ref("sink/7", draw(digit)), ref("batches/records.json", draw(digit), pack(1))]
            if draw(st.booleans()):
                files += [ref(f"working/state/0/{n}/1.delta", draw(digit)) for n in range(2)]
            epochs = (EpochRecord(draw(st.integers(1, 9)), 3, Handle((ref("a", draw(digit)),))),)
            outputs = draw(st.sampled_from([(), (OutputRecord("files", epochs, None),)]))
            queries.append(QueryRecord(name, batch, Handle(tuple(files)), outputs))
            shards = draw(st.lists(st.none() | digit.map(lambda d: Handle((ref("1.sst", d),))), max_size=3))
            states = {draw(digit): StateRecord(("{}",))}
            operators.append(OperatorRecord(f"op-{name}", name, "{}", states, tuple(shards)))
        # What has not run.
        queries += [QueryRecord(name, -1, Handle()) for name in sorted(draw(st.sets(NAMES)) - cut.keys())]
        versions = {"chandy": draw(digit)}
        id = draw(st.integers(1, 9))
        return Manifest(id, "periodic", "flights", 1, 1.0, 2.0, tuple(queries), tuple(operators), 7, versions)  # type: ignore[arg-type]

    return side("1234"), side("abcd")


@given(sides())
def test_progress_and_output_are_the_leaders_and_state_is_the_shadows(
    both: tuple[Manifest, Manifest],
) -> None:
    leader, shadow = both
    made = graft(leader, shadow, FOLDER, 12, 3)
    assert (made.id, made.generation, made.new_bytes) == (12, 3, 0)
    assert [one.name for one in made.queries] == [one.name for one in leader.queries]
    theirs = {one.name: one for one in shadow.queries}
    for query, was in zip(made.queries, leader.queries, strict=True):
        assert attrs.evolve(query, files=was.files) == was
        own = {
            file
            for file in query.files.files
            if not file.name.startswith(("working/state/", "working/commits/"))
        }
        assert own == {
            file
            for file in was.files.files
            if not file.name.startswith(("working/state/", "working/commits/"))
        }
        state = {file.name: file for file in query.files.files if file.name.startswith("working/state/")}
        expected = {
            file.name: attrs.evolve(file, key=FOLDER + file.key)
            for file in theirs.get(query.name, query).files.files
            if file.name.startswith("working/state/")
        }
        assert state == expected
        assert sum(file.name.startswith("working/commits/") for file in query.files.files) == (
            query.batch >= 0
        )
    assert [one.uid for one in made.operators] == [one.uid for one in shadow.operators]
    for operator, was_operator in zip(made.operators, shadow.operators, strict=True):
        assert operator.states == was_operator.states
        assert [
            handle and [(file.key, file.sha256) for file in handle.files] for handle in operator.shards
        ] == [
            handle and [(FOLDER + file.key, file.sha256) for file in handle.files]
            for handle in was_operator.shards
        ]
    # Nobody takes a pack for a file of its own, or the other way round.
    inside = [key for key in made.keys() if key.startswith(FOLDER)]  # noqa: SIM118
    assert all(is_shared(key) == is_shared(key.removeprefix(FOLDER)) for key in inside)


@pytest.mark.parametrize("change", ["batch", "planned", "missing", "more"])
@given(both=sides(), number=st.integers(0, 2))
def test_another_cut_is_refused(change: str, both: tuple[Manifest, Manifest], number: int) -> None:
    leader, shadow = both
    ran = [query for query in shadow.queries if query.batch >= 0]
    one = ran[number % len(ran)]
    others = tuple(query for query in shadow.queries if query is not one)
    match change:
        case "batch":
            queries = (*others, attrs.evolve(one, batch=one.batch + 1))
        case "planned":
            files = [
                attrs.evolve(file, sha256="f" * 64) if file.name.startswith("working/offsets/") else file
                for file in one.files.files
            ]
            queries = (*others, attrs.evolve(one, files=Handle(tuple(files))))
        case "missing":
            queries = others
        case _:
            queries = (*others, one, QueryRecord("another", 0, Handle()))
    with pytest.raises(GraftError):
        graft(leader, attrs.evolve(shadow, queries=queries), FOLDER, 12, 3)


def test_state_of_a_shadow_goes_with_the_last_checkpoint_that_names_it() -> None:
    store = MemoryStore()
    catalog = Catalog(store)
    generation = catalog.take_over("new", 0.0).generation

    def holding(id: int, *digits: str) -> Manifest:
        shards = (Handle(tuple(ref(f"{d}.sst", d, FOLDER + shared_key(d * 64)) for d in digits)),)
        operator = OperatorRecord("op", "delays", "{}", {"sum": StateRecord(("{}",))}, shards)
        return Manifest(
            id,
            "periodic",
            "flights",
            generation,
            1.0,
            2.0,
            (QueryRecord("delays", 1, Handle()),),
            (operator,),
            0,
        )  # type: ignore[arg-type]

    first, second = holding(1, "a", "b"), holding(2, "b")
    for key in first.keys() | second.keys():
        store.write(key, b"state")
    catalog.commit(first)
    catalog.commit(second)
    collect.ended(collect.discard(store, [first], lambda: [second], AskingProof(store, generation)))
    assert store.list(FOLDER) == [FOLDER + shared_key("b" * 64)]
    # Whoever looks for garbage leaves it, too: it is named. All else goes that a killed shadow has left.
    left = [FOLDER + key for key in ("generations/1.json", "rows/0.parquet", shared_key("c" * 64))]
    theirs = "shadows/shadow/differences/7.parquet"
    for key in (*left, theirs):
        store.write(key, b"left")
    written = max(store.written.values())
    assert not collect.collect_garbage(catalog, now=written + 1, older_than=60).keys
    # While nothing happens, a shadow that lives writes nothing there, but tells that nothing happens.
    verdict = verdict_key("next")
    store.write(verdict, json.dumps({"lives": ["life"]}).encode())
    store.written[verdict] = written + 90
    assert not collect.collect_garbage(catalog, now=written + 100, older_than=60).keys
    store.written[verdict] = written
    assert set(collect.collect_garbage(catalog, now=written + 100, older_than=60).keys) == set(left)
    assert store.list("shadows/") == [FOLDER + shared_key("b" * 64), theirs]
