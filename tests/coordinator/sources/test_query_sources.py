"""Which source gets which offset of a query's log."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from chandy.coordinator.sources.query_sources import QuerySources
from chandy.coordinator.sources.source import Source, Standing


@attrs.define
class Told(Source):
    checked: list[Standing] = attrs.field(factory=list)
    done: list[str] = attrs.field(factory=list)

    def check(self, standing: Standing) -> None:
        self.checked.append(standing)

    def completed(self, offset: str) -> None:
        self.done.append(offset)

    def close(self) -> None:
        pass


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A query that has committed batch 3 and planned batch 4, and whose older entries Spark has deleted."""
    for log, batches in (("offsets", (2, 3, 4)), ("commits", (2, 3))):
        (tmp_path / log).mkdir()
        for batch in batches:
            (tmp_path / log / str(batch)).write_text(f"v1\n{{}}\nfirst {batch}\nsecond {batch}")
    return tmp_path


def test_a_source_is_checked_where_the_newest_committed_batch_ends(work: Path) -> None:
    source, replaced = Told(), Path("/replaced")
    QuerySources({"1": source}).check(work, [replaced])
    assert source.checked == [Standing("second 3", (work / "sources" / "1", replaced / "sources" / "1"))]


def test_a_query_without_a_committed_batch_goes_on_with_what_it_has_planned(work: Path) -> None:
    source = Told()
    for commit in (work / "commits").iterdir():
        commit.unlink()
    QuerySources({"0": source}).check(work)
    assert source.checked == [Standing(None, (work / "sources" / "0",))]


def test_a_source_is_not_checked_where_nobody_knows_how_far_it_was_read(work: Path) -> None:
    source = Told()
    (work / "offsets" / "3").unlink()
    QuerySources({"0": source}).check(work)
    assert source.checked == []


def test_a_completed_checkpoint_stands_where_its_own_batch_ends(work: Path) -> None:
    first, second = Told(), Told()
    sources = QuerySources({"0": first, "1": second})
    sources.completed(work, 2)
    assert (first.done, second.done) == (["first 2"], ["second 2"])
    sources.completed(work, 1)
    sources.completed(work, -1)
    assert (first.done, second.done) == (["first 2"], ["second 2"])


def test_a_source_that_was_given_a_name_is_found_by_it(work: Path) -> None:
    (work / "offsets" / "3").write_text("v2\n{}\nclicks:5\n1:6")
    source = Told()
    QuerySources({"0": source, "clicks": source}).check(work)
    assert source.checked[1].offset == "5"
