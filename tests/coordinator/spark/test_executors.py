"""Executors that cannot run operators are named, with what they lack."""

from __future__ import annotations

import pytest

from chandy.coordinator.errors import SetupError
from chandy.coordinator.spark.executors import PACKAGES, FoundExecutor, judge, versions_here

DRIVER = {"chandy": "1.0", "rocksdict": "0.3", "pyarrow": "18.0"}


def found(machine: str = "m", **versions: str | None) -> FoundExecutor:
    return FoundExecutor(machine, "/usr/bin/python3", tuple((DRIVER | versions).items()))


def test_executors_like_the_driver_are_fit() -> None:
    judge([found("a"), found("b")], DRIVER)


def test_another_version_of_arrow_and_a_package_without_a_version_are_fit() -> None:
    judge([found(pyarrow="20.0"), found(chandy="")], DRIVER)


@pytest.mark.parametrize("name", PACKAGES)
def test_an_executor_without_a_package_is_named_with_what_to_install(name: str) -> None:
    with pytest.raises(SetupError, match=f"executor on b cannot .*install {name}=={DRIVER[name]} there"):
        judge([found("a"), found("b", **{name: None})], DRIVER)


@pytest.mark.parametrize("name", ["chandy", "rocksdict"])
def test_another_version_is_named_beside_the_drivers(name: str) -> None:
    with pytest.raises(SetupError, match=f"expected {name} {DRIVER[name]}, .*found {name} 9.9 in /usr"):
        judge([found(**{name: "9.9"})], DRIVER)


def test_this_process_has_all_packages() -> None:
    assert all(versions_here()[name] for name in PACKAGES)
