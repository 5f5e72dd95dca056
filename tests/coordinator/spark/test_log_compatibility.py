"""Logs of a newer Spark, and of other sources, are refused before a query starts."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest

from chandy.coordinator.errors import RestoreError
from chandy.coordinator.spark.logs import compatibility
from chandy.coordinator.spark.logs.compatibility import check_logs, check_sources

from ...state.batch_logs import commit, plan, write

OF_4_1 = {"offsets": 1, "commits": 2}


@pytest.fixture(autouse=True)
def on_pyspark_4_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compatibility, "LOG_VERSIONS", OF_4_1)
    monkeypatch.setattr(pyspark, "__version__", "4.1.4")


def test_logs_in_formats_that_spark_reads_are_taken(tmp_path: Path) -> None:
    plan(tmp_path, 4, watermark=0, timestamp=0)
    commit(tmp_path, 4, watermark=0, version="v2")
    check_logs(tmp_path, "4.3.0")
    check_logs(tmp_path / "nothing", "4.3.0")


def test_a_newer_format_is_refused_with_both_versions(tmp_path: Path) -> None:
    plan(tmp_path, 3, watermark=0, timestamp=0)
    plan(tmp_path, 4, watermark=0, timestamp=0, version="v2")
    with pytest.raises(RestoreError) as caught:
        check_logs(tmp_path, "4.3.0")
    assert "PySpark 4.1.4" in caught.value.what
    assert "PySpark 4.3.0" in caught.value.what
    assert caught.value.found == "version 2 in offsets/4"


def test_what_is_no_version_is_left_to_spark(tmp_path: Path) -> None:
    write(tmp_path / "offsets" / "4", "\xff" * 1000)
    check_logs(tmp_path, "4.3.0")


def test_a_query_has_as_many_sources_as_its_log_unless_they_have_names(tmp_path: Path) -> None:
    check_sources("q", tmp_path, ["json"])
    plan(tmp_path, 3, watermark=0, timestamp=0)
    check_sources("q", tmp_path, ["json", "kafka"])
    for sources in (["json"], ["json", "kafka", "json"]):
        with pytest.raises(RestoreError, match=r"'q' .*expected 2 sources, .*found \d: json"):
            check_sources("q", tmp_path, sources)
    # The newest entry counts: Spark goes on from there.
    plan(tmp_path, 4, watermark=0, timestamp=0, version="v2")
    check_sources("q", tmp_path, ["json"])
