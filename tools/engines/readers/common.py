"""What every reader does: go through the folders of cases, and write what its engine computes, or the error, of each.

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
"""Returns the logits [T, V] of token ids, or [1, V] of the last one; or their cosines and sines [T, 2 F]."""
Load = Callable[[Path, str], tuple[Compute, int | None]]
"""Takes a folder and the flags that the table names for it; returns also the length that the engine serves it with,
None where the engine has none of its own."""


def main(engine: str, load: Load, *, logits: bool = True) -> None:
    """Call ``load`` for every case's folder below the first argument whose model type is among the third and later
    ones, and write to the second: ``NAME.npz`` (a prompt's name -> log-probabilities, or tables) and ``NAME.json``
    (``length``, and ``errors``: a prompt's name -> error).

    Where the table names a flag, ``NAME.without_flag.npz`` and ``.json`` are written as well.
    """
    folder = Path(sys.argv[1])
    out = Path(sys.argv[2])
    prompts = json.loads((folder / "prompts.json").read_text())
    families = sys.argv[3:]
    folders = sorted(path.parent for path in folder.glob("*/transformers.npz"))
    for case in folders:
        # a family is one word
        if case.name.partition("-")[0] not in families:
            continue
        names = np.load(case / ("transformers.npz" if logits else "tables.npz")).files
        asked = {name: prompts[name] for name in names}
        flags = " ".join(json.loads((case / "flags.json").read_text()).get(engine, []))
        _run(case, flags, out / case.name, asked, load, logits)
        if flags:
            _run(case, "", out / f"{case.name}.without_flag", asked, load, logits)


def _run(
    case: Path, flags: str, out: Path, prompts: dict[str, list[int]], load: Load, logits: bool
) -> None:
    answers: dict[str, Any] = {}
    errors: dict[str, str] = {}
    length = None
    try:
        compute, length = load(case, flags)
    except Exception as error:
        # an engine refuses a folder by any exception
        errors = dict.fromkeys(prompts, _line(error))
    else:
        for name, ids in prompts.items():
            try:
                computed = compute(ids)
                answers[name] = log_softmax(computed) if logits else computed
            except Exception as error:
                errors[name] = _line(error)
    np.savez(out.with_name(out.name + ".npz"), **answers)
    out.with_name(out.name + ".json").write_text(json.dumps({"length": length, "errors": errors}))


def _line(error: Exception) -> str:
    # the whole of it is in the log
    traceback.print_exception(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = np.asarray(logits, dtype=np.float64)
    shifted = logits - logits.max(-1, keepdims=True)
    return (shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))).astype(np.float32)
