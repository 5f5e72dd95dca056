"""Whole pipelines whose checkpoints are on real S3 and HDFS servers."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

# Fixtures.
from ..storage.conftest import hdfs, hdfs_uri, moto, s3_keys, s3_uri  # noqa: F401
from ..storage.servers import Server
from ..waiting import DEADLINE

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    "backend",
    [
        "moto",
        pytest.param(
            "hdfs",
            marks=pytest.mark.full(
                "integration/test_native_state_on_hdfs.py::test_state_is_restored_from_the_checkpoint_into_a_fresh_directory"
            ),
        ),
    ],
)
def test_a_pipeline_runs_stops_and_is_restored_on_a_real_server(
    backend: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server = request.getfixturevalue(backend)
    uri = (s3_uri if backend == "moto" else hdfs_uri)(server, uuid.uuid4().hex)
    check_driver("run", uri, tmp_path)


@pytest.mark.server
@pytest.mark.full("integration/test_write_state.py::test_a_new_pipeline_starts_from_state_of_a_table")
def test_savepoints_are_written_from_rows_to_real_s3_and_back(moto: Server, tmp_path: Path) -> None:  # noqa: F811
    check_driver("write_state", s3_uri(moto, uuid.uuid4().hex), tmp_path)


def check_driver(what: str, uri: str, folder: Path) -> None:
    """Have a driver of its own do something on a store."""
    command = [sys.executable, "-m", "tests.integration.stores_driver", str(folder), uri, what]
    root = Path(__file__).parents[2]
    with (folder / "log").open("wb") as log:
        driver = subprocess.run(
            command,
            cwd=root,
            stdout=subprocess.PIPE,
            stderr=log,
            env=os.environ | {"PYSPARK_PYTHON": sys.executable},
            check=False,
            timeout=DEADLINE,
        )
    assert driver.stdout.decode().split()[-1:] == ["done"], (folder / "log").read_text()[-5000:]
