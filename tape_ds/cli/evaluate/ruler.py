"""RULER: how well a model uses its context, by task and length, without the network.

    tape-ds evaluate ruler runs/demo --lengths 4k 8k 16k
    tape-ds evaluate ruler smollm2 --lengths 4k 8k --tasks niah_multikey_2 vt --samples 25
    tape-ds evaluate ruler MODEL --chat --lengths 32k 64k 128k --gpus 8
    tape-ds evaluate ruler MODEL --haystack "text:essays/*.txt" --squad dev-v2.0.json
    tape-ds evaluate ruler runs/demo --against runs/evaluation/smollm2      differences from the base

Texts, answers and scores are those of the installed lm-eval, but prompt and reply together never exceed the length,
whatever the tokenizer. Five tasks hide needles in essays: --haystack names them, in place of which this command has
texts of an installed package. Numbers with another haystack do not compare. The two tasks about documents are asked
if --squad and --hotpot name their files. Replies are greedy.

--questions_per_text 5 asks tasks whose texts hold several keys (niah_multikey_1, 2 and 3) 5 questions about each text,
which is read once; --samples stays the number of questions, and intervals are those of texts.

Effective lengths, by RULER's threshold (85.6 %) and by the model's own (85 % of its score at the shortest length), come
with the probability that they are reached. Written to the folder of results: ``ruler.json`` (every reply),
``ruler.csv``, ``ruler.md``, ``ruler.png``. An interrupted evaluation resumes with the next question when the same
command is started again. Exit codes: 0 done; 2 a mistake.
"""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tape_ds import storage
from tape_ds.arguments import Parser, add_model, add_output, below_one, length, values_of
from tape_ds.errors import (
    Problem,
    UserError,
    collecting,
    command,
    did_you_mean,
    is_main_process,
    raise_if_any,
)
from tape_ds.scoring import CHUNK

if TYPE_CHECKING:
    from tape_ds.data.sources import Source
    from tape_ds.results import Result
    from tape_ds.scoring.models import FoundModel
    from tape_ds.scoring.ruler_questions import DrawnTask, RulerQuestion

NAME = "ruler"
LENGTHS = (4096, 8192, 16384)
SAMPLES = 25
INTERVALS = (
    "scores: Wilson's for the effective number of questions (Korn and Graubard 1998), since those of one text are not "
    "independent; means, differences and probabilities: texts are resampled"
)


