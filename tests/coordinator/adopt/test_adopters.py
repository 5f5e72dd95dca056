"""Which query has adopted one of plain Spark."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chandy.coordinator.adopt import adopters
from chandy.coordinator.adopt.adopters import AdoptedBy
from chandy.storage.backends.open import open_store, pipeline_uri
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.locate import pipelines
from chandy.storage.errors import DamagedError, InvalidNameError

ID = "5f3a7c52-90f5-4b29-a7f6-111111111111"


@pytest.fixture
def storage(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


def test_the_first_one_has_it_also_when_it_comes_again(storage: str) -> None:
    assert adopters.find(storage, ID) is None
    first, second = AdoptedBy("p", "q"), AdoptedBy("p", "other")
    assert adopters.record(storage, ID, first) == first
    assert adopters.record(storage, ID, second) == first
    assert adopters.record(storage, ID, first) == adopters.find(storage, ID) == first
    assert adopters.record(storage, f"{ID}2", second) == second


def test_of_many_at_once_one_has_it(storage: str) -> None:
    many = [AdoptedBy(f"p{number}", "q") for number in range(8)]
    start = threading.Barrier(len(many))

    def race(one: AdoptedBy) -> AdoptedBy:
        start.wait()
        return adopters.record(storage, ID, one)

    with ThreadPoolExecutor(len(many)) as pool:
        found = set(pool.map(race, many))
    assert found == {adopters.find(storage, ID)}


def test_who_follows_the_advice_may_adopt_it(storage: str, tmp_path: Path) -> None:
    adopters.record(storage, ID, AdoptedBy("p", "q"))
    (place,) = (word for word in adopters.way_out(storage, ID).split() if word.startswith("file://"))
    Path(place.removeprefix("file://").rstrip(";")).unlink()
    assert adopters.record(storage, ID, AdoptedBy("p2", "q")) == AdoptedBy("p2", "q")


def test_the_record_is_no_pipeline(storage: str) -> None:
    adopters.record(storage, ID, AdoptedBy("p", "q"))
    Catalog(open_store(pipeline_uri(storage, "p"))).take_over("a driver", 0.0)
    assert set(pipelines(storage)) == {"p"}


def test_a_damaged_record_and_an_id_that_leads_elsewhere_are_told(storage: str) -> None:
    open_store(storage).write(f"{adopters.FOLDER}/{ID}.json", b"{")
    with pytest.raises(DamagedError, match="the record of an adopted query"):
        adopters.record(storage, ID, AdoptedBy("p", "q"))
    with pytest.raises(InvalidNameError):
        adopters.record(storage, "../p/generations/1", AdoptedBy("p", "q"))
