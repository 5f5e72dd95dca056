"""What an attempt at a commit of PyIceberg has written, so that it can be deleted if nothing refers to it."""

from __future__ import annotations

from contextlib import suppress

from pyiceberg.io import FileIO, InputFile, OutputFile


class WrittenFiles(FileIO):
    """The files of a table, which remembers those that are written.

    PyIceberg leaves them where they are if it fails before its commit. A full disk would get fuller with each attempt.
    And it deletes them if the catalog says that the commit has met another one. A client that repeats a request by
    itself, as AWS's do, says so of a commit that has come about: then these are the table's files.
    """

    def __init__(self, files: FileIO) -> None:
        super().__init__(files.properties)
        self._files = files
        self._written: list[str] = []
        self._are_kept = False

    def new_input(self, location: str) -> InputFile:
        """Return a file to read."""
        return self._files.new_input(location)

    def new_output(self, location: str) -> OutputFile:
        """Return a file to write."""
        self._written.append(location)
        return self._files.new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file, unless the table may have it."""
        if not self._are_kept:
            self._files.delete(location)

    def keep(self) -> None:
        """Delete nothing from now on: a commit begins."""
        self._are_kept = True

    def take_back(self) -> None:
        """Delete what was written, as far as that goes: what stays is in nobody's way but takes room."""
        for location in self._written:
            with suppress(Exception):
                self._files.delete(location)
        self._written.clear()