@command
def main(argv: list[str] | None = None) -> int:
    """Check, draw, ask, count, write, print."""
    options, problems = parse(argv)

    from tape_ds.scoring import (
        heat_maps,
        models,
        resumable,
        ruler_base,
        ruler_questions,
        ruler_tables,
    )
    from tape_ds.scoring.resumable import Cost

    tasks = choose_tasks(options, problems)
    per_text = share_texts(options, tasks, problems)
    base: Result | None = None
    if options.against is not None:
        with collecting(problems):
            base = ruler_base.read(options.against)
            problems += ruler_base.check(options, base)
    found_model: FoundModel | None = None
    with collecting(problems):
        found_model = models.find(options)
    # its tokenizer measures everything else
    if found_model is None:
        raise UserError(problems)
    problems += models.check_lengths("--lengths", options.lengths, found_model)
    problems += check_sharing(options, found_model)
    drawn, source = draw(options, per_text, found_model, problems)

    questions: list[RulerQuestion] = []
    for task_drawn in drawn:
        questions += task_drawn.questions
    # the base is compared on the questions that both have
    base_replies = None
    not_compared: list[str] = []
    if base is not None:
        split = splitter(tasks)
        base_replies, not_compared = ruler_base.common(
            options.against, base, questions, source, split
        )
    # What decides a number is stored with it. Other splitters give other sentences, and other places for needles.
    config = values_of(options, ("lengths", "samples", "chat", "chunk"))
    config |= {"tasks": tasks, "sentences": splitter(tasks)}
    # only where it is used: stored results of earlier versions stay those of the same evaluation
    shared = options.questions_per_text > 1
    if shared:
        config["questions_per_text"] = options.questions_per_text
    data = {"questions": ruler_questions.fingerprint(questions), source.spec: source.fingerprint()}
    if options.against is not None:
        data["against"] = storage.digest(ruler_base.file_of(options.against))
    work = resumable.Evaluation(
        NAME,
        resumable.folder(options.output, found_model),
        model=found_model.about(),
        config=config,
        data=data,
        seed=options.seed,
    )
    models.print_notes(found_model, options.lengths)
    title = f"RULER: {found_model.name_or_path} ({'chat' if options.chat else 'base'})"

    def ask_all() -> dict[str, Any]:
        from tape_ds.scoring import ruler
        from tape_ds.scoring.questions import grouped

        model = found_model.load()
        cost = Cost(found_model.device)
        texts = grouped(questions, attrgetter("task", "length", "text"))
        longest_first = sorted(texts, key=lambda asked: -len(asked[0].ids))
        ask = partial(answer, model, found_model.tokenizer(), options.chunk)
        answered = work.run_jobs([(asked[0].name, asked) for asked in longest_first], ask)
        replies = []
        for asked in texts:
            for question, row in zip(asked, answered[asked[0].name], strict=True):
                replies.append(placed(question, row, shared))
        figures = ruler.figures(replies, seed=options.seed, against=base_replies)
        room: dict[str, list[int]] = {task: [] for task in tasks}
        for task_drawn in drawn:
            room[task_drawn.questions[0].task].append(task_drawn.room)
        figures |= {"haystack": source.spec, "not_asked": not_asked(tasks), "room": room}
        if shared:
            figures |= {"questions_per_text": per_text, "intervals": INTERVALS}
        if options.against is not None:
            figures |= {"against": options.against, "not_compared": not_compared}
        tokens = sum(tokens_read(asked) for asked in texts)
        return {**figures, "cost": cost.taken(prompt_tokens=tokens)}

    def show(figures: Mapping[str, Any]) -> None:
        written = ruler_tables.write(figures, work.folder, title)
        print(f"\n{title}\n\n{ruler_tables.summary(figures)}\n\n{ruler_tables.table(figures)}\n")
        print(", ".join(map(str, written)))

    if is_main_process():
        print(f"{NAME}: {len(questions):,} questions of {len(tasks)} tasks", flush=True)
        if shared:
            print(f"{NAME}: {ruler_tables.per_text(per_text)}", flush=True)
        for left_out in not_compared:
            print(f"{NAME}: not compared with {options.against}: {left_out}", flush=True)
    return work.run(
        ask_all, show, overwrite=options.overwrite, tables=heat_maps.files(work.folder, NAME)
    )


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[Problem]]:
    """Return the options, and what is wrong with them whatever the model."""
    parser = Parser(prog="tape-ds evaluate ruler", description=__doc__)
    add_model(parser)
    add_output(parser)
    group = parser.add_argument_group("RULER")
    group.add_argument(
        "--lengths",
        type=length,
        nargs="+",
        default=list(LENGTHS),
        metavar="N",
        help="tokens of prompt and reply, such as 4096 or 4k (default: 4k 8k 16k)",
    )
    group.add_argument(
        "--tasks", nargs="+", metavar="TASK", help="default: all whose data are there"
    )
    group.add_argument(
        "--samples",
        type=int,
        default=SAMPLES,
        help="of each task and length, 500 at most (default: %(default)s)",
    )
    group.add_argument(
        "--questions_per_text",
        type=int,
        default=1,
        metavar="K",
        help="about each text that holds several keys, which is then read once (default: 1)",
    )
    group.add_argument(
        "--chat", action="store_true", help="ask in the form of the model's chat template"
    )
    group.add_argument(
        "--haystack", metavar="SPEC", help="data of the essays' place, as in recipes"
    )
    group.add_argument(
        "--squad", metavar="FILE", help="SQuAD's dev-v2.0.json, for the task qa_squad"
    )
    group.add_argument(
        "--hotpot", metavar="FILE", help="HotpotQA's hotpot_dev_distractor_v1.json, for qa_hotpot"
    )
    group.add_argument(
        "--against",
        metavar="FOLDER",
        help="results of another model, or their ruler.json, to compare with",
    )
    group.add_argument(
        "--chunk",
        type=int,
        default=CHUNK,
        help="tokens of a prompt read at once (default: %(default)s)",
    )
    options = parser.parse_args(argv)
    problems = below_one(options, "chunk", "samples", "questions_per_text")
    if options.questions_per_text > max(1, options.samples):
        wrong = f"more than the questions of a task and length (--samples {options.samples})"
        remedy = f"give {max(1, options.samples)} or less, or more --samples"
        problems.append(Problem("--questions_per_text", options.questions_per_text, wrong, remedy))
    if options.seed < 0:
        problems.append(Problem("--seed", options.seed, "below 0", "give 0 or more"))
    for name in ("lengths", "tasks"):
        given = getattr(options, name) or []
        if len(set(given)) < len(given):
            problems.append(Problem(f"--{name}", given, "one is given twice", "give each once"))
    options.lengths = sorted(set(options.lengths))
    return options, problems


def choose_tasks(options: argparse.Namespace, problems: list[Problem]) -> list[str]:
    """Return the tasks to ask, in RULER's order."""
    from tape_ds.scoring.ruler_generators import QA_FILES, tasks

    missing = {task: name for task, name in QA_FILES.items() if getattr(options, name) is None}
    if options.tasks is None:
        return [task for task in tasks() if task not in missing]
    for task in options.tasks:
        if task not in tasks():
            problems.append(
                Problem("--tasks", task, "not a task of RULER", did_you_mean(task, tasks()))
            )
        elif task in missing:
            remedy = f"give --{missing[task]} FILE, or leave the task out"
            problems.append(
                Problem("--tasks", task, "its questions are in a file that is not named", remedy)
            )
    for task, name in QA_FILES.items():
        if task not in missing and task not in options.tasks:
            problems.append(
                Problem(f"--{name}", getattr(options, name), f"{task} is not asked", "leave it out")
            )
    return [task for task in tasks() if task in options.tasks]


