"""Proof that no successor owns what is about to be changed: who changes it must be given one.

Every driver of a pipeline that has claimed its generation may believe that it leads. Only the newest does, and outputs,
queries and objects in stores are its own alone. So whatever changes them takes a ``FenceProof`` and checks it right
before each step: no caller can forget to look for a successor, because there is nothing to call without a proof.
"""

from __future__ import annotations

import abc


class FenceProof(abc.ABC):
    """Shows, whenever it is checked, that no successor had claimed the pipeline a moment ago."""

    @property
    @abc.abstractmethod
    def generation(self) -> int:
        """The generation that acts."""

    @abc.abstractmethod
    def check(self) -> None:
        """Check that no successor has claimed the pipeline, by a look that is younger than a successor waits.

        Raises:
            FencedError: one has.
            StorageError: the last look is too old, and the store does not tell.
        """

    @abc.abstractmethod
    def check_now(self) -> None:
        """Check it by asking the store now, for what was listed before to be surely one's own.

        Raises:
            FencedError, StorageError: as for ``check``.
        """


class Unshared(FenceProof):
    """The proof of anyone who has no generations: a program that writes a folder of its own, or somebody by hand."""

    @property
    def generation(self) -> int:
        """No generation."""
        return 0

    def check(self) -> None:
        """Do nothing: nobody can succeed it."""

    def check_now(self) -> None:
        """Do nothing, as ``check``."""
