"""lm-eval's tasks of one evaluation, loaded and fingerprinted before any model; its results as this project stores
them; and the texts of SCROLLS' tasks as the benchmark takes them."""

import hashlib
import json
import os
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from lm_eval.evaluator_utils import get_sample_size
from lm_eval.utils import handle_non_serializable, set_torch_seed

from tape_ds import storage
from tape_ds.data.scrolls import examples as scrolls
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.markdown_table import markdown_table

if TYPE_CHECKING:
    from lm_eval.config.evaluate_config import EvaluatorConfig

TASKS = Path(__file__).parent / "tasks"
"""Tasks of this project, always included."""
PREFERRED = ("acc_norm", "acc", "exact_match", "f1", "rouge")
"""Main metric of a task, the first it has; else its first. ``acc_norm`` divides log-likelihoods by the answers'
lengths: ARC and HellaSwag are published with it."""
NOT_RUN = -1
"""RULER's value for a length that was not asked for."""
SCROLLS, SCROLLS_TASK = "scrolls", "tape_scrolls_"


class LoadedTasks:
    """A task manager that returns its loaded tasks to lm-eval, so that they can be checked before."""

    def __init__(self, manager: Any, loaded: Any):
        self.manager = manager
        self.loaded = loaded
        self.tasks: dict[str, Any] = loaded["tasks"]
        """By name, those of groups included."""

    def load(self, names: Sequence[str]) -> Any:
        return self.loaded

    def __getattr__(self, name: str) -> Any:
        return getattr(self.manager, name)

    def fingerprints(self, num_fewshot: int | None) -> dict[str, str]:
        """Return the SHA-256 of each task: its configuration and documents, without paths and addresses in memory."""
        found = {}
        for name, task in sorted(self.tasks.items()):
            config = task.dump_config()
            places = ("config_source", "tokenizer", "max_tokens")  # the documents depend on max_tokens
            config["metadata"] = {
                key: each for key, each in (config.get("metadata") or {}).items() if key not in places
            }
            described = json.dumps(config, sort_keys=True, default=handle_non_serializable)
            digest = hashlib.sha256(re.sub(r" at 0x[0-9a-f]+", "", described).encode())
            for documents in (task.eval_docs, task.fewshot_docs() if _shots(task, num_fewshot) else []):
                for document in documents:
                    digest.update(json.dumps(document, sort_keys=True, default=handle_non_serializable).encode())
            found[name] = digest.hexdigest()
        return found


def load(config: "EvaluatorConfig") -> LoadedTasks:
    """Return the tasks that ``config`` names, with their data."""
    # as lm-eval does before it loads tasks: some draw their texts, which must be the same in every process
    for seed, set_seed in zip(config.seed, (random.seed, np.random.seed, set_torch_seed), strict=False):
        if seed is not None:
            set_seed(seed)
    config.include_path = [str(TASKS), *([config.include_path] if config.include_path else [])]
    names = " ".join(config.tasks)
    try:
        manager = config.process_tasks(config.metadata)
        loaded = LoadedTasks(manager, manager.load(config.tasks))
        problems = [problem for name, task in loaded.tasks.items() for problem in _check(name, task, config)]
    except UserError:
        raise
    except Exception as error:  # tasks are code and data of others, and raise anything
        reason = " ".join(str(error).split())[:400]
        wrong = f"cannot be loaded ({type(error).__name__}: {reason})"
        remedy = "check the names (lm_eval ls tasks) and what it needs: the hub, a package, data with a row, --metadata"
        if "tokenizer" not in config.metadata:
            remedy += "; or give --trust_remote_code, since texts that depend on the tokenizer need its code"
        raise UserError(Problem("--tasks", names, wrong, remedy)) from error
    raise_if_any(problems)
    return loaded


def _shots(task: Any, num_fewshot: int | None) -> int:
    """Return the number of examples before each question; ``num_fewshot`` does not reach tasks that are made for 0."""
    own: int | None = getattr(task.config, "num_fewshot", None)
    return (own or 0) if own == 0 or num_fewshot is None else num_fewshot


