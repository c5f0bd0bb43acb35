"""lm-eval's tasks: loaded and checked before a model is, then their figures as ``harness.json`` stores them."""

import hashlib
import json
import random
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from lm_eval.utils import handle_non_serializable, set_torch_seed

from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.mappings import without
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


class LoadedTasks:
    """A task manager that returns its loaded tasks to lm-eval, so that they can be checked before."""

    def __init__(self, manager: Any, loaded: Any):
        self.manager = manager
        self.loaded = loaded
        self.tasks: dict[str, Any] = loaded["tasks"]
        """By name, those of groups included."""

    def load(self, names: Sequence[str]) -> Any:
        return self.loaded

    def rolling(self) -> list[str]:
        """Return the names of the tasks that ask for the likelihood of whole texts."""
        return sorted(
            name for name, task in self.tasks.items() if task.OUTPUT_TYPE == "loglikelihood_rolling"
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.manager, name)

    def fingerprints(self, num_fewshot: int | None) -> dict[str, str]:
        """Return the SHA-256 of each task: its configuration and documents, without paths and addresses in memory."""
        dump = partial(json.dumps, sort_keys=True, default=handle_non_serializable)
        digests = {}
        for name, task in sorted(self.tasks.items()):
            config = task.dump_config()
            # the documents depend on max_tokens
            depends = ("config_source", "tokenizer", "max_tokens")
            config["metadata"] = without(config.get("metadata") or {}, depends)
            digest = hashlib.sha256(re.sub(r" at 0x[0-9a-f]+", "", dump(config)).encode())
            documents = list(task.eval_docs)
            # those that are shown decide the prompts as well
            if shots_of(task, num_fewshot):
                documents += task.fewshot_docs()
            for document in documents:
                digest.update(dump(document).encode())
            digests[name] = digest.hexdigest()
        return digests


def load_tasks(config: "EvaluatorConfig") -> LoadedTasks:
    """Return the tasks that ``config`` names, with their data."""
    # as lm-eval does before it loads tasks: some draw their texts, which must be the same in every process
    setters = (random.seed, np.random.seed, set_torch_seed)
    for seed, set_seed in zip(config.seed, setters, strict=False):
        if seed is not None:
            set_seed(seed)
    config.include_path = list(filter(None, [str(TASKS), config.include_path]))
    names = " ".join(config.tasks)
    problems = []
    try:
        manager = config.process_tasks(config.metadata)
        loaded = LoadedTasks(manager, manager.load(config.tasks))
        for name, task in loaded.tasks.items():
            shots = shots_of(task, config.num_fewshot)
            shown = len(list(task.fewshot_docs())) if shots else 0
            if shown < shots:
                reason = f"{name} has {shown} examples to show"
                problems.append(Problem("--num_fewshot", shots, reason, f"give {shown} or less"))
            # reads them, so that what is missing is found now
            len(task.eval_docs)
    except UserError:
        raise
    # tasks are code and data of others, and raise anything
    except Exception as error:
        reason = " ".join(str(error).split())[:400]
        reason = f"cannot be loaded ({type(error).__name__}: {reason})"
        remedy = "check the names (lm_eval ls tasks) and what it needs: the hub, a package, data with a row, --metadata"
        if "tokenizer" not in config.metadata:
            remedy += "; or give --trust_remote_code, since texts that depend on the tokenizer need its code"
        raise UserError(Problem("--tasks", names, reason, remedy)) from error
    raise_if_any(problems)
    return loaded


def shots_of(task: Any, num_fewshot: int | None) -> int:
    """Return the number of examples before each question; ``num_fewshot`` does not reach tasks that are made for 0."""
    own: int | None = getattr(task.config, "num_fewshot", None)
    if own == 0 or num_fewshot is None:
        return own or 0
    return num_fewshot


