"""Checks of Java, PySpark and the session."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chandy.coordinator.errors import SetupError
from chandy.coordinator.spark.environment import check_environment, check_pyspark, check_session, java_major


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_402"', 8),
        ("zsh: command not found: java", None),
        ("", None),
    ],
)
def test_the_version_is_read_from_what_java_prints(text: str, major: int | None) -> None:
    assert java_major(text) == major


def java(folder: Path, answer: str) -> dict[str, str]:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{answer}' >&2\n")
    program.chmod(0o755)
    return {"JAVA_HOME": str(folder), "PATH": os.defpath}


def test_java_17_and_later_will_do(tmp_path: Path) -> None:
    check_environment(java(tmp_path / "17", 'openjdk version "17.0.1" 2021-10-19'))
    check_environment(java(tmp_path / "25", 'openjdk version "25" 2025-09-16'))


def test_an_older_java_is_named_with_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(SetupError) as caught:
        check_environment(java(tmp_path, 'openjdk version "11.0.2" 2019-01-15'))
    assert caught.value.found == 'openjdk version "11.0.2" 2019-01-15'
    assert "install a JDK" in str(caught.value)


def test_no_java_is_named_with_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(SetupError) as caught:
        check_environment({"JAVA_HOME": str(tmp_path / "nowhere")})
    assert str(tmp_path / "nowhere" / "bin" / "java") in caught.value.what
    assert "install a JDK" in str(caught.value)


def test_a_program_that_is_no_java_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="hello"):
        check_environment(java(tmp_path, "hello"))


@pytest.mark.parametrize("version", ["4.1.0", "4.2.1", "4.3.0", "4.3.7", "4.3.1.dev0"])
def test_spark_4_1_to_4_3_will_do(version: str) -> None:
    check_pyspark(version)


@pytest.mark.parametrize(
    "version", ["4.0.2", "4.4.0", "3.5.1", "5.2.0", "4.10.0", "4.30.0", "nonsense", None]
)
def test_another_spark_is_refused_with_what_to_install(version: str | None) -> None:
    with pytest.raises(SetupError, match="pip install") as caught:
        check_pyspark(version)
    assert caught.value.found == (version or "no PySpark")


def test_a_spark_connect_session_is_refused() -> None:
    # A real one needs grpc, which Chandy does not; its module is what tells it.
    remote = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(SetupError, match=r"\.master\("):
        check_session(remote)
