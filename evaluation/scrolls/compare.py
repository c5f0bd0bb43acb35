"""What several checkpoints answer to the same questions, side by side: Table 10 of TAPE's paper, for any data set.

    python -m evaluation scrolls generate runs/scrolls/tape --datasets quality
    python -m evaluation scrolls generate runs/scrolls/rope --datasets quality
    python -m evaluation scrolls compare TAPE=runs/scrolls/tape/evaluation RoPE=runs/scrolls/rope/evaluation
    python -m evaluation scrolls compare a.json b.json --dataset qasper --ids ID1 ID2 --output runs/answers

Each RESULTS is the folder that ``generate`` wrote, or a file of predictions in the official form (texts by id), and a
name before it is what its row is called. All must have answered the same questions of one split, asked in the same
way: where they differ it is said, and nothing is written. Of a file beside which ``generate`` left no record only the
ids are known. Questions are shown evenly spread over those that were answered, whatever the answers are; --ids names
others.

Scores are of the official normalisation: exact match and F1 of an answer, ROUGE of a summary. Written to --output:
``answers.html`` and ``answers.json``. Exit codes: 0 done; 2 something to mend.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evaluation import options as shared
from evaluation.pages import columns, html
from evaluation.scrolls import official
from tape_ds import results, storage
from tape_ds.arguments import Parser, below_one
from tape_ds.data.scrolls import datasets, examples
from tape_ds.data.scrolls.examples import Example
from tape_ds.data.selection import spread
from tape_ds.errors import Problem, UserError, check_folder, collecting, command, is_main_process, raise_if_any
from tape_ds.scoring import text_overlap

NAME = "answers"
RECORD = "scrolls.json"
"""What ``generate`` writes beside its folder of predictions."""
ASKED_ALIKE = ("max_tokens", "answer_tokens", "summary_tokens", "reference_format", "sample_summaries")
"""Settings of ``generate`` that decide prompts and texts."""
BEGINNING = 200
"""Characters of a document by which it is known."""
METRICS = {"answer": ("exact_match", "f1"), "summary": ("rouge",)}
"""What is told of a text, by the kind of data set."""


class Answers(NamedTuple):
    """One checkpoint's texts, and how they came about."""

    name: str
    path: Path
    texts: dict[str, str]
    record: results.Result | None
    """None: not known."""


@command
def main(argv: list[str] | None = None) -> int:
    """Read, check that all answered the same, score, write, print."""
    given = sys.argv[1:] if argv is None else argv
    options = parse(given)
    found, asked, shown = prepare(options)
    if not is_main_process():
        return 0
    begun = results.collect(
        command=["python", "-m", "evaluation", "scrolls", "compare", *given],
        config={"evaluation": NAME, "dataset": options.dataset, "split": options.split, "results": options.results},
        data={str(each.path): storage.digest(each.path) for each in found},
    )
    result = begun.finish(compare(options.dataset, found, asked, shown) | {"split": options.split})
    folder = Path(options.output)
    results.save(result, folder / f"{NAME}.json")
    storage.write_text(folder / f"{NAME}.html", page(result.figures))
    for name, scores in result.figures["scores"].items():
        scored = [f"{html.METRICS[metric]} {scores[metric]['score']:.2f}" for metric in result.figures["metrics"]]
        print(f"{name}: {', '.join(scored)} over {scores['examples']:,} questions")
    print(f"written: {folder / NAME}.html and .json", flush=True)
    return 0


