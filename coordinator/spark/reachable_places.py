"""Which places the executors of a cluster can reach: decided from what the user has named, without looking at any."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from ..errors import SetupError
from .local_path import is_local

_ONE_MACHINE: Final = re.compile(r"local(\[.*\])?|local-cluster\[.*\]")
_HADOOP_SCHEME: Final = re.compile(r"^s3n?(?=://)")


def has_other_machines(master: str) -> bool:
    """Return whether tasks may run on other machines than the driver's, as Spark's master says."""
    return _ONE_MACHINE.fullmatch(master) is None


def check_reach(master: str, places: Mapping[str, str], *, shared: bool) -> None:
    """Refuse places on the driver's own disk that executors on other machines have to reach.

    Args:
        master: Spark's master.
        places: paths and URIs by what they are for. A path without a scheme is local.
        shared: whether the user says that local paths are on a file system that all machines have mounted there.

    Raises:
        SetupError: names the first such place.
    """
    if shared or not has_other_machines(master):
        return
    for role, place in places.items():
        if is_local(place):
            raise SetupError(
                f"{role} cannot be kept in {place}",
                f"a place that all machines of {master} reach",
                "a path on the driver's machine",
                "name a store such as hdfs://... or s3a://...; if the path is on a file system that is mounted there "
                "on all machines, say so by CheckpointConfig(shared=True)",
            )


def for_hadoop(uri: str) -> str:
    """Return the URI of a store as Hadoop writes it: s3:// becomes s3a://."""
    return _HADOOP_SCHEME.sub("s3a", uri)
