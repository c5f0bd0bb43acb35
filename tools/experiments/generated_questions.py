"""Ask a model the questions of generated documents (docs/retrieval.md), at any length.

    python -m tools.experiments.generated_questions runs/mine --lengths 512 1k 2k --samples 100 \\
        --ask 'in text=generated:retrieval#families=lookup&rivals=8&text=stdlib' \\
        --ask 'among records=generated:retrieval#families=lookup' --output runs/mine/evaluation/retrieval

For models of which RULER, whose texts have 1,024 tokens and more of English, asks too much. ``--ask NAME=SPEC`` names
the documents of one kind, whose text is the held-out split of its data. A document has exactly the length with a text,
or nearly it without; its questions are of the seed and the document's number, so all models are asked the same.

An answer is right when each of its tokens, the end of its line included, is the most likely one after those before it:
what greedy decoding would write (:mod:`tape_ds.scoring.exact_match`). Later questions of a document follow the right
answers of earlier ones; intervals are of documents. Written to ``--output``: ``retrieval.json``, with every answer.
Exit codes: 0 done; 2 bad input.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tape_ds import paths
from tape_ds.arguments import Parser, add_model, add_output, below_one, length
from tape_ds.data.retrieval.documents import RetrievalDocument
from tape_ds.data.retrieval.sequences import RetrievalForm, RetrievalSequences, writer_of
from tape_ds.data.sources import parse
from tape_ds.data.sources.generated import FIELD, GeneratedDocuments
from tape_ds.errors import Problem, UserError, collecting, command, raise_if_any
from tape_ds.markdown_table import markdown_table
from tape_ds.scoring import losses, models, resumable, ruler

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

NAME = "retrieval"
SAMPLES = 100


@dataclass(frozen=True)
class AskedDocument:
    """One document of a kind at a length."""

    kind: str
    length: int
    number: int
    document: RetrievalDocument

    @property
    def name(self) -> str:
        return f"{self.kind} length {self.length} document {self.number}"


@command
def main(argv: list[str] | None = None) -> int:
    options, problems = parse_options(argv)
    found_model: models.FoundModel | None = None
    with collecting(problems):
        found_model = models.find(options)
    # its tokenizer writes the documents
    if found_model is None:
        raise UserError(problems)
    problems += models.check_lengths("--lengths", options.lengths, found_model)
    sources = sources_of(options.ask, problems)
    raise_if_any(problems)
    tokenizer = found_model.tokenizer()
    with collecting(problems):
        asked = draw(sources, tokenizer, options)
    raise_if_any(problems)
    config = {"lengths": options.lengths, "samples": options.samples, "asked": dict(options.ask)}
    work = resumable.Evaluation(
        NAME,
        resumable.folder(options.output, found_model),
        model=found_model.about(),
        config=config,
        data={source.spec: source.fingerprint() for source in sources.values()},
        seed=options.seed,
    )

    def ask_all() -> dict[str, Any]:
        model = found_model.load()
        cost = resumable.Cost(found_model.device)
        longest_first = sorted(asked, key=lambda each: -each.length)
        answered = work.run_jobs(
            [(each.name, each) for each in longest_first], partial(answer, model)
        )
        replies = [row for each in asked for row in answered[each.name]]
        figures = ruler.figures(replies, seed=options.seed)
        tokens = sum(len(each.document.ids) for each in asked)
        return {**figures, "cost": cost.taken(prompt_tokens=tokens)}

    def show(figures: Mapping[str, Any]) -> None:
        rows = []
        for cell in figures["cells"]:
            row = [cell["task"], f"{cell['length']:,}", str(cell["samples"])]
            for name in ("score", "low", "high"):
                row.append(f"{100 * cell[name]:.1f}")
            rows.append(row)
        print(markdown_table(["documents", "tokens", "questions", "right, %", "low", "high"], rows))

    print(f"{NAME}: {len(asked):,} documents", flush=True)
    return work.run(ask_all, show, overwrite=options.overwrite)


def parse_options(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[Problem]]:
    parser = Parser(prog="python -m tools.experiments.generated_questions", description=__doc__)
    add_model(parser)
    add_output(parser)
    parser.add_argument(
        "--ask",
        action="append",
        required=True,
        metavar="NAME=SPEC",
        help="a kind of documents, such as 'dense=generated:retrieval#families=lookup'",
    )
    parser.add_argument("--lengths", type=length, nargs="+", required=True, metavar="N")
    parser.add_argument(
        "--samples", type=int, default=SAMPLES, help="documents of each kind and length"
    )
    options = parser.parse_args(argv)
    problems = below_one(options, "samples")
    if options.seed < 0:
        problems.append(Problem("--seed", options.seed, "below 0", "give 0 or more"))
    options.lengths = sorted(set(options.lengths))
    options.ask = [tuple(given.partition("=")[::2]) for given in options.ask]
    return options, problems


def sources_of(
    asked: Sequence[tuple[str, str]], problems: list[Problem]
) -> dict[str, GeneratedDocuments]:
    """Return the source of each kind by its name, and add what is wrong to ``problems``."""
    sources: dict[str, GeneratedDocuments] = {}
    for name, spec in asked:
        given = f"{name}={spec}"
        if not name or not spec or name in sources:
            wrong = "not another NAME=SPEC"
            problems.append(Problem("--ask", given, wrong, "give each kind a name of its own"))
            continue
        with collecting(problems):
            # a recipe's field: elsewhere such documents are refused
            source = parse(spec, FIELD)
            problems += source.check()
            if isinstance(source, GeneratedDocuments):
                sources[name] = source
            else:
                remedy = "name documents: NAME=generated:retrieval#OPTIONS"
                problems.append(Problem("--ask", given, "it asks nothing", remedy))
    return sources


def draw(
    sources: Mapping[str, GeneratedDocuments],
    tokenizer: "PreTrainedTokenizerBase",
    options: argparse.Namespace,
) -> list[AskedDocument]:
    """Return the documents of every kind at every length. Raises :class:`UserError`."""
    drawn = []
    for kind, source in sources.items():
        writer = writer_of(source, tokenizer, paths.data_cache(None), split="heldout")
        for tokens in options.lengths:
            form = RetrievalForm(tokens, single=True)
            made = RetrievalSequences(
                source, writer, form, samples=options.samples, seed=options.seed
            )
            for number in range(options.samples):
                (document,) = made.documents(number)
                drawn.append(AskedDocument(kind, tokens, number, document))
    return drawn


def answer(model: "PreTrainedModel", asked: AskedDocument) -> list[dict[str, Any]]:
    """Return a row for each question of a document."""
    document = asked.document
    ids_1T = torch.from_numpy(document.ids)[None]
    with models.used_at(model, len(document.ids)):
        nll_1N, foreseen_1N = losses.target_losses(model, ids_1T, first=document.asked_at)
    places = np.flatnonzero(document.is_answer)
    # a question is between two answers
    answers = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
    rows = []
    for number, (tokens, text) in enumerate(zip(answers, document.answers, strict=True)):
        own = torch.from_numpy(tokens - document.asked_at)
        rows.append(
            {
                "task": asked.kind,
                "length": asked.length,
                "question": number,
                "text": asked.number,
                "family": document.family,
                "rivals": document.rivals,
                "tokens": len(document.ids),
                "answers": [text],
                "nll": float(nll_1N[0, own].mean()),
                "score": float(foreseen_1N[0, own].all()),
            }
        )
    return rows


if __name__ == "__main__":
    sys.exit(main())
