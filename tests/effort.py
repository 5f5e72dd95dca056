"""How much of what tests try by chance a run tries, and from which seed: no other module decides either.

The ordinary run tries the same sample every day, so that a change fails for what it does and not for its date: the seed
is here, and is changed on purpose. ``CHANDY_SEED`` names another one, as ``make test-today`` does, and the header of
pytest's output says which it was. The full run (``CHANDY_FULL=1``) tries all. ``CHANDY_EXAMPLES`` and ``CHANDY_ROUNDS``
set one of the numbers by hand.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings

SEED: Final = int(os.environ.get("CHANDY_SEED", "20261129"))
IS_FULL: Final = os.environ.get("CHANDY_FULL") == "1"
"""Whether everything is tried."""
_TIMES: Final = float(os.environ.get("CHANDY_EXAMPLES", "20" if IS_FULL else "1"))
_SHRUNK: Final = [phase for phase in Phase if phase is not Phase.explain]
"""All but the explanation of a failure, which may take minutes."""
_ROUNDS: Final = int(os.environ.get("CHANDY_ROUNDS", "0"))
_SKIPPED: Final = pytest.mark.skip(reason=f"not in the sample of CHANDY_SEED={SEED}; CHANDY_FULL=1 tries all")
Case = TypeVar("Case")


def description() -> str:
    """Return the line that says what this run tries, and how it is repeated."""
    return f"chance: {'all' if IS_FULL else 'a sample'} from CHANDY_SEED={SEED}; CHANDY_FULL=1 tries all"


def chance(*of: object) -> random.Random:
    """Return a generator of random numbers.

    Args:
        of: what it is for, by values whose text is the same in every run. Others get other numbers.
    """
    return random.Random(f"{SEED} {of}")


def rounds(usual: int, full: int) -> int:
    """Return how often a test repeats what depends on the moment: kills, races, lost answers."""
    return _ROUNDS or (full if IS_FULL else usual)


def sampled(cases: Sequence[Any], usual: int) -> list[Any]:
    """Return the parameters of a test; the ordinary run skips all but some, by the seed.

    Args:
        cases: one argument each, a tuple of them, or a ``pytest.param``.
        usual: how many cases the ordinary run tries.
    """
    found = [case if isinstance(case, _PARAMETERS) else _parameters(case) for case in cases]
    numbers = range(len(found))
    names = [
        case.id or (one if isinstance(one, str) else getattr(one, "__name__", ""))
        for case in found
        for one in case.values
    ]
    tried = some(numbers, usual, *names)
    return [
        pytest.param(*case.values, marks=[*case.marks, *([] if number in tried else [_SKIPPED])], id=case.id)
        for number, case in enumerate(found)
    ]


def some(cases: Iterable[Case], usual: int, *of: object) -> list[Case]:
    """Return what a loop within a test tries, in its order; the ordinary run leaves out all but some, by the seed.

    Args:
        cases: all that could be tried.
        usual: how many cases the ordinary run tries.
        of: what they are for, as for ``chance``.
    """
    found = list(cases)
    if IS_FULL:
        return found
    return [found[number] for number in sorted(chance(*of).sample(range(len(found)), min(usual, len(found))))]


def skip_all_but(usual: int, items: Sequence[pytest.Item], *of: object) -> None:
    """Skip tests in the ordinary run, all but some, by the seed.

    Args:
        usual: how many tests the ordinary run tries.
        items: the tests.
        of: what they are for, as for ``chance``.
    """
    tried = some(range(len(items)), usual, *of)
    for number, item in enumerate(items):
        if number not in tried:
            item.add_marker(_SKIPPED)


def leave_out(items: Iterable[pytest.Item]) -> None:
    """Skip the tests that the full run alone tries: their marker names the test that keeps their promise meanwhile."""
    for item in items:
        if (marker := item.get_closest_marker("full")) and not IS_FULL:
            (guard,) = marker.args
            item.add_marker(pytest.mark.skip(reason=f"CHANDY_FULL=1 tries it; meanwhile: {guard}"))


def _parameters(case: Any) -> Any:
    return pytest.param(*case) if isinstance(case, tuple) else pytest.param(case)


_PARAMETERS: Final = type(pytest.param())


def examples(usual: int) -> int:
    """Return how many examples of Hypothesis a test tries that tries the usual number in the ordinary run."""
    return max(1, round(usual * _TIMES))


def trying(usual: int) -> settings:
    """Return settings for a test over drawn values that may share a server or a session between its examples.

    Args:
        usual: number of examples in the ordinary run.
    """
    return settings(max_examples=examples(usual), deadline=None, suppress_health_check=list(HealthCheck))


def always_kept(usual: int, steps: int) -> settings:
    """Return settings for a state machine that must keep its promises in all examples.

    Args:
        usual: number of examples in the ordinary run.
        steps: of one example.
    """
    return settings(until_found(steps), max_examples=examples(usual), phases=_SHRUNK)


def until_found(steps: int) -> settings:
    """Return settings for a state machine that must find a bug which was put in on purpose.

    It stops at the first example that shows the bug, and makes it no smaller: that would take most of the time. The
    budget is many times what any of the bugs takes, so whether it is found depends on no seed and on no change of a
    name or a rule.

    Args:
        steps: of one example.
    """
    return settings(
        max_examples=5000,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )
