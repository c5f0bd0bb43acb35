"""lm-eval's tasks of one evaluation: found by name, their data loaded before any model, their content fingerprinted."""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm_eval.tasks import TaskManager
from lm_eval.utils import handle_non_serializable

from evaluation.harness_options import TASKS
from tape_ds.errors import Problem, UserError, did_you_mean, raise_if_any

if TYPE_CHECKING:
    from lm_eval.config.evaluate_config import EvaluatorConfig

    from evaluation.models import FoundModel


class Loaded:
    """A task manager whose tasks are loaded: it gives lm-eval these very ones, which can be looked at before.

    Args:
        manager: lm-eval's own.
        found: what its ``load`` gave.
    """

    def __init__(self, manager: TaskManager, found: Any):
        self.manager = manager
        self.found = found

    def load(self, names: Sequence[str]) -> Any:
        """What was loaded, whatever the names."""
        return self.found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.manager, name)

    @property
    def tasks(self) -> dict[str, Any]:
        """The tasks by name, those of groups among them."""
        tasks: dict[str, Any] = self.found["tasks"]
        return tasks

    def fingerprints(self) -> dict[str, str]:
        """SHA-256 of each task: its documents, its shots' documents, and what it makes of them."""
        return {name: _fingerprint(task) for name, task in sorted(self.tasks.items())}


def load(config: "EvaluatorConfig", found: "FoundModel") -> Loaded:
    """The tasks that ``config`` names, with their data.

    Raises:
        UserError: names that are unknown, tasks whose data or packages cannot be had.
    """
    include = [TASKS, *([Path(config.include_path)] if config.include_path else [])]
    manager = TaskManager(include_path=[str(each) for each in include], metadata=config.metadata)
    names = match(config.tasks, manager)
    try:
        return Loaded(manager, manager.load(names))
    except (OSError, ValueError, KeyError, ImportError) as error:
        if isinstance(error, UserError):
            raise
        reason = " ".join(str(error).split())[:400]
        wrong = f"cannot be loaded ({type(error).__name__}: {reason})"
        remedy = "see what it needs: the hub, a package, --metadata, or each task in one group alone"
        raise UserError(Problem("--tasks", " ".join(config.tasks), wrong, remedy)) from error


def match(asked: Sequence[str] | str, manager: TaskManager) -> list[str]:
    """Names of tasks, groups and tags, patterns, and YAML files, as ``manager`` loads them.

    Raises:
        UserError: everything among them that is none.
    """
    words = asked.split(",") if isinstance(asked, str) else [word for each in asked for word in each.split(",")]
    names: list[str] = []
    problems = []
    for word in words:
        given = [str(Path(word).absolute())] if word.endswith(".yaml") and Path(word).is_file() else []
        matched = given or manager.match_tasks([word])
        if not matched:
            problems.append(Problem("--tasks", word, "no such task", did_you_mean(word, manager.all_tasks)))
        names += [each for each in matched if each not in names]
    raise_if_any(problems)
    return names


def _fingerprint(task: Any) -> str:
    """SHA-256 over a task's configuration and documents; paths and addresses in memory do not count."""
    told = task.dump_config()
    told["metadata"] = {name: each for name, each in (told.get("metadata") or {}).items() if name != "config_source"}
    described = json.dumps(told, sort_keys=True, default=handle_non_serializable)
    digest = hashlib.sha256(re.sub(r" at 0x[0-9a-f]+", "", described).encode())
    shots = task.fewshot_docs() if getattr(task.config, "num_fewshot", None) != 0 and task.has_training_docs() else []
    for documents in (task.eval_docs, shots or []):
        for document in documents:
            digest.update(json.dumps(document, sort_keys=True, default=handle_non_serializable).encode())
    return digest.hexdigest()
