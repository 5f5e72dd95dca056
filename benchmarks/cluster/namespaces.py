"""Machines with their own network, process ids, host name, /tmp and /dev/shm, in Linux namespaces.

A machine is a process, its init, in new network, mount, pid, uts and ipc namespaces, wired to a bridge by a veth pair.
To kill the init with SIGKILL is to cut the machine's power: the kernel kills all of its processes at once. It needs
root and the commands ``unshare``, ``nsenter`` and ``ip``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

PRIVATE: Final = ("/var/tmp", "/dev/shm", "/run", "/tmp")
"""What every machine has of its own, empty; /tmp last, for the others are made below it."""
_NOWHERE: Final = "02:00:00:00:de:ad"
_SPACES: Final = ("unshare", "--net", "--mount", "--pid", "--fork", "--uts", "--ipc", "--kill-child")


def are_permitted() -> bool:
    """Return whether this process may make namespaces and network devices."""
    if not all(shutil.which(tool) for tool in ("unshare", "nsenter", "ip")):
        return False
    probe = "ip link add chy-probe type veth peer name chy-probe2 && mount -t tmpfs none /mnt"
    return subprocess.run([*_SPACES, "sh", "-c", probe], capture_output=True, check=False).returncode == 0


class NamespaceMachine:
    """One machine. Made by ``Network``."""

    def __init__(self, name: str, address: str, link: str, init: subprocess.Popen[bytes], pid: int) -> None:
        self.name, self.address, self.pid = name, address, pid
        self.link, self._init = link, init
        self._started: list[subprocess.Popen[bytes]] = []

    def start(
        self, command: Sequence[str], env: Mapping[str, str], output: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        """Start a process there. ``env`` adds to this process's environment; both streams go to ``output``."""
        process = subprocess.Popen(
            self._entered(command),
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        self._started.append(process)
        return process

    def run(self, *command: str) -> str:
        """Run a command there and return what it prints."""
        return subprocess.run(self._entered(command), check=True, capture_output=True, text=True).stdout

    def kill(self) -> None:
        """Cut the power: all processes are gone, and the private files; peers see no FIN, only silence."""
        self.unplug()
        if self._init.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self._wake()
            self._init.wait()
        for process in self._started:
            process.wait()

    def freeze(self) -> None:
        """Stop every process there; ``thaw`` lets them go on."""
        self._signal("STOP")

    def thaw(self) -> None:
        """End ``freeze``."""
        self._signal("CONT")
        self._wake()

    def unplug(self) -> None:
        """Cut the machine off from all others: packets are lost in both directions."""
        _ip("link", "set", self.link, "down", check=False)

    def plug(self) -> None:
        """End ``unplug``."""
        _ip("link", "set", self.link, "up")

    def block(self, address: str) -> None:
        """Lose whatever goes from here to an address: one direction alone."""
        self.run("ip", "neigh", "replace", address, "lladdr", _NOWHERE, "dev", "eth0", "nud", "permanent")

    def unblock(self, address: str) -> None:
        """End ``block``."""
        self.run("ip", "neigh", "del", address, "dev", "eth0")

    def _entered(self, command: Sequence[str]) -> list[str]:
        enter = [
            "nsenter",
            "--target",
            str(self.pid),
            "--net",
            "--mount",
            "--pid",
            "--uts",
            "--ipc",
            "--wd=/",
        ]
        return [*enter, *command]

    def _signal(self, name: str) -> None:
        # Sent from inside, so that it reaches this machine's processes alone; -1 spares init and the sender.
        self.run("kill", f"-{name}", "--", "-1")

    def _wake(self) -> None:
        # nsenter stops itself when its child is stopped, and a machine does not end before nsenter has reaped that.
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)


