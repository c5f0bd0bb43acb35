"""Sources of text: a class for each kind of data spec, listed in :data:`KINDS`; docs/data.md describes the specs.

Relative globs start at the working directory, ``~`` is the home folder, ``**`` descends. Files are read in the order of
their path below the glob's fixed part, compared by code point, so the order depends on neither machine nor locale.

A spec is *parsed* (only its kind can be wrong), then *checked* (cheaply, all problems at once), and only then read.
``stdlib`` and ``hub`` have a held-out split. Other kinds yield the same for both splits: the recipe lists different
specs for training and evaluation.
"""

import os
from collections.abc import Sequence

from tape_ds import paths
from tape_ds.data.bad_rows import BadRows
from tape_ds.data.sources import files, weights
from tape_ds.data.sources.arrow import ArrowFolder
from tape_ds.data.sources.base import (
    SPLITS,
    Document,
    RowSource,
    Shard,
    Source,
    TokenShard,
    TokenSource,
)
from tape_ds.data.sources.files import JsonLines, PackageText, ParquetFiles, TextFiles
from tape_ds.data.sources.generated import GeneratedDocuments
from tape_ds.data.sources.hub import HubDataset
from tape_ds.data.sources.standard_library import HELD_OUT, StandardLibrary
from tape_ds.data.sources.token_file import TokenFile
from tape_ds.data.sources.tokens import TokenCorpus
from tape_ds.errors import Problem, UserError, did_you_mean, raise_if_any

__all__ = [
    "HELD_OUT",
    "KINDS",
    "SPLITS",
    "ArrowFolder",
    "Document",
    "GeneratedDocuments",
    "RowSource",
    "Shard",
    "Source",
    "TokenCorpus",
    "TokenFile",
    "TokenShard",
    "TokenSource",
    "check_lists",
    "parse",
    "parse_all",
]

# in the order in which messages list them
KINDS: dict[str, type[Source]] = {
    source.kind: source
    for source in (
        *(StandardLibrary, TextFiles, PackageText, JsonLines, ParquetFiles, HubDataset),
        *(ArrowFolder, TokenFile, TokenCorpus, GeneratedDocuments),
    )
}


def parse(spec: str, field: str = "data") -> Source:
    """Return the :class:`Source` of ``spec``; nothing is opened."""
    forms = ", ".join(kind.form for kind in KINDS.values())
    if not isinstance(spec, str) or not spec.strip():
        raise UserError(Problem(field, spec, "not a data spec", f"one of: {forms}"))
    raise_if_any(list(paths.check(field, spec)))
    kind = spec.partition(":")[0]
    if kind not in KINDS:
        reason = f"unknown kind of data {kind!r}"
        remedy = did_you_mean(kind, KINDS)
        if spec[0] in "[{":
            remedy = (
                "give weights in train_data of a recipe only: [{source: SPEC, weight: NUMBER}, ...]"
            )
        elif kind in ("csv", "tsv"):
            remedy = files.FROM_CSV
        elif os.path.exists(paths.of(spec.partition("#")[0])):
            reason = "no kind of data before the path"
            remedy = "write for example text:FILE or jsonl:FILE#field"
        raise UserError(Problem(field, spec, reason, f"{remedy} (forms: {forms})"))
    return KINDS[kind](spec, field)


def parse_all(
    specs: Sequence[str], field: str = "data", bad_rows: BadRows | None = None
) -> list[Source]:
    """Parse and check a list of data specs; unreadable rows count as ``bad_rows``, by default the first is refused."""
    problems: list[Problem] = []
    sources: list[Source] = []
    if isinstance(specs, str) or not specs:
        problems.append(
            Problem(
                field, specs, "not a list of data specs", f"write for example {field}: [stdlib]"
            )
        )
        specs = []
    for spec in specs:
        try:
            source = parse(spec, field)
        except UserError as error:
            problems += error.problems
            continue
        if bad_rows is not None:
            # rows of the check do not count
            source.bad_rows = BadRows(bad_rows.limit)
        problems += source.check()
        source.bad_rows = bad_rows or source.bad_rows
        sources.append(source)
    raise_if_any(problems)
    return sources


def check_lists(
    train: Sequence[weights.Entry], evaluation: Sequence[str], skip_bad_rows: int | None = None
) -> list[Problem]:
    """Return problems of ``train_data`` and ``eval_data``: weights, specs, and documents in both lists; only
    ``eval_data`` may be empty. ``skip_bad_rows``: of the recipe."""
    problems = list(weights.check(train, "train_data"))
    lists: list[list[Source]] = []
    for field, specs in (("train_data", weights.specs_of(train)), ("eval_data", evaluation)):
        try:
            bad_rows = BadRows(skip_bad_rows)
            lists.append(
                parse_all(specs, field, bad_rows)
                if specs or (field == "train_data" and not train)
                else []
            )
        except UserError as error:
            problems += error.problems
    if problems:
        return problems
    trained = {identity: source for source in lists[0] for identity in source.identities("train")}
    for source in lists[1]:
        shared = sorted(source.identities("heldout") & trained.keys())
        if shared:
            where = trained[shared[0]].spec
            shown = ", ".join(shared[:3]) + (" ..." if len(shared) > 3 else "")
            problems.append(
                source.problem(
                    f"also trained on, through {where!r} in train_data: {shown}",
                    "evaluate on other documents, or take these out of train_data",
                )
            )
    return problems
