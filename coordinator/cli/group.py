"""The group of all commands, and the arguments that they share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ...storage.checkpoints import locate
from ...storage.errors import ChandyError
from .printing import failure

C = TypeVar("C", bound=Callable[..., Any])


class _Commands(click.Group):
    """Commands that print Chandy's own errors as one line on stderr, with exit code 1 and no traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except (ChandyError, OSError) as error:
            raise failure(str(error)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="chandy")
def main() -> None:
    """Manage the checkpoints of Spark streaming pipelines.

    STORAGE_URI is the storage of a coordinator, the folder of one pipeline in it, or (for show, diff, verify and
    export) the folder of a savepoint: file:///path, /path, path, s3://bucket/prefix, ...
    """


def absolute(context: click.Context, parameter: click.Parameter, uri: str) -> str:
    """Return a place as stores take it: a path below the current directory as an absolute one."""
    return uri if "://" in uri or uri.startswith(("/", "file:")) else str(Path(uri).resolve())


def check_java() -> None:
    """Check that there is a Java for Spark to run on.

    Raises:
        ClickException: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    if shutil.which(Path(home, "bin", "java") if home else "java") is None:
        raise failure("Spark needs Java 17 or newer, and there is none. Install it, or set JAVA_HOME.")


storage_uri = click.argument("uri", metavar="STORAGE_URI", callback=absolute)
pipeline_option = click.option(
    "--pipeline", metavar="NAME", help="Name of the pipeline, if the storage has several."
)
checkpoint_option = click.option("--checkpoint", type=int, metavar="ID", help="Id of the checkpoint.")
operator_option = click.option("--operator", metavar="UID", help="Show those of this operator only.")


def limit_option(default: int, of: str, least: int = 1) -> Callable[[C], C]:
    """Return the option that says how much of something is printed, at least so much."""
    return click.option(
        "--limit", type=click.IntRange(min=least), default=default, metavar="N", show_default=True, help=of
    )


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")


def located(uri: str, pipeline: str | None, checkpoint: int | None) -> locate.Located:
    """Find a checkpoint, or the latest one, or a savepoint."""
    return locate.locate(uri, locate.LATEST if checkpoint is None else checkpoint, pipeline)