class Network:
    """Machines on one bridge; this process, at ``address``, is one more on it. A context manager."""

    def __init__(self, names: Sequence[str], shared: Sequence[str | Path] = ()) -> None:
        """Describe the machines.

        Args:
            names: of the machines.
            shared: directories below a private place that all machines see, each under its own path.
        """
        self._bridge = f"chy{os.getpid()}"
        self._net = _free_net()
        self.address = f"{self._net}.1"
        self._shared = [str(Path(path).resolve()) for path in shared]
        self._names = list(names)
        self._files = Path(tempfile.mkdtemp(prefix="chy-"))
        self.machines: list[NamespaceMachine] = []

    def __enter__(self) -> Self:
        try:
            _remove_left_bridges()
            _ip("link", "add", self._bridge, "type", "bridge")
            _ip("addr", "add", f"{self.address}/24", "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
            for name in self._names:
                self.add(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cut the power of all machines and remove the network."""
        for machine in self.machines:
            machine.kill()
            # They go with the machine in a while, and until then the next network could not have these names.
            _ip("link", "del", machine.link, check=False)
        _ip("link", "del", self._bridge, check=False)
        shutil.rmtree(self._files, ignore_errors=True)

    def add(self, name: str) -> NamespaceMachine:
        """Put one more machine on the bridge."""
        number = len(self.machines)
        address = f"{self._net}.{number + 11}"
        known = [(machine.address, machine.name) for machine in self.machines]
        lines = ["127.0.0.1 localhost", f"{self.address} driver"]
        lines += [f"{where} {who}" for where, who in [*known, (address, name)]]
        hosts, stage = self._files / f"hosts-{number}", self._files / f"stage-{number}"
        hosts.write_text("\n".join([*lines, ""]))
        stage.mkdir()
        arguments = [name, str(hosts), str(stage), " ".join(PRIVATE), *self._shared]
        init = subprocess.Popen(
            [*_SPACES, "--propagation", "private", "sh", "-ec", _INIT, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert init.stdout is not None and init.stderr is not None
        if init.stdout.readline() != b"up\n":
            raise OSError(f"machine {name} did not start: {init.stderr.read().decode(errors='replace')}")
        pid = int(Path(f"/proc/{init.pid}/task/{init.pid}/children").read_text().split()[0])
        link, peer = f"{self._bridge}.{number}", f"{self._bridge}p{number}"
        machine = NamespaceMachine(name, address, link, init, pid)
        self.machines.append(machine)
        _ip("link", "add", link, "type", "veth", "peer", "name", peer)
        _ip("link", "set", link, "master", self._bridge, "up")
        _ip("link", "set", peer, "netns", str(pid))
        machine.run("ip", "link", "set", peer, "name", "eth0")
        machine.run("ip", "addr", "add", f"{address}/24", "dev", "eth0")
        machine.run("ip", "link", "set", "eth0", "up")
        return machine


_INIT: Final = """
hostname "$0"; hosts=$1; stage=$2; private=$3; shift 3
ip link set lo up
mount -t proc proc /proc
mount --bind "$hosts" /etc/hosts
for place in $private; do
  mount -t tmpfs -o mode=1777 none "$stage"
  for path in "$@"; do
    case "$path" in "$place"/*)
      mkdir -p "$stage${path#"$place"}"; mount --bind "$path" "$stage${path#"$place"}";; esac
  done
  mount -n --move "$stage" "$place"
done
echo up
exec cat > /dev/null
"""
"""A machine's init. It ends when whoever started it dies, however that is: then the pipe ends that ``cat`` reads."""


def _free_net() -> str:
    """Return the first three numbers of the addresses of a network that nobody on this machine has."""
    taken = subprocess.run(["ip", "-o", "addr"], check=True, capture_output=True, text=True).stdout
    # Two processes that look at the same time begin in different places.
    nets = (f"10.213.{(os.getpid() + number) % 250}" for number in range(250))
    return next(net for net in nets if f" {net}." not in taken)


def _remove_left_bridges() -> None:
    """Remove what a process that was killed has left."""
    for path in Path("/sys/class/net").glob("chy*/bridge"):
        name = path.parent.name
        if not Path("/proc", name.removeprefix("chy")).exists():
            _ip("link", "del", name, check=False)


def _ip(*arguments: str, check: bool = True) -> None:
    subprocess.run(["ip", *arguments], check=check, capture_output=True)
