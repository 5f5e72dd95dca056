"""What values show of themselves in notebooks is HTML, whatever is in them."""

from __future__ import annotations

from xml.etree import ElementTree

import attrs

from chandy.coordinator.assigned_shard import AssignedShard, Assignment
from chandy.coordinator.checkpoint import Checkpoint
from chandy.coordinator.protocol.reasons import Reason
from chandy.coordinator.protocol.statistics import History
from chandy.coordinator.protocol.totals import PhaseSeconds
from chandy.storage.checkpoints.manifest import CheckpointKind
from chandy.storage.html import table

ODD = "<script>alert('&')</script>"


def rows_of(html: str) -> list[list[str]]:
    """The cells of all rows, by a parser that refuses what is not well formed."""
    found = ElementTree.fromstring(f"<div>{html}</div>")
    return [[cell.text or "" for cell in row] for row in found.iter("tr")]


def test_what_is_in_a_table_is_text() -> None:
    html = table(ODD, (ODD, "b"), [(ODD, None), (1, "é")])
    assert rows_of(html) == [[ODD, "b"], [ODD, ""], ["1", "é"]]
    assert ElementTree.fromstring(html).findtext("caption") == ODD


def test_of_many_rows_the_first_are_shown() -> None:
    html = table("", ("n",), [(n,) for n in range(10_000)])
    assert len(rows_of(html)) == 101
    assert "and 9,900 more" in html
    assert "more" not in table("", ("n",), [(n,) for n in range(100)])


def test_a_checkpoint_shows_where_it_is_and_what_it_has() -> None:
    checkpoint = Checkpoint(7, CheckpointKind.SAVEPOINT, f"file:///{ODD}", 0.0, 1.5, 1000, 10, 2, {"q": 3})
    shown = dict(rows_of(checkpoint._repr_html_())[1:])
    assert shown["stored at"] == f"file:///{ODD}"
    assert (shown["seconds"], shown["bytes"], shown["last batch of q"]) == ("1.5", "1,000", "3")


def test_statistics_show_all_that_they_list() -> None:
    history = History()
    history.started(1, CheckpointKind.PERIODIC, 10.0)
    history.completed(1, 12.0, size=200, new_bytes=14, phases=PhaseSeconds())
    history.started(2, CheckpointKind.MANUAL, 20.0)
    history.failed(2, 21.0, Reason.EXPIRED, phases=PhaseSeconds())
    history.started(3, CheckpointKind.MANUAL, 30.0)
    html = history.snapshot()._repr_html_()
    assert "3 triggered, 1 in progress, 1 completed, 1 failed, 0 restored" in html
    assert [[row[0], row[2], row[4], row[7]] for row in rows_of(html)[1:]] == [
        ["3", "in progress", "", ""],
        ["2", "failed", "1", "EXPIRED"],
        ["1", "completed", "2", ""],
    ]


def test_an_assignment_is_a_tuple_that_shows_its_shards() -> None:
    shard = AssignedShard("q", "totals", 0, ODD, "1", 4, 100, standby="far")
    shards = Assignment([shard, attrs.evolve(shard, shard=1, machine=None, size=None)])
    assert shards == (shards[0], shards[1])
    head, first, second = rows_of(shards._repr_html_())
    assert dict(zip(head, first, strict=True))["machine"] == ODD
    assert dict(zip(head, second, strict=True))["size"] == ""
    assert dict(zip(head, first, strict=True))["standby"] == "far"
