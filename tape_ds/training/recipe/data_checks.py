"""Whether the rows that an extension recipe asks for can be made: the window, PoSE, packing, the documents' filter."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tape_ds.data.pose import least_max_skip
from tape_ds.errors import Problem
from tape_ds.training.recipe.checks import Checks

if TYPE_CHECKING:
    from tape_ds.training.recipe.extension import ExtensionRecipe

CHECKS = Checks()


@CHECKS.reads("target_length", "window", "pose_chunks")
def _window(recipe: "ExtensionRecipe") -> Iterator[Problem]:
    window, target, chunks = recipe.data.window, recipe.model.target_length, recipe.data.pose_chunks
    if chunks < 1:
        yield Problem("pose_chunks", chunks, "too small", "1 packs rows, 2 or more skips positions (PoSE)")
    if window < 2:
        yield Problem("window", window, "too small", "give 2 tokens or more (the first is no target)")
    elif window > target:
        yield Problem("window", window, f"longer than target_length = {target}", f"give {target} or less")
    elif chunks >= 2 and window >= target:
        wrong = f"leaves nothing to skip: it is target_length = {target} itself"
        yield Problem("window", window, wrong, "give a shorter window, or pose_chunks: 1")
    elif window < chunks:
        yield Problem("window", window, f"too short for {chunks} chunks", "give a token or more for each chunk")


@CHECKS.reads("position_encoding", "pose_chunks")
def _skips(recipe: "ExtensionRecipe") -> Iterator[Problem]:
    from tape_ds.model import positions

    encoding, chunks = recipe.model.position_encoding, recipe.data.pose_chunks
    if chunks >= 2 and encoding in positions.available() and positions.reads_tokens(encoding):
        wrong = f"position_encoding = {encoding!r} counts tokens itself, and would see no skip"
        yield Problem("pose_chunks", chunks, wrong, "give pose_chunks: 1 (and a longer window), or another encoding")


@CHECKS.reads("pose_chunks", "pose_reach", "pose_content", "pose_skips")
def _pose_options(recipe: "ExtensionRecipe") -> Iterator[Problem]:
    """An option that is not at its default wants PoSE."""
    data = recipe.data
    if data.pose_chunks < 2:
        defaults = {"pose_reach": None, "pose_content": "skipped", "pose_skips": "uniform", "pose_max_skip": None}
        for name, default in defaults.items():
            if getattr(data, name) != default:
                wrong = "an option of PoSE, and pose_chunks = 1 packs rows"
                yield Problem(name, getattr(data, name), wrong, "remove it, or give pose_chunks: 2 or more")
    elif data.pose_reach is not None and data.pose_reach < 1:
        yield Problem(
            "pose_reach", data.pose_reach, "too small", "give 1 window or more, or null for all of a document"
        )


@CHECKS.reads("pose_chunks", "pose_skips", "pose_max_skip", "window", "target_length")
def _longest_skip(recipe: "ExtensionRecipe") -> Iterator[Problem]:
    """All skips together have to reach the target."""
    data, target = recipe.data, recipe.model.target_length
    if data.pose_max_skip is None or not 2 <= data.pose_chunks <= data.window < target:
        return
    if data.pose_skips != "uniform":
        wrong = f"pose_skips = {data.pose_skips!r} are drawn all at once, without a limit to one"
        yield Problem("pose_max_skip", data.pose_max_skip, wrong, "remove it, or pose_skips: uniform")
        return
    least = least_max_skip(data.window, target, data.pose_chunks)
    if data.pose_max_skip < least:
        wrong = f"{data.pose_chunks - 1} skips of a row of {data.window} do not reach target_length = {target}"
        yield Problem("pose_max_skip", data.pose_max_skip, wrong, f"give {least} or more, or more pose_chunks")


@CHECKS.reads("pose_chunks", "packing", "attend_across", "append_eos")
def _packing(recipe: "ExtensionRecipe") -> Iterator[Problem]:
    """A row of one document has no borders."""
    data = recipe.data
    if data.pose_chunks >= 2:
        one = f"pose_chunks = {data.pose_chunks} draws a row from one document"
        for name, default in {"packing": "cut", "attend_across": False, "append_eos": False}.items():
            if getattr(data, name) != default:
                yield Problem(name, getattr(data, name), f"{one}, nothing is packed", "remove it, or pose_chunks: 1")
    elif data.attend_across and data.packing == "single":
        wrong = "packing = 'single' makes rows of one document, there is nothing to attend across"
        yield Problem("attend_across", True, wrong, "remove it, or packing: cut or whole")


@CHECKS.reads("min_document_tokens", "max_documents", "packing", "window")
def _documents(recipe: "ExtensionRecipe") -> Iterator[Problem]:
    data = recipe.data
    if data.min_document_tokens < 1:
        yield Problem("min_document_tokens", data.min_document_tokens, "too small", "give 1 or more")
    if data.max_documents is not None and data.max_documents < 1:
        yield Problem("max_documents", data.max_documents, "too small", "give 1 or more, or null for all")
