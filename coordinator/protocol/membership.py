"""The state hosts of a pipeline: which live, and which have lost their shards for good."""

from __future__ import annotations

from collections.abc import Callable, Collection

import attrs

from ...state.errors import HostDismissedError
from ...state.rpc.messages import HostHello


@attrs.define
class Membership:
    """The state hosts, by id. An executor has one at a time."""

    hosts: dict[str, HostHello] = attrs.field(factory=dict, init=False)
    """The hosts that live."""
    dismissed: set[str] = attrs.field(factory=set, init=False)
    """The hosts whose shards have got other owners, because they were lost. What they say no longer counts."""
    gone: set[str] = attrs.field(factory=set, init=False)
    """Spark's ids of the executors that are gone. Their hosts may live on."""
    _beside: dict[str, set[str]] = attrs.field(factory=dict, init=False)
    """Spark's ids of the executors that have had a host, by what those have in common that can read its changelogs."""
    _on: dict[str, set[str]] = attrs.field(factory=dict, init=False)
    """Spark's ids of the executors that have had a host, by machine."""
    _host_of: dict[str, str] = attrs.field(factory=dict, init=False)
    """The host of each executor."""

    def join(self, hello: HostHello) -> HostHello | None:
        """Take a host in; return the host of the same executor whose place it takes, None if there was none."""
        before = self._host_of.get(hello.executor)
        self.hosts[hello.host] = hello
        if hello.changelogs is not None and hello.spark_executor is not None:
            self._beside.setdefault(hello.changelogs, set()).add(hello.spark_executor)
        if hello.spark_executor is not None:
            self._on.setdefault(hello.machine, set()).add(hello.spark_executor)
        self._host_of[hello.executor] = hello.host
        return None if before is None or before == hello.host else self.hosts.pop(before, None)

    def leave(self, hello: HostHello) -> None:
        """Take out a host that is gone."""
        self.hosts.pop(hello.host, None)
        if self._host_of.get(hello.executor) == hello.host:
            del self._host_of[hello.executor]

    def check_not_dismissed(self, host: str) -> None:
        """Raise ``HostDismissedError`` if a host has lost its shards to other hosts."""
        if host in self.dismissed:
            raise HostDismissedError(host)

    def may_be_followed(self, lost: HostHello, leaving: Collection[str]) -> bool:
        """Return whether another host may come that can read the changelogs of a lost one.

        Args:
            lost: what the lost host reported when it joined.
            leaving: executors, by Spark's ids, that start no host any more.
        """
        executors = self._beside.get(lost.changelogs or "", set())
        return not executors or bool(executors - self.gone - set(leaving))

    def on(self, machine: str) -> set[str]:
        """Return the hosts on a machine."""
        return self._which(lambda hello: hello.machine == machine)

    def of_executors(self, executors: Collection[str]) -> set[str]:
        """Return the hosts of executors, by Spark's ids."""
        return self._which(lambda hello: hello.spark_executor in executors)

    def may_have_hosts(self, machine: str) -> bool:
        """Whether a machine has a host, or an executor that has had one and may start another."""
        return machine in self.machines or bool(self._on.get(machine, set()) - self.gone)

    @property
    def machines(self) -> set[str]:
        """The machines that have hosts."""
        return {hello.machine for hello in self.hosts.values()}

    def _which(self, holds: Callable[[HostHello], bool]) -> set[str]:
        return {host for host, hello in self.hosts.items() if holds(hello)}
