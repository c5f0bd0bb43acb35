"""SCROLLS' data sets and their examples, from the hub's zip files or from a folder of files.

The hub has ``NAME.zip`` with ``NAME/SPLIT.jsonl`` in it, and a loading script that ``datasets`` no longer runs; the
archive's member is read here, neither unpacked nor executed. Each line is a JSON object with ``id``, ``input`` and
``output``. A question with several reference answers has a row for each, all with one id.

``stdlib`` is not part of SCROLLS: questions about the running Python's own sources, so that fine-tuning can be tried on
a machine without a download. Each asks which arguments a function takes, before an excerpt of the file that defines it.
"""

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from huggingface_hub import hf_hub_download

from tape_ds import paths, storage
from tape_ds.data.bad_rows import BadRows
from tape_ds.data.sources import StandardLibrary, opening
from tape_ds.data.sources.base import UNREADABLE
from tape_ds.data.sources.file_identity import file_identity
from tape_ds.data.sources.files import JsonLines
from tape_ds.errors import Problem, UserError, collecting, did_you_mean

HUB_REPOSITORY = "tau/scrolls"
SPLITS = ("train", "validation", "test")
# its reference answers are not published
WITHOUT_ANSWERS = "test"


@dataclass(frozen=True)
class Dataset:
    # in recipes and commands, and the stem of its zip file in `HUB_REPOSITORY`
    name: str
    # the model's output; decides the prompt (`prompts`)
    kind: Literal["answer", "summary"]
    # SCROLLS' score; rouge: the geometric mean of ROUGE-1, -2 and -L
    metric: Literal["f1", "exact_match", "rouge"]
    # whether a question precedes the text
    questions: bool = True

    @property
    def answer_tokens(self) -> int:
        """The most tokens of an answer without EOS, as in TAPE's code."""
        if self.kind == "summary":
            return 1000
        return 200


# in the order of the TAPE paper's Table 1
DATASETS: Mapping[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        Dataset("qasper", "answer", "f1"),
        Dataset("contract_nli", "answer", "exact_match"),
        Dataset("narrative_qa", "answer", "f1"),
        Dataset("quality", "answer", "exact_match"),
        Dataset("qmsum", "summary", "rouge"),
        Dataset("summ_screen_fd", "summary", "rouge", questions=False),
        Dataset("gov_report", "summary", "rouge", questions=False),
    )
}
MADE = Dataset("stdlib", "answer", "f1")
# the first from training files, the others from held-out
MADE_ROWS = {"train": 2000, "validation": 100, "test": 100}
NAMES = (*DATASETS, MADE.name)
# of an excerpt, around a function's first line
_LINES_BEFORE = 12
_LINES_AFTER = 16


def find(name: str) -> Dataset:
    if name == MADE.name:
        return MADE
    if name not in DATASETS:
        raise UserError(Problem("dataset", name, "no such data set", did_you_mean(name, NAMES)))
    return DATASETS[name]


@dataclass(frozen=True)
class ScrollsRow:
    """One line of a file: a text with one reference answer; None where it is not published."""

    id: str
    input: str
    output: str | None
    # QuALITY's mark of a question that hurried readers got wrong (`is_hard`)
    hard: bool = False


@dataclass(frozen=True)
class Example:
    """One question with all of its reference answers."""

    id: str
    # as published: the question, an empty line, the document; a summary has no question, except in QMSum
    input: str
    # in the order of the file; empty in the split `test`
    outputs: tuple[str, ...]
    hard: bool = False


def read(name: str, split: str, data_dir: str | Path | None = None) -> list[Example]:
    """Return the questions of a split in the file's order, each once.

    Args:
        name: one of :data:`NAMES`.
        split: one of :data:`SPLITS`.
        data_dir: a folder with ``NAME/SPLIT.jsonl`` or ``NAME.zip``, or such a zip file itself; None: the hub's file,
            downloaded into huggingface_hub's cache.
    """
    first: dict[str, ScrollsRow] = {}
    outputs: dict[str, list[str]] = {}
    for row in rows(name, split, data_dir):
        first.setdefault(row.id, row)
        answers = outputs.setdefault(row.id, [])
        if row.output is not None:
            answers.append(row.output)
    return [Example(row.id, row.input, tuple(outputs[row.id]), row.hard) for row in first.values()]


def rows(
    name: str, split: str, data_dir: str | Path | None = None, bad_rows: BadRows | None = None
) -> Iterator[ScrollsRow]:
    """Yield the rows of a split one at a time (a split may have many GB).

    Invalid lines count as ``bad_rows``; by default the first is refused.
    """
    pattern = _locate(name, split, data_dir)
    if pattern is None:
        for row_id, question, answer in made_rows(split):
            output = None if split == WITHOUT_ANSWERS else answer
            yield ScrollsRow(row_id, question, output)
        return
    source = JsonLines(f"jsonl:{pattern}#input", "data_dir")
    source.bad_rows = bad_rows or BadRows()
    source.repair = "give the file as SCROLLS publishes it"
    wanted = ["id", "input"]
    if split != WITHOUT_ANSWERS:
        wanted.append("output")
    is_empty = True
    for place, fields in source.rows(split):
        is_empty = False
        output = None
        if isinstance(fields.get("output"), str):
            output = fields["output"]
        if missing := [column for column in wanted if not isinstance(fields.get(column), str)]:
            wrong = f"has no text under {', '.join(missing)}"
        elif not fields["input"].strip():
            wrong = "has an empty input"
        elif not storage.is_utf8(f"{fields['id']}{fields['input']}{output}"):
            # half of a surrogate pair, as "\ud83d", cannot be tokenised or written
            wrong = "is not Unicode text"
        else:
            yield ScrollsRow(fields["id"], fields["input"], output, fields.get("is_hard") is True)
            continue
        remedy = "each line needs id, input and output, all of them texts"
        source.leave_out(f"{place} {wrong}", remedy)
    if is_empty:
        raise UserError(source.problem("it holds no rows", source.repair))


