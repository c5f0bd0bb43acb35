"""What every reader does: go through the folders of cases, and write log-probabilities, or the error, of each.

Runs in an engine's own environment, with numpy alone.
"""

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Compute = Callable[[list[int]], np.ndarray]
"""Returns the logits [T, V] of token ids, or [1, V] of the last one."""


def main(load: Callable[[Path], Compute]) -> None:
    """Call ``load`` for every case's folder below the first argument, and write to the second: ``NAME.npz`` (a prompt's
    name -> log-probabilities) and ``NAME.json`` (a prompt's name -> error)."""
    folder = Path(sys.argv[1])
    out = Path(sys.argv[2])
    prompts = json.loads((folder / "prompts.json").read_text())
    for case in sorted(path.parent for path in folder.glob("*/transformers.npz")):
        _run(case, out / case.name, prompts, load)


def _run(case: Path, out: Path, prompts: dict[str, list[int]], load: Callable[[Path], Compute]) -> None:
    found: dict[str, Any] = {}
    errors: dict[str, str] = {}
    try:
        compute = load(case)
    except Exception as error:  # an engine refuses a folder by any exception
        errors = dict.fromkeys(prompts, _line(error))
    else:
        for name, ids in prompts.items():
            try:
                found[name] = log_softmax(compute(ids))
            except Exception as error:
                errors[name] = _line(error)
    out.parent.mkdir(parents=True, exist_ok=True)
    np.savez(out.with_name(out.name + ".npz"), **found)
    out.with_name(out.name + ".json").write_text(json.dumps(errors))


def _line(error: Exception) -> str:
    traceback.print_exception(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = np.asarray(logits, dtype=np.float64)
    shifted = logits - logits.max(-1, keepdims=True)
    return (shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))).astype(np.float32)
