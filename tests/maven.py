"""Servers that run on Java: Maven resolves their class paths."""

from __future__ import annotations

from benchmarks.servers.maven import NoJavaServerError as NoJavaServerError
from benchmarks.servers.maven import class_path as class_path
from benchmarks.servers.maven import program as program
