"""Builds the logs of batches in a working directory, in Spark's formats; ``test_time.py`` uses Spark's own logs."""

from __future__ import annotations

import json
from pathlib import Path


def plan(directory: Path, batch: int, *, watermark: int, timestamp: int, version: str = "v1") -> None:
    metadata = {"batchWatermarkMs": watermark, "batchTimestampMs": timestamp, "conf": {"a.b": "c\nd"}}
    source = '{"logOffset":0}' if version == "v1" else '0:{"logOffset":0}'
    write(directory / "offsets" / str(batch), f"{version}\n{json.dumps(metadata)}\n{source}\n-")


def commit(directory: Path, batch: int, *, watermark: int, version: str = "v1") -> None:
    write(directory / "commits" / str(batch), f'{version}\n{{"nextBatchWatermarkMs":{watermark}}}')


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
