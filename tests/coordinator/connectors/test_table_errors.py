"""What the sinks of tables make of their clients' errors: refused, known to pass, or not understood."""

from __future__ import annotations

import pytest

from chandy.coordinator.connectors.tables import delta, iceberg
from chandy.coordinator.connectors.tables.conflicts import Conflicts
from chandy.coordinator.sinks.two_phase.errors import TargetUnavailableError

PASSING = [
    "Generic S3 error: error sending request for url (http://127.0.0.1:1/b): Connection refused (os error 111)",
    "Generic S3 error: Server returned non-2xx status code: 503 Service Unavailable: SlowDown",
    "operation timed out",
    "No space left on device (os error 28)",
]
ODD = [
    "Kernel error: reader feature deletionVectors2",
    "internal error: entered unreachable code 5030",
]


@pytest.mark.parametrize("explain", [delta._explain, iceberg._explain], ids=["delta", "iceberg"])
@pytest.mark.parametrize(
    ("text", "passes"), [*((one, True) for one in PASSING), *((one, False) for one in ODD)]
)
def test_an_error_is_tried_for_ever_only_if_it_is_known_to_pass(
    explain: object, text: str, passes: bool
) -> None:
    found = explain("the table t", RuntimeError(text), {})  # type: ignore[operator]
    assert isinstance(found, TargetUnavailableError)
    assert found.is_understood is passes


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ([3, 3, 3, 3, 3], "no other writer was faster"),
        ([3, 4, 4, 4, 4], "other writers were faster, 1 times at least"),
        ([3, 4, 5, 6, 7], "other writers were faster, 4 times at least"),
    ],
)
def test_a_conflict_passes_if_others_have_moved_the_table(versions: list[int], said: str) -> None:
    conflicts = Conflicts("the table t")
    for version in versions[:-1]:
        conflicts.met(version, "odd")
    with pytest.raises(TargetUnavailableError, match=f"{said}: odd") as caught:
        conflicts.met(versions[-1], "odd")
    assert caught.value.is_understood is (len(set(versions)) > 1)


@pytest.mark.parametrize("explain", [delta._explain, iceberg._explain], ids=["delta", "iceberg"])
@pytest.mark.parametrize(
    "place",
    [
        "append-only/sales",
        "constraints/sales",
        "customers/403/sales",
        "readonly/sales",
        "forbidden/x",
        "quota/507",
    ],
)
def test_no_error_is_judged_by_the_name_of_a_place_or_by_how_long_an_answer_took(
    explain: object, place: str
) -> None:
    for text in (
        f"error sending request for url (http://h:9/bucket/{place}/_delta_log/0.json): Connection refused",
        f"cannot connect to s3://bucket/{place}, after 403.216434ms",
        f"timed out while reading /data/{place}/part-0.parquet in 507 s",
    ):
        found = explain("the table t", RuntimeError(text), {})  # type: ignore[operator]
        assert type(found) is TargetUnavailableError, text
        assert found.is_understood, text


@pytest.mark.parametrize("explain", [delta._explain, iceberg._explain], ids=["delta", "iceberg"])
def test_users_in_urls_are_not_repeated(explain: object) -> None:
    found = explain("the table t", RuntimeError("GET http://u:hunter2@h:9/b: connection refused"), {})  # type: ignore[operator]
    assert "hunter2" not in str(found)
    assert "http://...@h:9/b" in str(found)


@pytest.mark.parametrize("error", [ConnectionResetError("peer"), TimeoutError()])
def test_errors_of_the_network_are_known_to_pass(error: Exception) -> None:
    found = iceberg._explain("the table t", error, {})
    assert isinstance(found, TargetUnavailableError)
    assert found.is_understood


@pytest.mark.parametrize("explain", [delta._explain, iceberg._explain], ids=["delta", "iceberg"])
def test_values_of_options_are_not_repeated(explain: object) -> None:
    options = {"allow_http": "hunter2", "region": "eu"}
    for text in ('failed to parse "hunter2" as boolean', "no such word: 'hunter2'"):
        found = explain("the table t in eu", RuntimeError(text), options)  # type: ignore[operator]
        assert "hunter2" not in str(found)
        assert "the table t in eu" in str(found)
