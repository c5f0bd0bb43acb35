"""The schema of every stored result: command, versions, hardware, configuration and figures.

A run calls :func:`collect` when it starts, so that commit and versions are those that it runs with, and
:meth:`Result.finish` with its figures when it ends; :func:`save` writes one JSON file. Environment variables are never
stored, and credentials are replaced.
"""

import contextlib
import dataclasses
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import psutil

from tape_ds import storage
from tape_ds.errors import (
    REDACTED,
    SECRET_NAME,
    Problem,
    UserError,
    did_you_mean,
    raise_if_any,
    redacted,
)

SCHEMA = 1
WITHOUT_UPDATES = "updates off"
"""Suffix of a variant's name: a trained model with its position state left at its start."""
UNTOUCHED = "untouched"
"""A variant's name: the base as it was before the run."""
UNTRAINED = ", untrained"
"""Suffix of a variant's name: the base with the run's RoPE parameters, nothing trained."""
PACKAGES = (
    *(
        "tape_ds",
        "torch",
        "triton",
        "deepspeed",
        "transformers",
        "tokenizers",
        "datasets",
        "peft",
        "accelerate",
    ),
    *(
        "safetensors",
        "sentencepiece",
        "gguf",
        "numpy",
        "lm-eval",
        "rouge-score",
        "wandb",
        "flash-attn",
    ),
    "liger-kernel",
)
NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True)
class Result:
    """One stored result; every field is plain JSON data."""

    command: list[str]
    """As it was typed, credentials replaced."""
    started: str
    """ISO 8601, UTC."""
    seed: int | None = None
    """Seed of data order and initialisation; None if nothing is random."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of Python and the installed packages of the stack."""
    hardware: dict[str, Any] = field(default_factory=dict)
    """CPU model, cores, memory in bytes and GPUs of the machine that wrote the result, and the number of processes."""
    commit: dict[str, Any] | None = None
    """``{"hash": ..., "dirty": bool}`` of the checkout; None outside a checkout."""
    model: dict[str, Any] | None = None
    """The evaluated model: name or path, SHA-256 of its files, encoding, dtype; None if this is not an evaluation."""
    config: dict[str, Any] = field(default_factory=dict)
    """The whole configuration after every override, credentials replaced."""
    data: dict[str, str] = field(default_factory=dict)
    """Fingerprint of each data source, by its spec."""
    figures: dict[str, Any] = field(default_factory=dict)
    """The outcome. Non-finite numbers are stored as ``"nan"``, ``"inf"`` or ``"-inf"``."""
    finished: str | None = None
    """ISO 8601, UTC; None while it runs."""
    schema: int = SCHEMA

    def finish(self, figures: Mapping[str, Any]) -> "Result":
        return dataclasses.replace(self, figures=_redact_texts(_plain(figures)), finished=now())


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def collect(
    *,
    command: Sequence[str] | None = None,
    seed: int | None = None,
    config: Mapping[str, Any] | None = None,
    data: Mapping[str, str] | None = None,
    model: Mapping[str, Any] | None = None,
    processes: int = 1,
) -> Result:
    """Return a result at its start, without figures; ``command`` defaults to this process's."""
    shown = []
    # the value of an option such as --hub_token
    secret_follows = False
    for argument in sys.argv if command is None else command:
        option, equals, value = argument.partition("=")
        names_secret = option.startswith("-") and bool(SECRET_NAME.search(option.lstrip("-")))
        if secret_follows and not argument.startswith("--"):
            shown.append(REDACTED)
        elif names_secret and equals and value:
            shown.append(f"{option}={REDACTED}")
        else:
            shown.append(redacted(argument))
        secret_follows = names_secret and not equals
    return Result(
        command=shown,
        started=now(),
        seed=seed,
        versions=versions(),
        hardware={**hardware(), "processes": processes},
        commit=commit(),
        model=_redact_texts(_plain(model)),
        config=redact(config or {}),
        data=_redact_texts(dict(data or {})),
    )


def versions() -> dict[str, str]:
    installed = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
    return installed


def hardware() -> dict[str, Any]:
    """Return CPU model, usable and physical cores, memory in bytes, and each visible GPU with its memory in bytes."""
    # not at the top: reading a result needs no torch
    import torch

    cpu = platform.processor() or platform.machine()
    # Linux
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
                break
    cores = os.cpu_count()
    # those that a container or scheduler leaves to this process
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    gpus = list(map(torch.cuda.get_device_properties, range(torch.cuda.device_count())))
    return {
        "platform": platform.platform(),
        "cpu": cpu,
        "cores": cores,
        "physical_cores": psutil.cpu_count(logical=False),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": [{"name": gpu.name, "memory_bytes": gpu.total_memory} for gpu in gpus],
        "cuda": torch.version.cuda,
    }