def figures(results: Mapping[str, Any], cut: Mapping[str, int]) -> dict[str, Any]:
    """Return the figures of ``harness.json``: ``tasks`` and ``groups`` by name, and what was ``cut``."""
    subtasks = {name: list(each) for name, each in results.get("group_subtasks", {}).items()}
    samples = {name: each["effective"] for name, each in results["n-samples"].items()}

    def leaves(name: str) -> set[str]:
        if name in subtasks:
            return set().union(*map(leaves, subtasks[name]))
        return {name}

    tasks = {}
    for name, scores in sorted(results["results"].items()):
        if name not in subtasks:
            tasks[name] = summarise(scores, results["n-shot"].get(name), samples[name])
    groups = {}
    for name, scores in sorted(results.get("groups", {}).items()):
        # a task that two subgroups share counts once
        count = sum(map(samples.__getitem__, leaves(name)))
        entry = summarise(scores, results["n-shot"].get(name), count)
        # some groups only collect tasks
        if entry["metric"] is not None:
            groups[name] = {**entry, "tasks": subtasks[name]}
    return {"tasks": tasks, "groups": groups, "cut": dict(cut)}


def summarise(scores: Mapping[str, Any], shots: int | None, samples: int) -> dict[str, Any]:
    """Return the entry of a task or group; ``metrics`` has all of them, by ``metric,filter`` as lm-eval writes it."""
    metrics = {}
    for key, value in scores.items():
        metric, comma, used_filter = key.partition(",")
        if not comma or metric.endswith("_stderr"):
            continue
        if not isinstance(value, (int, float)) or value == NOT_RUN:
            continue
        # "N/A" without one
        error = scores.get(f"{metric}_stderr,{used_filter}")
        error = float(error) if isinstance(error, (int, float)) else None
        metrics[key] = {"value": value, "standard_error": error}
    main = min(metrics, key=_preference, default=None)
    entry: dict[str, Any] = {"metric": None, "value": None, "standard_error": None}
    used_filter = "none"
    if main is not None:
        metric, _, used_filter = main.partition(",")
        entry = {"metric": metric, **metrics[main]}
    entry |= {"shots": shots, "samples": samples, "metrics": metrics}
    if used_filter == "none":
        return entry
    return {**entry, "filter": used_filter}


def table(figures: Mapping[str, Any]) -> str:
    """Return groups and tasks as a Markdown table, a row for each metric with the main one first, and below it what was
    cut and what differs from lm-eval."""
    rows = []
    for name, entry in [*figures["groups"].items(), *figures["tasks"].items()]:
        # in the first row of a task alone
        shown = [name, _cell(entry["shots"], "d"), f"{entry['samples']:,}"]
        for key, score in _main_first(entry) or [("", {"value": None, "standard_error": None})]:
            value = _cell(score["value"], ".4f")
            error = _cell(score["standard_error"], ".4f")
            rows.append([shown[0], key.removesuffix(",none"), shown[1], value, error, shown[2]])
            shown = ["", "", ""]
    text = markdown_table(
        ["task", "metric", "shots", "value", "standard error", "samples"], rows, "llr"
    )
    cut = figures["cut"]
    if cut["requests"]:
        text += (
            f"\n\ncut: {cut['tokens']:,} tokens of {cut['requests']:,} requests that were too long"
        )
    unlike = figures.get("unlike_lm_eval")
    if unlike is not None:
        note = f"{unlike['unscored']!r} before a text is read once and not scored ({', '.join(unlike['tasks'])})"
        text += f"\n\nunlike lm-eval's own model: {note}"
    return text


def _main_first(entry: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return a task's metrics as (``metric,filter``, score), its main one first."""
    main = f"{entry['metric']},{entry.get('filter', 'none')}"
    return sorted(entry["metrics"].items(), key=lambda pair: pair[0] != main)


def _preference(key: str) -> int:
    """Return the place of ``metric,filter`` among the metrics that are preferred."""
    metric = key.partition(",")[0]
    if metric in PREFERRED:
        return PREFERRED.index(metric)
    return len(PREFERRED)


def _cell(value: float | None, spec: str) -> str:
    if value is None:
        return ""
    return format(value, spec)
