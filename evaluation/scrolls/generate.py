"""The work of ``python -m evaluation scrolls generate``, described in :mod:`evaluation.scrolls.generate_options`.

Questions, prompts and limits are those of lm-eval's tasks ``tape_scrolls_*``, and texts are written as for any task of
the harness; what is added are the official scorer's files, scores with standard errors, and splits without answers.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from lm_eval.api.task import Task
from lm_eval.tasks import TaskManager

from evaluation import journal, models
from evaluation import options as shared
from evaluation.cost import Cost
from evaluation.harness_options import TASKS
from evaluation.language_model import HarnessModel
from evaluation.models import FoundModel
from evaluation.scrolls import generate_options, official, outcome
from evaluation.scrolls.outcome import AskedSplit
from tape_ds.data.scrolls import datasets, examples
from tape_ds.data.scrolls.datasets import Dataset
from tape_ds.errors import Problem, collecting, command, is_main_process, raise_if_any

NAME = "scrolls"


@command
def main(argv: list[str] | None = None) -> int:
    """Check, write, score, store, print."""
    options = generate_options.parse(argv)
    model, asked, tasks = prepare(options)
    folder = journal.folder(options.output, model)
    evaluation = journal.Evaluation(
        NAME,
        folder,
        model=model.about(),
        config=generate_options.settings(options),
        data={
            f"scrolls:{each.dataset.name}:{options.split}": examples.fingerprint(
                each.dataset.name, options.split, options.data_dir
            )
            for each in asked
        },
        seed=options.seed if options.sample_summaries else None,
    )
    return evaluation.run(
        lambda: write_all(evaluation, options, model, asked, tasks),
        lambda figures: print(outcome.table(figures, options.max_tokens)),
        overwrite=options.overwrite,
        beside=[folder / NAME / f"{each.dataset.name}.json" for each in asked],
    )


def prepare(options: argparse.Namespace) -> tuple[FoundModel, list[AskedSplit], list[Task]]:
    """Return the model, not loaded yet, what it will be asked, and a task for each.

    Raises:
        UserError: everything wrong with the command line.
    """
    problems = generate_options.check(options)
    asked: list[AskedSplit] = []
    for name in options.datasets:
        with collecting(problems, "--{}"):
            dataset = datasets.find(name, "datasets")
            rows = official.read_examples(name, options.split, options.data_dir, options.limit, unanswered=True)
            asked.append(AskedSplit(dataset, tuple(rows)))
    model = models.find(options, problems)
    problems += shared.check_lengths("--max_tokens", [options.max_tokens], model)
    bos = model.tokenizer().bos_token_id
    if options.reference_format and bos is not None and bos == model.tokenizer().eos_token_id:
        wrong = "a model trained so begins its answer with BOS, which is this tokenizer's end of text, too"
        problems.append(Problem("--reference_format", True, wrong, "leave it out"))
    tasks = []
    for each in asked:
        with collecting(problems, "--{}"):
            tasks.append(task_of(each.dataset, options, model.tokenizer_name_or_path))
    raise_if_any(problems)
    return model, asked, tasks


def task_of(dataset: Dataset, options: argparse.Namespace, tokenizer: str) -> Task:
    """lm-eval's task, with the requests of the first ``--limit`` questions.

    Raises:
        UserError: limits that leave no room for a text.
    """
    new_tokens = tokens_of(dataset, options)
    metadata = {
        "split": options.split,
        "data_dir": options.data_dir,
        "max_tokens": options.max_tokens,
        "answer_tokens": new_tokens,
        "tokenizer": tokenizer,
        "trust_remote_code": options.trust_remote_code,
        "reference_format": options.reference_format,
        "unanswered": True,
    }
    manager = TaskManager(include_path=str(TASKS / "scrolls"), include_defaults=False, metadata=metadata)
    name = f"tape_scrolls_{dataset.name}"
    task: Task = manager.load([name])["tasks"][name]
    settings: dict[str, Any] = {"max_gen_toks": new_tokens}
    if options.sample_summaries and dataset.kind == "summary":
        settings |= {"do_sample": True, "temperature": 1.0, "top_k": options.sample_summaries}
    task.set_config("generation_kwargs", settings, update=True)
    task.build_all_requests(limit=options.limit)
    return task


def tokens_of(dataset: Dataset, options: argparse.Namespace) -> int:
    """Return tokens of a text at most."""
    return int(options.summary_tokens if dataset.kind == "summary" else options.answer_tokens)


def write_all(
    evaluation: journal.Evaluation,
    options: argparse.Namespace,
    found: FoundModel,
    asked: Sequence[AskedSplit],
    tasks: Sequence[Task],
) -> dict[str, Any]:
    """Write what no earlier start has written, score it, and store the texts beside the result; the figures."""
    cost = Cost(found.device)
    lm = HarnessModel(
        found,
        batch_size=options.batch_size,
        max_length=options.max_tokens,
        use_cache=options.use_cache,
        seed=options.seed,
        run_jobs=evaluation.run_jobs,
    )
    lm.tasks = {str(task.config.task): task for task in tasks}
    requests = [instance for task in tasks for instance in task.instances]
    texts = iter(lm.generate_until(requests))
    if is_main_process():  # killed from here on, no other evaluation's result stands beside these texts
        evaluation.path.unlink(missing_ok=True)
        official.remove(evaluation.folder / NAME)
    entries: dict[str, dict[str, Any]] = {}
    read, new = 0, 0
    for each, task in zip(asked, tasks, strict=True):
        written = {}
        for instance in task.instances:
            new_tokens = lm.new_tokens[instance.task_name, instance.doc_id]
            written[instance.doc["id"]] = {
                "text": next(texts),
                "prompt_tokens": len(lm.tok_encode(instance.args[0])),
                "cut_tokens": instance.doc["cut_tokens"],
                "new_tokens": new_tokens,
                "ended": new_tokens < tokens_of(each.dataset, options),
            }
        by_id = {id_: entry["text"] for id_, entry in written.items()}
        scores = outcome.scores(each, by_id)
        entries |= outcome.summarise(scores, each.dataset.metric, written, found.known_length)
        read += sum(entry["prompt_tokens"] for entry in written.values())
        new += sum(entry["new_tokens"] for entry in written.values())
        if is_main_process():
            outcome.store(scores, each.dataset.name, by_id, evaluation.folder / NAME)
    taken = cost.taken(prompt_tokens=read, new_tokens=new)
    return {"split": options.split, "datasets": entries, "cost": taken}


if __name__ == "__main__":
    sys.exit(main())
