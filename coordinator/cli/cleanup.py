"""`chandy gc` and `chandy clean`: delete what nothing needs in a storage, and on this machine."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click
from rich.filesize import decimal

from ...storage.checkpoints import locate
from ...storage.checkpoints.catalog import Catalog
from ...storage.checkpoints.collect import GRACE_SECONDS, collect_garbage
from .group import json_option, main, pipeline_option, storage_uri
from .printing import print_json, print_problems, print_table, say

if TYPE_CHECKING:
    from ..restore.leftovers import Leftover


@main.command()
@storage_uri
@pipeline_option
@click.option("--dry-run", is_flag=True, help="Only print what would be deleted.")
@click.option("--force", is_flag=True, help="Delete young objects too. Only while the pipeline does not run!")
@json_option
def gc(uri: str, pipeline: str | None, dry_run: bool, force: bool, as_json: bool) -> None:
    """Delete what no completed checkpoint needs: leftovers of crashes, and of aborted checkpoints and savepoints.

    Objects younger than a day are kept, because a checkpoint in flight may need them. So are all objects that a
    checkpoint with a damaged manifest may need.
    """
    catalog = Catalog(locate.pipeline(uri, pipeline))
    garbage = collect_garbage(catalog, time.time(), 0 if force else GRACE_SECONDS, dry_run)
    if as_json:
        print_json(attrs.asdict(garbage) | {"dry_run": dry_run})
        print_problems(_not_deleted(garbage.failed))
        return
    for key in garbage.keys:
        say(key)
    verb = "would delete" if dry_run else "deleted"
    say(f"{verb} {len(garbage.keys)} objects, {decimal(garbage.bytes)}; kept {garbage.young} young ones")
    if garbage.damaged:
        say(
            f"kept {garbage.spared} more, because these damaged manifests may need them: {', '.join(garbage.damaged)}; "
            "replace the manifests by intact copies, or delete them to give up their checkpoints, then run this again",
            err=True,
        )
    print_problems(_not_deleted(garbage.failed))


def _not_deleted(failed: Mapping[str, str]) -> list[str]:
    return [f"could not delete {name}: {reason}" for name, reason in failed.items()]


_folder = click.Path(path_type=Path, file_okay=False)


@main.command()
@click.option("--work-dir", type=_folder, metavar="DIR", help="CheckpointConfig.work_dir, if it was set.")
@click.option("--cache-dir", type=_folder, metavar="DIR", help="CheckpointConfig.cache_dir, if it was set.")
@click.option("--dry-run", is_flag=True, help="Only print what would be deleted.")
@click.option("--force", is_flag=True, help="Delete what is younger than a day, too.")
@json_option
def clean(work_dir: Path | None, cache_dir: Path | None, dry_run: bool, force: bool, as_json: bool) -> None:
    """Delete what killed drivers and state hosts have left on this machine's disk.

    What a living process uses is kept. So is what is younger than a day: a driver that was killed resumes from it when
    it starts again.
    """
    # It loads PySpark, which the other commands need not wait for.
    from ..restore.leftovers import Places
    from ..restore.leftovers import clean as clean_up

    now = time.time()
    found = clean_up(Places.of(work_dir, cache_dir), now, 0 if force else GRACE_SECONDS, dry_run)
    if as_json:
        print_json(
            {
                "deleted": [_leftover(one, now) for one in found.deleted],
                "young": [_leftover(one, now) for one in found.young],
                "in_use": found.in_use,
                "failed": found.failed,
                "dry_run": dry_run,
            }
        )
    else:
        rows = [
            [str(one.path), one.what, decimal(one.bytes), _age(now - one.written_at)] for one in found.deleted
        ]
        if rows:
            print_table("", ["directory", "left by", "size", "last written"], rows, numbers=("size",))
        verb = "would delete" if dry_run else "deleted"
        say(
            f"{verb} {len(rows)} directories, {decimal(found.bytes)}; kept {len(found.young)} young ones and "
            f"{found.in_use} in use"
        )
    print_problems(_not_deleted(found.failed))


def _leftover(one: Leftover, now: float) -> dict[str, Any]:
    age = now - one.written_at
    return {"path": str(one.path), "what": one.what, "bytes": one.bytes, "age_seconds": age}


def _age(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours / 24:.0f} days ago" if hours >= 48 else f"{hours:.0f} hours ago"
