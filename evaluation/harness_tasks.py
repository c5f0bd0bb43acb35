"""lm-eval's tasks of one evaluation: found by name, their data loaded before any model, their content fingerprinted."""

import hashlib
import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lm_eval.tasks import TaskManager
from lm_eval.utils import handle_non_serializable

from evaluation.harness_options import TASKS
from tape_ds.errors import Problem, UserError, did_you_mean, raise_if_any

if TYPE_CHECKING:
    from lm_eval.config.evaluate_config import EvaluatorConfig

TOKENIZER = "tokenizer"
"""What tasks that make texts of a given length look for in the metadata; they load it with the code it carries."""


class Loaded:
    """A task manager whose tasks are loaded: it gives lm-eval these very ones, which can be looked at before.

    Args:
        manager: lm-eval's own.
        found: what its ``load`` gave.
    """

    def __init__(self, manager: TaskManager, found: Any):
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
        """SHA-256 of each task: its documents, its shots' documents, and what it makes of them.

        ``num_fewshot`` is lm-eval's option, which does not reach tasks that say 0 themselves.
        """
        return {name: _fingerprint(task, num_fewshot) for name, task in sorted(self.tasks.items())}


def load(config: "EvaluatorConfig") -> Loaded:
    """Return the tasks that ``config`` names, with their data.

    Raises:
        UserError: names that are unknown, tasks whose data or packages cannot be had.
    """
    _seed(config.seed)
    include = [TASKS, *([Path(config.include_path)] if config.include_path else [])]
    manager = TaskManager(include_path=[str(each) for each in include], metadata=config.metadata)
    names = match(config.tasks, manager)
    try:
        loaded = Loaded(manager, manager.load(names))
        problems = [
            problem for name, task in loaded.tasks.items() for problem in _check(name, task, config.num_fewshot)
        ]
    except UserError:
        raise
    except Exception as error:  # tasks are code and data of others, whose mistakes have every class there is
        reason = " ".join(str(error).split())[:400]
        wrong = f"cannot be loaded ({type(error).__name__}: {reason})"
        remedy = "see what it needs: the hub, a package, data with a row, --metadata, or each task in one group alone"
        if TOKENIZER not in config.metadata:
            remedy += "; the model's tokenizer carries code, which texts made for it need --trust_remote_code for"
        raise UserError(Problem("--tasks", " ".join(config.tasks), wrong, remedy)) from error
    raise_if_any(problems)
    return loaded


def _seed(seeds: Sequence[int | None]) -> None:
    """As lm-eval does before it loads tasks: some draw their texts, which have to be the same in every process."""
    takers: tuple[Callable[[int], Any], ...] = (random.seed, np.random.seed, torch.manual_seed)
    for seed, take in zip(seeds, takers, strict=False):  # lm-eval's fourth seed is that of the shots alone
        if seed is not None:
            take(seed)


def match(asked: Sequence[str], manager: TaskManager) -> list[str]:
    """Return names of tasks, groups and tags, patterns, and YAML files, as ``manager`` loads them.

    Raises:
        UserError: everything among them that is none.
    """
    names: list[str] = []
    problems = []
    for word in asked:
        given = [str(Path(word).absolute())] if word.endswith(".yaml") and Path(word).is_file() else []
        matched = given or manager.match_tasks([word])
        if not matched:
            problems.append(Problem("--tasks", word, "no such task", did_you_mean(word, manager.all_tasks)))
        names += [each for each in matched if each not in names]
    raise_if_any(problems)
    return names


def _shots(task: Any, num_fewshot: int | None) -> int:
    """Examples before each question: a task's own number where that is 0 or nothing else is asked for."""
    own: int | None = getattr(task.config, "num_fewshot", None)
    return (own or 0) if own == 0 or num_fewshot is None else num_fewshot


def _check(name: str, task: Any, num_fewshot: int | None) -> list[Problem]:
    """A task with fewer examples than shots."""
    shots = _shots(task, num_fewshot)
    there = len(list(task.fewshot_docs())) if shots else 0
    if there >= shots:
        return []
    return [Problem("--num_fewshot", shots, f"{name} has {there} examples to show", f"give {there} or less")]


def _fingerprint(task: Any, num_fewshot: int | None) -> str:
    """SHA-256 over a task's configuration and documents; paths and addresses in memory do not count."""
    config = task.dump_config()
    places = ("config_source", "tokenizer")
    config["metadata"] = {name: each for name, each in (config.get("metadata") or {}).items() if name not in places}
    described = json.dumps(config, sort_keys=True, default=handle_non_serializable)
    digest = hashlib.sha256(re.sub(r" at 0x[0-9a-f]+", "", described).encode())
    for documents in (task.eval_docs, task.fewshot_docs() if _shots(task, num_fewshot) else []):
        for document in documents:
            digest.update(json.dumps(document, sort_keys=True, default=handle_non_serializable).encode())
    return digest.hexdigest()