def share_texts(
    options: argparse.Namespace, tasks: Sequence[str], problems: list[Problem]
) -> dict[str, int]:
    """Return how many questions are asked about each text, by task."""
    from tape_ds.scoring.ruler_generators import keys_in_text

    asked = max(1, options.questions_per_text)
    per_text = {}
    for task in tasks:
        per_text[task] = asked if keys_in_text(task) > 1 else 1
    if asked > 1 and tasks and max(per_text.values()) == 1:
        wrong = "no text of these tasks holds several keys to ask about one by one"
        problems.append(Problem("--questions_per_text", asked, wrong, "leave it out"))
    return per_text


def check_sharing(options: argparse.Namespace, model: "FoundModel") -> list[Problem]:
    """Return a problem if this model cannot read a text once for several questions."""
    from tape_ds.scoring import replies

    if options.questions_per_text <= 1:
        return []
    reason = replies.why_unshared(model.changed or model.config)
    if reason is None:
        return []
    wrong = f"{model.name_or_path} would answer otherwise than to each prompt alone: {reason}"
    return [Problem("--questions_per_text", options.questions_per_text, wrong, "leave it out")]


def draw(
    options: argparse.Namespace,
    per_text: Mapping[str, int],
    model: "FoundModel",
    problems: list[Problem],
) -> tuple[list["DrawnTask"], "Source"]:
    """Return the questions of every task and length, and the haystack.

    Raises:
        UserError: with ``problems`` and all that is wrong here.
    """
    from tape_ds.data.sources import parse_all
    from tape_ds.scoring import ruler_questions
    from tape_ds.scoring.ruler_generators import QA_FILES, Generators, hides_in_essays

    tasks = list(per_text)
    has_essays = any(map(hides_in_essays, tasks))
    spec = options.haystack or ruler_questions.HAYSTACK
    sources: list[Source] = []
    texts: list[str] = []
    with collecting(problems):
        sources = parse_all([spec], "--haystack")
        if sources[0].tokenised:
            wrong = "it holds token ids, and needles are hidden in texts"
            raise_if_any([Problem("--haystack", spec, wrong, "name the texts")])
        if has_essays:
            texts = [document.text for document in sources[0].documents("heldout")]
    if options.haystack is not None and tasks and not has_essays:
        problems.append(
            Problem("--haystack", spec, "no task hides needles in essays", "leave it out")
        )
    files = {}
    for name, file in values_of(options, QA_FILES.values()).items():
        if file is not None:
            files[name] = Path(file)
    generators = Generators(lambda: texts, files)
    problems += generators.check_qa()
    tokenizer = model.tokenizer()
    if options.chat and tokenizer.chat_template is None:
        wrong = "the tokenizer has no chat template"
        problems.append(
            Problem("--chat", True, wrong, "leave it out, or name a --tokenizer that has one")
        )
    with collecting(problems, "--{}"):
        raise_if_any(
            ruler_questions.check(
                per_text, options.lengths, options.samples, tokenizer, texts, spec
            )
        )
    # before texts are made, which takes seconds for long ones
    raise_if_any(problems)
    drawn: list[DrawnTask] = []
    with collecting(problems, "--{}"):
        # with seed 0, the default, lm-eval's own seeds
        form = {"chat": options.chat, "seed": options.seed or None}
        drawn = ruler_questions.draw_all(
            generators, per_text, tokenizer, options.lengths, options.samples, **form
        )
    raise_if_any(problems)
    return drawn, sources[0]


def answer(
    model: Any, tokenizer: Any, chunk: int, asked: Sequence["RulerQuestion"]
) -> list[dict[str, Any]]:
    """Return the rows of the questions about a text."""
    from tape_ds.scoring import models, questions
    from tape_ds.scoring.ruler_questions import RULER

    with models.used_at(model, questions.tokens_needed(asked)):
        return questions.answer(RULER, model, tokenizer, asked, chunk=chunk)


def placed(question: "RulerQuestion", row: Mapping[str, Any], shared: bool) -> dict[str, Any]:
    """Return what is stored of a question and its reply."""
    place = {"task": question.task, "length": question.length, "question": question.number}
    if shared:
        place["text"] = question.text
    return {**place, **row}


def tokens_read(asked: Sequence["RulerQuestion"]) -> int:
    """Return the tokens of a text and its questions, each read once."""
    from tape_ds.scoring.replies import shared_beginning

    if len(asked) == 1:
        return len(asked[0].ids)
    shared = shared_beginning([question.ids for question in asked])
    return shared + sum(len(question.ids) - shared for question in asked)


def splitter(tasks: Sequence[str]) -> str | None:
    """Return the name of what splits the haystack into sentences; None if there is none to split."""
    from tape_ds.scoring.ruler_generators import hides_in_essays, sentence_splitter

    if any(map(hides_in_essays, tasks)):
        return sentence_splitter()[0]
    return None


def not_asked(tasks: Sequence[str]) -> list[str]:
    from tape_ds.scoring.ruler_generators import tasks as all_tasks

    return [task for task in all_tasks() if task not in tasks]