def _check(name: str, task: Any, config: "EvaluatorConfig") -> list[Problem]:
    """Return the problems that lm-eval would raise in the middle of its work."""
    problems = []
    shots = _shots(task, config.num_fewshot)
    examples = len(list(task.fewshot_docs())) if shots else 0
    if examples < shots:
        problems.append(
            Problem("--num_fewshot", shots, f"{name} has {examples} examples to show", f"give {examples} or less")
        )
    questions = range(len(task.eval_docs))[: get_sample_size(task, config.limit)]
    asked = len((config.samples or {}).get(name, questions))
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if asked < processes:
        problems.append(Problem("--tasks", name, f"{asked} questions for {processes} processes", "start fewer of them"))
    return problems


def figures(results: Mapping[str, Any], cut: Mapping[str, int]) -> dict[str, Any]:
    """Return the figures of ``harness.json``: ``tasks`` and ``groups`` by name, and what was ``cut``."""
    subtasks = {name: list(each) for name, each in results.get("group_subtasks", {}).items()}
    samples = {name: each["effective"] for name, each in results["n-samples"].items()}

    def leaves(name: str) -> set[str]:
        return set().union(*map(leaves, subtasks[name])) if name in subtasks else {name}

    tasks = {
        name: summarise(scores, results["n-shot"].get(name), samples[name])
        for name, scores in sorted(results["results"].items())
        if name not in subtasks
    }
    groups = {}
    for name, scores in sorted(results.get("groups", {}).items()):
        entry = summarise(scores, results["n-shot"].get(name), sum(samples[task] for task in leaves(name)))
        if entry["metric"] is not None:
            groups[name] = {**entry, "tasks": subtasks[name]}
    return {"tasks": tasks, "groups": groups, "cut": dict(cut)}


def summarise(scores: Mapping[str, Any], shots: int | None, samples: int) -> dict[str, Any]:
    """Return the entry of a task or group; ``metrics`` has all of them, by ``metric,filter`` as lm-eval writes it."""

    def number(value: Any) -> float | None:
        return float(value) if isinstance(value, (int, float)) else None

    metrics = {}
    for key, value in scores.items():
        if "," in key and "_stderr," not in key and number(value) is not None and value != NOT_RUN:
            error = scores.get("{}_stderr,{}".format(*key.split(",", 1)))
            metrics[key] = {"value": value, "standard_error": number(error)}
    preferred = [key for metric in PREFERRED for key in metrics if key.split(",", 1)[0] == metric]
    main = next(iter([*preferred, *metrics]), None)
    metric, used_filter = main.split(",", 1) if main is not None else (None, "none")
    entry: dict[str, Any] = {"metric": metric, "value": None, "standard_error": None}
    entry |= metrics[main] if main is not None else {}
    entry |= {"shots": shots, "samples": samples, "metrics": metrics}
    return entry if used_filter == "none" else {**entry, "filter": used_filter}


def table(figures: Mapping[str, Any]) -> str:
    """Return groups and tasks as a Markdown table, and what was cut."""
    rows = []
    for name, entry in [*figures["groups"].items(), *figures["tasks"].items()]:
        shots = "" if entry["shots"] is None else str(entry["shots"])
        value, error = ("" if entry[each] is None else f"{entry[each]:.4f}" for each in ("value", "standard_error"))
        rows.append([name, entry["metric"] or "", shots, value, error, f"{entry['samples']:,}"])
    text = markdown_table(["task", "metric", "shots", "value", "standard error", "samples"], rows, "llr")
    cut = figures["cut"]
    note = f"\n\ncut: {cut['tokens']:,} tokens of {cut['requests']:,} requests that were too long"
    return text + note if cut["requests"] else text


def submission_files(folder: Path, tasks: Iterable[str]) -> list[Path]:
    """Return SCROLLS' files of those ``tasks`` that ask a whole data set."""
    return [folder / SCROLLS / f"{name}.json" for name in scrolls.available() if f"{SCROLLS_TASK}{name}" in tasks]


def write_submission(folder: Path, samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write for each data set of SCROLLS the JSON object of texts by id that the benchmark takes, from lm-eval's
    ``samples`` by task; remove those of an earlier evaluation."""
    for path in submission_files(folder, [f"{SCROLLS_TASK}{name}" for name in scrolls.available()]):
        path.unlink(missing_ok=True)
    for path in submission_files(folder, samples):
        rows = sorted(samples[SCROLLS_TASK + path.stem], key=lambda row: row["doc_id"])
        texts = {row["doc"]["id"]: row["filtered_resps"][0] for row in rows}
        storage.write_text(path, json.dumps(texts) + "\n")