def commit(root: Path | None = None) -> dict[str, Any] | None:
    """Return commit and dirty flag of the checkout whose top is ``root`` (default: the package's parent folder).

    An untracked file that is not ignored makes it dirty too: it may be code that ran. None if ``root`` is not the top
    of a checkout: a package installed inside another repository must not report that repository's commit.
    """
    root = (root or Path(__file__).resolve().parents[1]).resolve()
    top = _git(root, "rev-parse", "--show-toplevel")
    head = _git(root, "rev-parse", "HEAD")
    if top is None or head is None or Path(top).resolve() != root:
        return None
    return {"hash": head, "dirty": bool(_git(root, "status", "--porcelain"))}


def _git(root: Path, *arguments: str) -> str | None:
    """Return git's output in ``root``; None if it is missing, slow or fails."""
    # inside a hook git's variables name another repository
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            timeout=30,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode == 0:
        return done.stdout.strip()
    return None


def save(result: Result, path: str | Path) -> Path:
    """Write ``result`` to ``path``, complete or not at all; raises OSError if the disk refuses."""
    path = Path(path)
    storage.write_json(path, _plain(result))
    return path


def load(path: str | Path) -> Result:
    """Read a stored result; raises :class:`UserError` with everything in the file that is not of the schema."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            Problem("result", str(path), error.strerror or str(error), "name a readable file")
        ) from None
    except ValueError as error:
        raise UserError(
            Problem("result", str(path), f"is not JSON ({error})", "name a stored result")
        ) from None
    if not isinstance(content, dict):
        raise UserError(
            Problem("result", str(path), "is not a JSON object", "name a stored result")
        )
    if (schema := content.get("schema")) != SCHEMA:
        wrong = f"this version reads schema {SCHEMA}"
        raise UserError(Problem("schema", schema, wrong, "use the version that wrote it"))
    # results stored before there were evaluations
    content.setdefault("model", None)

    hints = get_type_hints(Result)
    problems = []
    for name, hint in hints.items():
        # of list[str] the list alone
        kinds = get_args(hint) if get_origin(hint) is UnionType else (hint,)
        expected = tuple(get_origin(kind) or kind for kind in kinds)
        if name not in content:
            problems.append(
                Problem(
                    name, None, "is missing", "the file was not written by tape_ds.results.save"
                )
            )
        elif not isinstance(content[name], expected) or isinstance(content[name], bool):
            types = " or ".join(kind.__name__ for kind in expected).replace("NoneType", "null")
            problems.append(
                Problem(name, content[name], f"is not of type {types}", "restore the file")
            )
    for name in sorted(set(content) - set(hints)):
        problems.append(
            Problem(name, content[name], "is not a field of a result", did_you_mean(name, hints))
        )
    raise_if_any(problems)
    return Result(**{**content, "figures": _with_numbers(content["figures"])})


def _plain(value: Any) -> Any:
    """Return ``value`` as JSON data: paths, arrays and dataclasses become plain, non-finite numbers strings."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain(dataclasses.asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(_plain, value), key=str)
    if isinstance(value, (list, tuple)):
        return list(map(_plain, value))
    # a numpy or torch array or scalar
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def _with_numbers(value: Any) -> Any:
    """Turn the strings that :func:`_plain` made of non-finite numbers back into numbers."""
    if isinstance(value, dict):
        return {key: _with_numbers(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return list(map(_with_numbers, value))
    if isinstance(value, str):
        return NON_FINITE.get(value, value)
    return value


def redact(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration as plain data, with credentials replaced by their field's name and by their form."""
    redacted_config: dict[str, Any] = _redact_texts(_plain(config), by_name=True)
    return redacted_config


def _redact_texts(value: Any, name: str = "", *, by_name: bool = False) -> Any:
    """Replace credentials in every string of plain data, keys included, and values of secret names if ``by_name``."""
    if isinstance(value, dict):
        return {
            redacted(key): _redact_texts(entry, key, by_name=by_name)
            for key, entry in value.items()
        }
    if isinstance(value, list):
        return [_redact_texts(entry, name, by_name=by_name) for entry in value]
    if not isinstance(value, str):
        return value
    if value and by_name and SECRET_NAME.search(name):
        return REDACTED
    return redacted(value)


def by_variant(rows: Iterable[Mapping[str, Any]]) -> dict[str | None, list[Mapping[str, Any]]]:
    """Return a run's rows by the model that they are of, in the order of the models; older rows name none."""
    grouped: dict[str | None, list[Mapping[str, Any]]] = {}
    for row in rows:
        grouped.setdefault(row.get("variant"), []).append(row)
    return grouped


def passkeys_of(
    rows: Sequence[Mapping[str, Any]], variant: str | None = None
) -> list[Mapping[str, Any]]:
    """Return the rows of one variant from a run's figure ``passkey``, by default of the last, the run's result."""
    if rows and variant is None:
        variant = rows[-1].get("variant")
    return by_variant(rows).get(variant, [])
