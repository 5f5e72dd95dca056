"""What a shadow has found, and what it keeps of a difference."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from chandy.coordinator.cli import main
from chandy.coordinator.errors import ShadowReplacedError
from chandy.coordinator.upgrade.ignoring import Ignored
from chandy.coordinator.upgrade.kept import Kept, kept_rows
from chandy.coordinator.upgrade.outputs import LEADER_AND_SHADOW, Watermarks, differing_outputs
from chandy.coordinator.upgrade.switching import Ask, decide
from chandy.coordinator.verdict import KEPT_FINDINGS, Finding, Kind, ShadowVerdict
from chandy.coordinator.verdicts import ShadowStore, read_verdicts
from chandy.storage.backends.open import open_store
from chandy.storage.checkpoints.batch_record import Digest
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.collect import GRACE_SECONDS, collect_garbage
from chandy.storage.checkpoints.locate import pipelines
from chandy.storage.ids import BatchId, CheckpointId

from ...builders import MemoryStore, pack, shared

NOTHING = Ignored()
NEW = ShadowVerdict(shadow="next", pipeline="orders")


def digest(rows: int, total: int, **columns: int) -> Digest:
    return attrs.evolve(
        Digest.of(rows, total), columns={name: f"{sum:016x}" for name, sum in columns.items()}
    )


def finding(batch: int = 1) -> Finding:
    return Finding(
        kind=Kind.OUTPUT,
        query="totals",
        batch=BatchId(batch),
        checkpoint=CheckpointId(2),
        what="sink 'out'",
        says="other rows",
    )


def test_a_watermark_differs_unless_spark_may_have_forgotten_a_part_of_it() -> None:
    assert Watermarks(7000, 7000).differing(LEADER_AND_SHADOW) == ""
    says = "1970-01-01 00:00:07.000 of the leader, 1970-01-01 00:00:09.000 of the shadow"
    assert Watermarks(7000, 9000).differing(LEADER_AND_SHADOW) == says
    assert Watermarks(7000, 9000, is_only=False).differing(LEADER_AND_SHADOW) == says
    assert Watermarks(7000, 0).differing(LEADER_AND_SHADOW).endswith("none of the shadow")
    assert Watermarks(7000, 0, is_only=False).differing(LEADER_AND_SHADOW) == ""


# --- output -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("leader", "shadow", "says"),
    [
        (digest(2, 7), digest(2, 7), None),
        (digest(2, 7), digest(2, 8), "other rows"),
        (digest(2, 7), digest(3, 7), "2 rows of the leader, 3 of the shadow"),
        (digest(2, 7, a=1, b=2), digest(2, 8, a=1, b=3), "columns with other values: b"),
        (digest(2, 7, a=1, b=2), digest(2, 8, a=1, b=2), "the same values in other rows"),
        (
            digest(2, 7, a=1, b=2),
            digest(2, 8, a=1, c=2),
            "columns that only the leader has: b; columns that only the shadow has: c",
        ),
    ],
)
def test_output_is_compared_by_its_digest_and_the_difference_is_named(
    leader: Digest, shadow: Digest, says: str | None
) -> None:
    assert differing_outputs({"out": leader}, {"out": shadow}, NOTHING) == ({"out": says} if says else {})


def test_a_sink_that_only_one_of_them_has_is_a_difference() -> None:
    found = differing_outputs({"out": Digest(), "old": Digest()}, {"out": Digest(), "new": Digest()}, NOTHING)
    assert found == {"old": "only the leader writes to it", "new": "only the shadow writes to it"}


def test_ignored_columns_may_differ_and_no_others() -> None:
    ignored = Ignored.of(["out.at"])

    def found(leader: Digest, shadow: Digest) -> str | None:
        return differing_outputs({"out": leader}, {"out": shadow}, ignored).get("out")

    assert found(digest(2, 7, a=1, at=2), digest(2, 8, a=1, at=3)) is None
    assert found(digest(2, 7, a=1, at=2), digest(2, 8, a=4, at=3)) == "columns with other values: a"
    assert found(digest(2, 7, a=1), digest(2, 8, a=1, at=3)) is None
    # Without digests of columns, the number of rows is left.
    assert found(digest(2, 7), digest(2, 8)) is None
    assert found(digest(2, 7), digest(3, 8)) == "2 rows of the leader, 3 of the shadow"


# --- rows ---------------------------------------------------------------------------------------------------


def rows_of(kept: Kept) -> list[dict[str, object]]:
    return pq.read_table(io.BytesIO(kept.parquet)).to_pylist()


def test_rows_that_only_one_side_has_are_kept_beside_each_other() -> None:
    leader = [
        pa.table({"carrier": ["AA", "UA", "UA"], "total": [5, 3, 3]}),
        pa.table({"carrier": ["DL"], "total": [1]}),
    ]
    shadow = [pa.table({"carrier": ["UA", "DL", "AA"], "total": [3, 1, 6]})]
    kept = kept_rows(leader, shadow, frozenset(), limit=10)
    assert rows_of(kept) == [
        {"side": "leader", "carrier": "AA", "total": 5},
        {"side": "shadow", "carrier": "AA", "total": 6},
        {"side": "leader", "carrier": "UA", "total": 3},
    ]
    assert kept.example == 'carrier="AA": leader has total=5, shadow has total=6'
    assert kept.says == "2 rows that only the leader has, 1 row that only the shadow has"
    assert len(rows_of(kept_rows(leader, shadow, frozenset(), limit=1))) == 2
    assert rows_of(kept_rows(leader, [pa.concat_tables(leader)], frozenset(), limit=10)) == []


def test_a_renamed_column_is_beside_its_old_name_also_if_types_differ() -> None:
    leader = [pa.table({"carrier": ["AA"], "total": [5]})]
    kept = kept_rows(leader, [pa.table({"carrier": ["AA"], "sum": [5]})], frozenset(), limit=10)
    assert kept.example == 'carrier="AA": leader has total=5, shadow has sum=5'
    assert {"side": "shadow", "carrier": "AA", "total": None, "sum": 5} in rows_of(kept)
    kept = kept_rows(leader, [pa.table({"carrier": ["AA"], "total": ["five"]})], frozenset(), limit=10)
    assert [row["total"] for row in rows_of(kept)] == ['"five"', "5"]


def test_without_the_rows_of_the_leader_those_of_the_shadow_are_kept() -> None:
    kept = kept_rows(None, [pa.table({"carrier": ["AA", "UA"]})], frozenset(), limit=1)
    assert (rows_of(kept), kept.says) == ([{"side": "shadow", "carrier": "AA"}], "")


# --- all of it ----------------------------------------------------------------------------------------------


def test_a_verdict_counts_what_is_equal_in_a_row_and_keeps_what_differed_first() -> None:
    verdict = NEW
    for number in range(3):
        verdict = verdict.ran([], 0.5, recorded=number > 0)
    assert (verdict.batches, verdict.equal, verdict.unrecorded, verdict.is_equal) == (3, 3, 1, True)
    verdict = verdict.ran([finding(3), finding(3)], 0.5, recorded=True).ran([], 0.5, recorded=True)
    assert (verdict.batches, verdict.equal, verdict.differing, verdict.is_equal) == (5, 1, 1, False)
    for number in range(KEPT_FINDINGS):
        verdict = verdict.compared([finding(number)])
    assert (verdict.differing, len(verdict.findings)) == (1 + KEPT_FINDINGS, KEPT_FINDINGS)
    assert verdict.first == finding(3) and not verdict.state_is_equal
    assert verdict.compared([]).state_is_equal and not verdict.compared([]).is_equal


def test_a_verdict_outlives_its_shadow_and_one_that_is_damaged_is_no_obstacle() -> None:
    store = MemoryStore()
    keeps = ShadowStore(store, "next")
    verdict = NEW.ran([finding()], 0.5, recorded=True)
    keeps.write(verdict)
    assert keeps.read() == verdict
    store.write("verdicts/broken.json", b"{")
    store.write("shadows/0123/checkpoints/1/manifest.json", b"of a life of its own")
    assert read_verdicts(store) == [verdict]
    assert ShadowStore(store, "broken").read() is None
    assert ShadowStore(store, "never").read() is None


def test_of_two_shadows_with_one_name_the_later_one_goes_on() -> None:
    store = MemoryStore()
    earlier, later = ShadowStore(store, "next", "0001"), ShadowStore(store, "next", "0002", ("0001",))
    first = attrs.evolve(NEW, lives=("0001",))
    earlier.write(first)
    # The later one may delete the folder of the earlier one before anything else, or cannot.
    for lives in (("0002",), ("0001", "0002"), ("0002",)):
        found = attrs.evolve(NEW, lives=lives)
        later.write(found)
        with pytest.raises(ShadowReplacedError, match="shadows/0002"):
            earlier.write(first.ran([finding()], 0.5, recorded=True))
        assert later.read() == found
    # It leads now, or has ended.
    later.write(attrs.evolve(NEW, lives=()))


def test_what_cannot_be_compared_is_not_equal() -> None:
    ran = NEW.ran([], 0.5, recorded=False)
    assert (ran.says, ran.has_compared) == ("nothing compared yet", False)
    assert decide(ran, None, equal_batches=1) is None
    for verdict in (ran.ran([], 0.5, recorded=True), ran.compared([])):
        assert (verdict.says, verdict.has_compared) == ("equal so far", True)
        assert decide(verdict, None, equal_batches=1) == Ask()


def test_a_pipeline_neither_lists_nor_deletes_what_its_shadows_write(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "orders"))
    catalog = Catalog(store)
    catalog.claim("a driver", 0.0)
    ShadowStore(store, "next").write(NEW)
    ShadowStore(store, "next").keep("totals-1-out", b"rows")
    own = open_store(str(tmp_path / "orders" / "shadows" / "0123456789ab"))
    Catalog(own).claim("its shadow", 0.0)
    for key in (shared("a"), pack(1), "checkpoints/1/manifest.json"):
        own.write(key, b"of a life of its own")
    before = store.list()
    assert list(pipelines(str(tmp_path))) == ["orders"]
    assert (catalog.list_ids(), catalog.newest_generation()) == ([], 1)
    assert collect_garbage(catalog, now=time.time(), older_than=GRACE_SECONDS).keys == ()
    assert store.list() == before


def test_the_command_says_whether_shadows_are_equal_and_ends_so(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "orders"))
    Catalog(store).claim("a driver", 0.0)

    def run(*options: str) -> Result:
        return CliRunner().invoke(main, ["shadow", str(tmp_path), *options])

    assert "no shadow of" in run().output and run().exit_code == 1
    verdict = attrs.evolve(NEW.ran([], 2.0, recorded=True), leader_seconds_per_batch=1.0, ignored=("out.at",))
    ShadowStore(store, "next").write(verdict)
    told = run()
    assert told.exit_code == 0
    assert "equal so far" in told.output
    assert "runs 0.5 batches a second, and its leader 1: it needs a faster machine" in told.output
    differs = attrs.evolve(
        finding(53), example="k=1: leader has n=1, shadow has n=2", kept="shadows/last/x.parquet"
    )
    ShadowStore(store, "last").write(attrs.evolve(NEW, shadow="last").ran([differs], 0.5, recorded=True))
    told = run()
    assert told.exit_code == 1
    for text in ("since batch 53 of query 'totals': sink 'out': other rows", differs.example, "x.parquet"):
        assert text in told.output
    assert run("--name", "next").exit_code == 0
    found = {one["shadow"]: one["is_equal"] for one in json.loads(run("--json").output)["shadows"]}
    assert found == {"last": False, "next": True}
    assert "expected one that has run, found last, next" in run("--name", "other").output