def made_rows(split: str) -> list[tuple[str, str, str]]:
    """Return (id, question, answer) of the questions about Python's sources, spread over all files."""
    questions = []
    of_files = "train" if split == "train" else "heldout"
    for document in StandardLibrary("stdlib").documents(of_files):
        # as ast counts them: a form feed ends none
        lines = document.text.split("\n")
        nodes = ast.walk(ast.parse(document.text))
        functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
        names = Counter(node.name for node in functions)
        for node in functions:
            parameters = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            arguments = [parameter.arg for parameter in parameters]
            if not arguments or names[node.name] > 1:
                continue
            # the whole head is in the excerpt
            if node.body[0].lineno > node.lineno + _LINES_AFTER:
                continue
            start = max(0, node.lineno - 1 - _LINES_BEFORE)
            excerpt = "\n".join(lines[start : node.lineno - 1 + _LINES_AFTER])
            question = f"Which arguments does the function {node.name} take?\n\n{excerpt}"
            questions.append((f"{document.name}:{node.name}", question, ", ".join(arguments)))
    # every other one, so that validation and test share none
    if split == "validation":
        questions = questions[0::2]
    elif split != "train":
        questions = questions[1::2]
    step = max(1, len(questions) // MADE_ROWS[split])
    return questions[::step][: MADE_ROWS[split]]


def made_fingerprint(split: str) -> str:
    return f"{StandardLibrary('stdlib').fingerprint()}:{MADE_ROWS[split]}"


def fingerprint(name: str, split: str, data_dir: str | Path | None = None) -> str:
    """Hash the split's contents: the checksum of an archive's member, the identity of a plain file."""
    pattern = _locate(name, split, data_dir)
    if pattern is None:
        identity = made_fingerprint(split)
    else:
        (file,) = opening.find(pattern).values()
        member = file.filesystem.info(file.path)
        # of a zip file's member
        if "CRC" in member:
            identity = f"{member['file_size']}:{member['CRC']:08x}"
        else:
            identity = file_identity(Path(file.path))
    return hashlib.sha256(repr((name, split, identity)).encode()).hexdigest()


def check(name: str, splits: tuple[str, ...], data_dir: str | Path | None) -> list[Problem]:
    """Return problems of ``dataset`` and ``data_dir``; nothing is downloaded."""
    try:
        dataset = find(name)
    except UserError as error:
        return error.problems
    if dataset == MADE:
        if data_dir is not None:
            reason = f"{name} is generated, no file is read"
            return [Problem("data_dir", str(data_dir), reason, "remove it")]
        return StandardLibrary("stdlib", "dataset").check()
    # the hub's file is looked for when it is read
    if data_dir is None:
        return []
    problems: list[Problem] = []
    for split in splits:
        with collecting(problems):
            _locate(name, split, data_dir)
    return problems


def _locate(name: str, split: str, data_dir: str | Path | None) -> str | None:
    """Return the path of a split's file, or its URL in an archive, downloaded unless ``data_dir`` is given; None for
    :data:`MADE`."""
    dataset = find(name)
    if split not in SPLITS:
        raise UserError(Problem("split", split, "no such split", did_you_mean(split, SPLITS)))
    if dataset == MADE:
        return None
    member = f"{name}/{split}.jsonl"
    if data_dir is None:
        # from huggingface_hub's cache where it is there
        try:
            archive = Path(hf_hub_download(HUB_REPOSITORY, f"{name}.zip", repo_type="dataset"))
        except UNREADABLE as error:
            # no network, offline mode, no such file
            reason = " ".join(str(error).split())
            reason = f"{HUB_REPOSITORY}/{name}.zip cannot be downloaded: {reason}"
            remedy = f"check the network, or give data_dir: a folder with {name}.zip or {name}/SPLIT.jsonl"
            raise UserError(Problem("dataset", name, reason, remedy)) from error
    else:
        given = paths.of(str(data_dir))
        plain = given / member
        archive = given
        if not given.is_file():
            archive = given / f"{name}.zip"
        if plain.is_file():
            return str(plain)
        if not archive.is_file():
            # of a missing folder the same words for every split, so that they are one problem
            reason = "no such folder"
            if given.is_dir():
                reason = f"no {member} and no {name}.zip there"
            remedy = (
                "give a folder with NAME/SPLIT.jsonl or NAME.zip, or leave it out to use the hub's"
            )
            raise UserError(Problem("data_dir", str(data_dir), reason, remedy))
    pattern = f"zip://{member}::{archive}"
    remedy = "give the zip file as SCROLLS publishes it"
    try:
        (file,) = opening.find(pattern).values()
        is_there = file.filesystem.isfile(member)
    except UNREADABLE as error:
        raise UserError(
            Problem("data_dir", str(archive), f"not a readable zip file ({error})", remedy)
        ) from error
    if not is_there:
        raise UserError(Problem("data_dir", str(archive), f"no file called {member} in it", remedy))
    return pattern
