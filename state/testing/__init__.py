"""Runs processors in unit tests: batch by batch, without a JVM, by the code that runs them in production."""

from .tester import OperatorTester as OperatorTester
from .windows import SessionWindow as SessionWindow
from .windows import TimeWindow as TimeWindow

__all__ = ["OperatorTester", "SessionWindow", "TimeWindow"]
