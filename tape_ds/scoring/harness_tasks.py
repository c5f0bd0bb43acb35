"""lm-eval's tasks of one evaluation: their data loaded before any model, their content fingerprinted."""

import hashlib
import json
import os
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from lm_eval.evaluator_utils import get_sample_size
from lm_eval.utils import handle_non_serializable, set_torch_seed

from tape_ds.errors import Problem, UserError, raise_if_any

if TYPE_CHECKING:
    from lm_eval.config.evaluate_config import EvaluatorConfig

TASKS = Path(__file__).parent / "tasks"
"""Tasks of this project, always included."""


class Loaded:
    """A task manager whose tasks are loaded: it gives lm-eval these very ones, which can be looked at before."""

    def __init__(self, manager: Any, found: Any):
        self.manager = manager
        self.found = found
        self.tasks: dict[str, Any] = found["tasks"]
        """By name, those of groups among them."""

    def load(self, names: Sequence[str]) -> Any:
        """Return what was loaded, whatever the names."""
        return self.found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.manager, name)

    def fingerprints(self, num_fewshot: int | None) -> dict[str, str]:
        """SHA-256 of each task: its documents, its shots' documents, and what it makes of them."""
        return {name: _fingerprint(task, num_fewshot) for name, task in sorted(self.tasks.items())}


def load(config: "EvaluatorConfig") -> Loaded:
    """Return the tasks that ``config`` names, with their data.

    Raises:
        UserError: unknown names, tasks whose data or packages are missing.
    """
    _seed(config.seed)
    config.include_path = [str(TASKS), *([config.include_path] if config.include_path else [])]
    asked = " ".join(config.tasks)
    try:
        manager = config.process_tasks(config.metadata)
        loaded = Loaded(manager, manager.load(config.tasks))
        problems = [problem for name, task in loaded.tasks.items() for problem in _check(name, task, config)]
    except UserError:
        raise
    except Exception as error:  # tasks are code and data of others, and raise anything
        reason = " ".join(str(error).split())[:400]
        wrong = f"cannot be loaded ({type(error).__name__}: {reason})"
        remedy = "see the names (lm_eval ls tasks), or what it needs: the hub, a package, data with a row, --metadata"
        if "tokenizer" not in config.metadata:
            remedy += "; the model's tokenizer carries code, which texts made for it need --trust_remote_code for"
        raise UserError(Problem("--tasks", asked, wrong, remedy)) from error
    raise_if_any(problems)
    return loaded


def _seed(seeds: Sequence[int | None]) -> None:
    # as lm-eval does before it loads tasks: some draw their texts, which have to be the same in every process
    for seed, take in zip(seeds, (random.seed, np.random.seed, set_torch_seed), strict=False):
        if seed is not None:
            take(seed)


def _shots(task: Any, num_fewshot: int | None) -> int:
    """Return the number of examples before each question: the option does not reach tasks that are made for 0."""
    own: int | None = getattr(task.config, "num_fewshot", None)
    return (own or 0) if own == 0 or num_fewshot is None else num_fewshot


def _check(name: str, task: Any, config: "EvaluatorConfig") -> list[Problem]:
    """Return what lm-eval would stumble over in the middle of its work."""
    problems = []
    shots = _shots(task, config.num_fewshot)
    there = len(list(task.fewshot_docs())) if shots else 0
    if there < shots:
        wrong = f"{name} has {there} examples to show"
        problems.append(Problem("--num_fewshot", shots, wrong, f"give {there} or less"))
    questions = range(len(task.eval_docs))[: get_sample_size(task, config.limit)]
    asked = len((config.samples or {}).get(name, questions))
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if asked < processes:
        problems.append(Problem("--tasks", name, f"{asked} questions for {processes} processes", "start fewer of them"))
    return problems


def _fingerprint(task: Any, num_fewshot: int | None) -> str:
    """Return the SHA-256 over a task's configuration and documents, without paths and addresses in memory."""
    config = task.dump_config()
    places = ("config_source", "tokenizer", "max_tokens")  # of max_tokens the documents tell
    config["metadata"] = {name: each for name, each in (config.get("metadata") or {}).items() if name not in places}
    described = json.dumps(config, sort_keys=True, default=handle_non_serializable)
    digest = hashlib.sha256(re.sub(r" at 0x[0-9a-f]+", "", described).encode())
    for documents in (task.eval_docs, task.fewshot_docs() if _shots(task, num_fewshot) else []):
        for document in documents:
            digest.update(json.dumps(document, sort_keys=True, default=handle_non_serializable).encode())
    return digest.hexdigest()
