"""A checkpoint that a tool is about to read: every byte of it as it was written, or refused."""

from pathlib import Path

from tape_ds.errors import Problem, UserError
from tape_ds.training import checkpoint
from tape_ds.training.checkpoint import Manifest


def verified(source: Path) -> Manifest:
    """The manifest of a whole checkpoint; all of it is read.

    Raises:
        UserError: it is none, or not whole; names the other checkpoints of its run.
    """
    try:
        manifest = checkpoint.read(source)
    except ValueError as error:
        found = [str(error) if source.is_dir() else "there is no such folder"]
    else:
        found = checkpoint.misfits(source, manifest) or checkpoint.damage(source, manifest)
        if not found:
            return manifest
    others = [folder.name for folder in checkpoint.committed(source.parent) if folder.name != source.name]
    remedy = f"use another of its run: {', '.join(others)}" if others else "restore it from a copy"
    raise UserError(Problem("checkpoint", str(source), "; ".join(found), remedy))
