"""Commits that a table has not taken, and whether that was because others were faster."""

from __future__ import annotations

from typing import Final

from ...sinks.two_phase.errors import TargetUnavailableError

ATTEMPTS: Final = 5
"""How often a commit is tried while other writers of the table are faster."""


class Conflicts:
    """The attempts at one commit. Another commit, which moves the table's version, is a reason for one more."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._versions: list[object] = []

    def met(self, version: object, said: str) -> None:
        """Record that a commit on a version was not made.

        Args:
            version: what is another one after each commit of anybody.
            said: the client's words.

        Raises:
            TargetUnavailableError: there were too many. It is known to pass if other writers were faster.
        """
        self._versions.append(version)
        if len(self._versions) < ATTEMPTS:
            return
        moves = len(set(self._versions)) - 1
        why = f"other writers were faster, {moves} times at least" if moves else "no other writer was faster"
        raise TargetUnavailableError(self._target, f"{why}: {said}", is_understood=moves > 0)
