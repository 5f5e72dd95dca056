"""The version of Chandy that is installed."""

from importlib import metadata

__version__ = metadata.version("chandy")
