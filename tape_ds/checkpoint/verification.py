"""Checks for tools: a checkpoint is whole, or refused; and whether a tool may write to a folder."""

import os
from pathlib import Path

from tape_ds import checkpoint, paths
from tape_ds.checkpoint import Manifest
from tape_ds.errors import Problem, UserError


def verified(source: Path) -> Manifest:
    """Return the manifest of a whole checkpoint, after reading all of it; refuse any other."""
    try:
        manifest = checkpoint.read(source)
    except ValueError as error:
        found = [str(error) if os.path.isdir(source) else "there is no such folder"]
    else:
        found = checkpoint.misfits(source, manifest) or checkpoint.damage(source, manifest)
        if not found:
            return manifest
    raise UserError(Problem("checkpoint", str(source), "; ".join(found), instead(source)))


def instead(source: Path) -> str:
    """Return the remedy for a folder that is no whole checkpoint: the checkpoints in it, or next to it."""
    inside, beside = (
        [each.name for each in checkpoint.committed(folder)] if os.path.isdir(folder) else []
        for folder in (source, source.parent)
    )
    if inside:
        return f"give one of the checkpoints in it: {', '.join(inside)}"
    if others := [name for name in beside if name != source.name]:
        return f"use another of its run: {', '.join(others)}"
    return "restore it from a copy" if os.path.isdir(source) else "give a run's folder checkpoint-N"


def against(field: str, folder: Path, source: Path) -> list[Problem]:
    """Return why a new folder, made from the checkpoint ``source``, cannot be ``folder``; ``field`` names it on the
    command line."""
    if found := paths.check_new(field, folder):
        return found
    if not folder.resolve().is_relative_to(source.resolve()):
        return []
    wrong = "it is inside the checkpoint, which must not change"
    return [Problem(field, str(folder), wrong, "name a new folder")]
