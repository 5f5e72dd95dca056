"""What README.md and the docs tell users to paste works when it is pasted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from chandy.coordinator import CheckpointCoordinator
from chandy.coordinator.cli import main
from chandy.storage.backends.open import open_store

from ..effort import sampled
from ..pages import PAGES, README, ROOT, Block, blocks, commands

# Fixtures.
from ..storage.conftest import moto, s3_keys, s3_uri  # noqa: F401
from ..storage.servers import BUCKET, Server
from ..waiting import DEADLINE, eventually

pytestmark = pytest.mark.spark

ELSEWHERE = {README, ROOT / "docs" / "kafka.md"}
"""Pages whose code needs a process of its own: the quick start is below, that of Kafka is in kafka_targets.py."""
RUN = [
    page
    for page in PAGES
    if page not in ELSEWHERE and any(block.language == "python" for block in blocks(page))
]


@pytest.mark.examples
def test_the_quick_start_runs_twice_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    (code,) = (block.code for block in blocks(README) if block.language == "python")
    storage = str(tmp_path / "storage")
    assert "/tmp/chandy-quickstart" in code
    # A batch comes each second: who reads the page wants to see some, and a test needs one.
    assert "awaitTermination(8)" in code
    code = code.replace("awaitTermination(8)", "awaitTermination(3)")
    (tmp_path / "quickstart.py").write_text(code.replace("/tmp/chandy-quickstart", storage))
    outputs = [run(tmp_path, sys.executable, "quickstart.py") for _ in range(2)]
    assert "restored: None" in outputs[0]
    for output in outputs:
        assert "checkpoint: Checkpoint(id=" in output
        assert "savepoint: Checkpoint(id=" in output
    assert "restored: Checkpoint(id=" in outputs[1]
    found = [
        command.words for block in blocks(README) for command in commands(block) if block.language == "sh"
    ]
    # The demo is tried from an installed package, by tests/test_package.py.
    told = [words for words in found if words[0] == "chandy" and words[1] != "demo"]
    assert [words[1] for words in told] == ["list", "show", "verify"]
    for _, command, place in told:
        assert place == "/tmp/chandy-quickstart"
        assert run(tmp_path, str(Path(sys.executable).with_name("chandy")), command, storage)


@pytest.mark.examples
def test_a_quick_start_that_fails_says_so_in_some_lines(tmp_path: Path) -> None:
    (code,) = (block.code for block in blocks(README) if block.language == "python")
    code = code.replace("/tmp/chandy-quickstart", str(tmp_path / "storage"))
    code = code.replace("awaitTermination(8)", "awaitTermination()")
    raising = "        for row in rows:\n"
    assert raising in code
    code = code.replace(raising, f"{raising}            int('no number')\n")
    (tmp_path / "quickstart.py").write_text(code)
    said = subprocess.run(
        [sys.executable, "-u", "quickstart.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=DEADLINE,
        check=False,
    ).stdout.decode()
    # Before it, Spark says how it has started; and a bar that is drawn again and again is one line.
    lines = [line.rpartition("\r")[2] for line in said.partition("restored: None\n")[2].rstrip().split("\n")]
    assert not [line for line in lines if line.startswith("\tat ")]
    assert len(lines) <= 15, said
    failure = "ValueError: invalid literal for int() with base 10: 'no number', at "
    assert failure in lines[-2]
    assert lines[-1].endswith(
        "Remove the cause and start the pipeline again: it goes on from its latest checkpoint."
    )


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "CHANDY_RUNTIME_DIR": str(folder / "r")},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    # Nothing looks like trouble where there is none. What Spark says of a batch that the stop has cut off is another
    # matter: on a slow machine there is one.
    assert not re.search(r"adaptive\.enabled|Failed to cancel job group", done.stderr), done.stderr[-5000:]
    return done.stdout


@pytest.fixture
def s3(moto: Server, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """The bucket that pages speak of, where the environment says that S3 is."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{moto.port}")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    service = open_store(s3_uri(moto)).store.fs  # type: ignore[attr-defined]
    if "my-bucket" not in {place["Name"] for place in service.call_s3("list_buckets")["Buckets"]}:
        service.call_s3("create_bucket", Bucket="my-bucket")
    assert BUCKET != "my-bucket"


@pytest.fixture
def names() -> Iterator[dict[str, Any]]:
    """What the code of a page knows by name; coordinators that it leaves running are stopped."""
    # Workers cannot import a page: its classes travel by value, as those of a script do.
    found: dict[str, Any] = {"__name__": "__main__", "Path": Path, "eventually": eventually}
    yield found
    for coordinator in [value for value in found.values() if isinstance(value, CheckpointCoordinator)]:
        coordinator.stop(timeout="1 s", checkpoint=False)


@pytest.mark.parametrize("page", sampled([pytest.param(page, id=page.stem) for page in RUN], 4))
def test_the_code_of_a_page_runs(
    page: Path, spark: SparkSession, s3: None, names: dict[str, Any], tmp_path: Path
) -> None:
    for block in blocks(page):
        code = block.code.replace("/tmp/", f"{tmp_path}/")
        if block.language == "python":
            # Blank lines in front: errors name the line of the page.
            exec(compile("\n" * block.line + code, str(page), "exec"), names)
        elif block.language == "sh":
            for command in commands(Block(page, block.line, "sh", code)):
                if command.words[0] == "chandy":
                    done = CliRunner().invoke(main, command.words[1:])
                    assert done.exit_code == command.exit_code, (command, done.output, done.exception)
