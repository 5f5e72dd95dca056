"""Which of Spark's executors a process belongs to is in the command line of an ancestor."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from chandy.state.host.spark_executor import ProcessFacts, executor_id, process

JVM = [
    "java",
    "-cp",
    "conf",
    "org.apache.spark.executor.CoarseGrainedExecutorBackend",
    "--executor-id",
    "17",
    "--cores",
]


def family(*generations: list[str]) -> dict[int, ProcessFacts]:
    """Processes, this one first, each the child of the next."""
    pids = [os.getpid(), *range(10_001, 10_000 + len(generations)), 1]
    return {
        pid: ProcessFacts(parent, [one.encode() for one in arguments])
        for pid, parent, arguments in zip(pids, pids[1:], generations, strict=False)
    }


@pytest.mark.parametrize(
    ("generations", "expected"),
    [
        ([["worker"], ["daemon"], JVM, ["worker's JVM"]], "17"),
        ([["worker"], ["daemon"], ["java", "org.apache.spark.deploy.SparkSubmit"]], None),
        # What is said of another process, or nothing at all.
        ([["worker"], ["sh", "-c", "x --executor-id 17"], ["init"]], None),
        ([["worker"], ["java", "--executor-id"]], None),
    ],
)
def test_the_nearest_ancestor_that_names_an_executor_tells(
    generations: list[list[str]], expected: str | None
) -> None:
    assert executor_id(family(*generations).__getitem__) == expected


def test_where_nothing_can_be_looked_up_nobody_knows() -> None:
    def look(pid: int) -> ProcessFacts:
        raise FileNotFoundError(pid)

    assert executor_id(look) is None


def test_a_real_process_has_its_parent_and_its_arguments() -> None:
    code = "import sys; print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, "a b", "(c)"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        # Linux closes the descriptors of who started it before it knows the new arguments.
        assert child.stdout is not None and child.stdout.readline() == b"\n"
        found = process(child.pid)
        assert found.parent == os.getpid()
        assert list(found.arguments[-3:-1]) == [b"a b", b"(c)"]
    finally:
        child.communicate()
