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

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("backend", ["moto", "hdfs"])
def test_a_pipeline_runs_stops_and_is_restored_on_a_real_server(
    backend: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server = request.getfixturevalue(backend)
    uri = (s3_uri if backend == "moto" else hdfs_uri)(server, uuid.uuid4().hex)
    command = [sys.executable, "-m", "tests.integration.stores_driver", str(tmp_path), uri]
    root = Path(__file__).parents[2]
    with (tmp_path / "log").open("wb") as log:
        driver = subprocess.run(
            command,
            cwd=root,
            stdout=subprocess.PIPE,
            stderr=log,
            env=os.environ | {"PYSPARK_PYTHON": sys.executable},
            check=False,
            timeout=300,
        )
    assert driver.stdout.decode().split()[-1:] == ["done"], (tmp_path / "log").read_text()[-5000:]