def prepare(options: argparse.Namespace) -> tuple[list[Answers], list[Example], list[Example]]:
    """Everybody's texts, the questions that they answer, and those that are shown.

    Raises:
        UserError: everything wrong with either, and each way in which they do not compare.
    """
    problems = below_one(options, "questions") + check_folder("--output", options.output)
    found: list[Answers] = []
    for argument in options.results:
        with collecting(problems, "RESULTS"):
            found.append(read(argument, options.dataset))
    asked: list[Example] = []
    with collecting(problems, "--{}"):
        asked = official.read_examples(options.dataset, options.split, options.data_dir)
    names = [each.name for each in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    problems += [Problem("RESULTS", name, "two are called so", "write NAME=PATH") for name in twice]
    if asked:
        problems += _unlike(found, options) + _other_ids(found, asked)
    raise_if_any(problems)
    answered = [example for example in asked if example.id in found[0].texts]
    known = {example.id: example for example in answered}
    unknown = [each for each in options.ids or () if each not in known]
    raise_if_any([Problem("--ids", each, "nobody was asked this", "name ids of the predictions") for each in unknown])
    evenly = [answered[place] for place in spread(len(answered), options.questions)]
    return found, answered, [known[each] for each in options.ids] if options.ids else evenly


def read(argument: str, dataset: str) -> Answers:
    """``[NAME=]FOLDER`` of ``generate``, or ``[NAME=]FILE`` of predictions.

    Raises:
        UserError: there are none of this data set, or they are not readable.
    """
    if not storage.is_utf8(argument):
        raise UserError(Problem("RESULTS", storage.shown(argument), "is not UTF-8", "write NAME=PATH in UTF-8"))
    name, rest = shared.named(argument)
    path = Path(rest)
    file = path / "scrolls" / f"{dataset}.json" if path.is_dir() else path
    if path.is_dir() and not file.is_file():
        wrong = f"no scrolls/{dataset}.json in this folder"
        remedy = f"name what generate wrote: python -m evaluation scrolls generate MODEL --datasets {dataset}"
        raise UserError(Problem("RESULTS", argument, wrong, remedy))
    texts = official.read_predictions(file)
    beside = file.parent.parent / RECORD
    record = results.load(beside) if file.parent.name == "scrolls" and beside.is_file() else None
    return Answers(name or columns.name_of(path), file, texts, record)


def _unlike(found: Sequence[Answers], options: argparse.Namespace) -> list[Problem]:
    """Records that say another split, other questions or other prompts than the command or than the first of them."""
    source = f"scrolls:{options.dataset}:{options.split}"
    wanted = {
        "--split": options.split,
        "the fingerprint of its questions": examples.fingerprint(options.dataset, options.split, options.data_dir),
    }
    problems = []
    for each in found:
        if each.record is None:
            continue
        own = dict(zip(wanted, (each.record.config.get("split"), each.record.data.get(source)), strict=False))
        own |= {f"--{name}": each.record.config.get(name) for name in ASKED_ALIKE}
        wanted = own | wanted  # how prompts are made is the first one's to say
        for name, value in own.items():
            if value != wanted[name]:
                wrong = f"{name} was {value}, not {wanted[name]}"
                problems.append(
                    Problem("RESULTS", each.name, wrong, "generate all alike, and name that split and data")
                )
    return problems


def _other_ids(found: Sequence[Answers], asked: Sequence[Example]) -> list[Problem]:
    """Ids that the split lacks, and ids that one has answered and another has not."""
    known = {example.id: None for example in asked}
    everybody = [id_ for id_ in known if any(id_ in each.texts for each in found)]
    problems = []
    for each in found:
        if redundant := [id_ for id_ in each.texts if id_ not in known]:
            wrong = f"{len(redundant)} ids are no questions of this split: {official.some(redundant)}"
            problems.append(Problem("RESULTS", each.name, wrong, "check --dataset and --split"))
        if missing := [id_ for id_ in everybody if id_ not in each.texts]:
            wrong = f"{len(missing)} ids have no prediction, which others have answered: {official.some(missing)}"
            problems.append(Problem("RESULTS", each.name, wrong, "generate with the same --limit"))
    if found and not everybody:
        problems.append(Problem("RESULTS", len(found), "they hold no answer", "check --dataset and --split"))
    return problems


def compare(
    dataset: str, found: Sequence[Answers], asked: Sequence[Example], shown: Sequence[Example]
) -> dict[str, Any]:
    """Return figures: every checkpoint's scores over all that was asked, and its texts for what is shown."""
    about = datasets.find(dataset)
    metrics = METRICS[about.kind]
    references = [example.outputs for example in asked]
    scores = {}
    for each in found:
        texts = [each.texts[example.id] for example in asked]
        scored = {metric: text_overlap.score(metric, texts, references) for metric in metrics}
        scores[each.name] = {
            "examples": len(asked),
            "recorded": each.record is not None,
            **{m: {"score": score.score, "standard_error": score.standard_error} for m, score in scored.items()},
        }
    questions = [
        {
            "id": example.id,
            "question": question(example.input, about),
            "references": list(example.outputs),
            "answers": {each.name: _answer(each.texts[example.id], example, metrics) for each in found},
        }
        for example in shown
    ]
    return {"dataset": dataset, "metrics": list(metrics), "scores": scores, "questions": questions}


def _answer(text: str, example: Example, metrics: Sequence[str]) -> dict[str, Any]:
    """Return a text and its own scores, in percent."""
    rules = {metric: text_overlap.METRICS[metric] for metric in metrics}
    return {"text": text} | {m: 100 * rule.score([rule.best(text, example.outputs)]) for m, rule in rules.items()}


def page(figures: Mapping[str, Any]) -> str:
    """Return the scores over all questions, and a table for each question that is shown, as HTML."""
    metrics, scores = figures["metrics"], figures["scores"]
    heads = [html.METRICS[metric] for metric in metrics]
    rows, warnings = [], []
    for name, each in scores.items():
        cells = [html.number(each[metric]["score"], each[metric]["standard_error"], 2) for metric in metrics]
        rows.append([name, *cells, f"{each['examples']:,}"])
        warnings += [] if each["recorded"] else [html.warning(f"How its prompts were made is not recorded: {name}.")]
    caption = "All questions, 0 to 100, higher is better, ± standard error"
    sections = {"All questions": [html.table(caption, ["checkpoint", *heads, "questions"], rows), *warnings]}
    for number, asked in enumerate(figures["questions"], 1):
        right = "Right: " + " / ".join(f"“{each}”" for each in asked["references"])
        rows = [
            [name, each["text"] or "(nothing)", *(html.number(each[metric], places=1) for metric in metrics)]
            for name, each in asked["answers"].items()
        ]
        table = html.table(f"Answers to {asked['id']}", ["checkpoint", "answer", *heads], rows)
        sections[f"Question {number}"] = [html.note(asked["question"]), html.note(right), table]
    intro = f"{figures['dataset']} of SCROLLS, {figures['split']} split; questions shown: {len(figures['questions'])}"
    return html.page("Answers side by side", intro, sections)


def question(text: str, dataset: datasets.Dataset) -> str:
    """Return what is asked in a text that goes on with a document: its first paragraph, and QuALITY's four choices.
    Where the document is all there is, how it begins."""
    if not dataset.questions:
        return f"Summarise the text that begins: {' '.join(text[:BEGINNING].split())}"
    first, *others = text.split("\n\n")
    choices = others[:1] if others and others[0].lstrip().startswith("(A)") else []
    return "\n".join([first.strip(), *(each.strip() for each in choices)])


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the command's options."""
    parser = Parser(prog="python -m evaluation scrolls compare", description=__doc__)
    parser.add_argument("results", nargs="+", metavar="RESULTS", help="folder or file of predictions, [NAME=]PATH")
    parser.add_argument(
        "--dataset",
        default="quality",
        metavar="NAME",
        help=f"one of: {', '.join(datasets.available())}; default: quality",
    )
    shared.add_questions(parser)
    parser.add_argument("--questions", type=int, default=5, metavar="N", help="shown (default: 5)")
    parser.add_argument("--ids", nargs="+", metavar="ID", help="show these questions instead")
    parser.add_argument("--output", default=f"runs/{NAME}", help="folder (default: %(default)s)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
