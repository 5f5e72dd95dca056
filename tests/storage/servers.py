"""Real servers for tests, as processes: S3 in memory and on files, with conditional writes and without, and HDFS."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from benchmarks.ports import free_ports
from benchmarks.servers.process import Server as Server
from benchmarks.servers.process import listens

from ..maven import class_path, program

ACCESS_KEY = "ACCESSKEYOFTESTS"
SECRET_KEY = "SECRETKEYOFTESTS"
BUCKET = "bucket"
_DETAILS = "details.json"
"""What HDFS writes once it serves."""
_UNFINISHED = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
"""The end of the name of a file that S3Proxy is writing."""


def free_port() -> int:
    return free_ports(1)[0]


def answers(server: Server) -> bool:
    return listens(server.port)


def moto(directory: Path) -> Server:
    """S3 in memory that honours ``If-None-Match``."""
    port = free_port()
    return Server(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], port, directory, answers
    )


def rclone(directory: Path) -> Server:
    """S3 on files that silently ignores ``If-None-Match``."""
    port = free_port()
    (directory / "data" / BUCKET).mkdir(parents=True)
    program = Path(sys.executable).with_name("rclone")
    keys = f"{ACCESS_KEY},{SECRET_KEY}"
    command = [
        str(program),
        "serve",
        "s3",
        "--config=/dev/null",
        f"--addr=127.0.0.1:{port}",
        f"--auth-key={keys}",
        str(directory / "data"),
    ]
    return Server(command, port, directory, answers)


def s3proxy(directory: Path, cache: Path) -> Server:
    """S3 on files that honours ``If-None-Match``. It has one bucket.

    Raises:
        NoJavaServerError: no Maven, no Java, or no repository with the class path.
    """
    port = free_port()
    (directory / "data" / BUCKET).mkdir(parents=True)
    settings = directory / "s3proxy.conf"
    settings.write_text(
        f"s3proxy.endpoint=http://127.0.0.1:{port}\n"
        "s3proxy.authorization=aws-v2-or-v4\n"
        f"s3proxy.identity={ACCESS_KEY}\n"
        f"s3proxy.credential={SECRET_KEY}\n"
        # Clients send checksums that it does not know.
        "s3proxy.ignore-unknown-headers=true\n"
        "jclouds.provider=filesystem-nio2\n"
        "jclouds.identity=unused\n"
        "jclouds.credential=unused\n"
        f"jclouds.filesystem.basedir={directory / 'data'}\n"
    )
    own = Path(__file__).with_name("s3")
    command = [
        program("java"),
        "-Xmx300m",
        f"-Dlogback.configurationFile={own / 'logback.xml'}",
        "-cp",
        class_path(own / "pom.xml", cache),
        "org.gaul.s3proxy.Main",
        "--properties",
        str(settings),
    ]
    return Server(command, port, directory, answers)


def restart_s3proxy(server: Server) -> None:
    """Kill S3Proxy, and start it again with the objects that it had.

    What it was writing lies beside them, under the object's name with a random one behind it. S3Proxy would list that
    as an object, or fail to. No S3 service shows half an object.
    """
    server.kill()
    for path in (server.directory / "data").rglob("*"):
        if _UNFINISHED.search(path.name):
            path.unlink()
    server.start()


def restart_hdfs(server: Server) -> None:
    """Kill HDFS's name node and data node, and start them again with what they have on disk."""
    server.kill()
    (server.directory / _DETAILS).unlink()
    server.command = [part for part in server.command if part != "-format"]
    server.start()


def hdfs(directory: Path, cache: Path) -> Server:
    """A name node and a data node in one JVM.

    Raises:
        NoJavaServerError: no Maven, no Java, or no repository with the class path.
    """
    port = free_port()
    details = directory / _DETAILS
    command = [
        program("java"),
        "-Xmx400m",
        "-cp",
        class_path(Path(__file__).with_name("hdfs") / "pom.xml", cache),
        "org.apache.hadoop.test.MiniDFSClusterManager",
        "-datanodes",
        "1",
        "-nnport",
        str(port),
        "-writeDetails",
        str(details),
        "-D",
        "dfs.namenode.fs-limits.min-block-size=1024",
        "-format",
    ]
    return Server(command, port, directory, lambda server: details.exists() and details.stat().st_size > 0)
