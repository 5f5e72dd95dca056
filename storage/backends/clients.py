"""Whether the client library of a store is as new as Chandy needs it.

An older one may ignore what it does not know. A create is then not exclusive, and a good store looks as if it could not
fence. So the version is checked before the store is blamed.
"""

from __future__ import annotations

from functools import cache
from importlib import metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from ..errors import InvalidPlaceError


def check_client(distribution: str, uri: str) -> None:
    """Check the version of a client library that is installed.

    Args:
        distribution: its name as in setup.cfg.
        uri: of the store that needs it.

    Raises:
        InvalidPlaceError: it is not a version that Chandy requires.
    """
    required, found = _versions(distribution)
    if not required.contains(found, prereleases=True):
        raise InvalidPlaceError(
            f"the store for {uri!r} cannot be used",
            f"{distribution} {required}",
            f"{distribution} {found}",
            f'run `pip install "{distribution}{required}"`; if another package holds it back (with s3fs it is mostly '
            "boto3), name that package in the same command, so that pip chooses versions that fit together",
        )


@cache
def _versions(distribution: str) -> tuple[SpecifierSet, str]:
    """Return which versions of a library are required, and which one is there."""
    wanted = map(Requirement, metadata.requires("chandy") or ())
    required = next((one.specifier for one in wanted if one.name == distribution), SpecifierSet())
    return required, metadata.version(distribution)
