"""The one schema of every stored result: what was run, on what, with which versions, and what came out.

A run calls :func:`collect` when it starts, so that commit and versions are those it really runs with, and
:meth:`Result.finish` with its figures when it ends; :func:`save` then writes one JSON file that is either complete or
absent. Environment variables are never recorded, and anything that looks like a credential is replaced before it can
reach the file.
"""

import dataclasses
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from tape_ds import storage
from tape_ds.errors import REDACTED, SECRET_NAME, Problem, UserError, did_you_mean, raise_if_any, redacted

SCHEMA = 1
WITHOUT_UPDATES = "updates off"
"""How the name of a variant ends that is a trained model with its position state left as it started."""
PACKAGES = (
    "tape_ds",
    "torch",
    "triton",
    "deepspeed",
    "transformers",
    "tokenizers",
    "datasets",
    "peft",
    "accelerate",
    "safetensors",
    "sentencepiece",
    "gguf",
    "numpy",
    "lm-eval",
    "rouge-score",
    "wandb",
    "flash-attn",
    "liger-kernel",
)
NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True)
class Result:
    """One stored result; every field is plain JSON data."""

    command: list[str]
    """The command line as it was typed, credentials replaced."""
    started: str
    """When the run began: ISO 8601, UTC."""
    seed: int | None = None
    """The one seed the run's data order and initialisation follow from; None where nothing is random."""
    versions: dict[str, str] = field(default_factory=dict)
    """Version of Python and of each package of the stack that is installed."""
    hardware: dict[str, Any] = field(default_factory=dict)
    """CPU model, cores, memory in bytes and GPUs of the machine that wrote the result, and the number of processes."""
    commit: dict[str, Any] | None = None
    """``{"hash": ..., "dirty": bool}`` of the checkout the code ran from; None outside a checkout."""
    model: dict[str, Any] | None = None
    """The model that was evaluated: its name or path, the SHA-256 of its files, encoding, dtype; None for what is no
    evaluation."""
    config: dict[str, Any] = field(default_factory=dict)
    """The whole configuration after every override, credentials replaced."""
    data: dict[str, str] = field(default_factory=dict)
    """Fingerprint of each data source, by its spec."""
    figures: dict[str, Any] = field(default_factory=dict)
    """What came out. A number that is not finite is stored as ``"nan"``, ``"inf"`` or ``"-inf"``, never dropped."""
    finished: str | None = None
    """When the run ended: ISO 8601, UTC; None while it runs."""
    schema: int = SCHEMA
    """Version of this layout."""

    def finish(self, figures: Mapping[str, Any]) -> "Result":
        """This result with its ``figures`` and the time of now as its end."""
        return dataclasses.replace(self, figures=_each_text(_plain(figures)), finished=now())


def now() -> str:
    """Return the present time as ISO 8601 in UTC, to the second."""
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
    """Return a result at its start: everything about the run that is known before its figures.

    ``command`` defaults to this process's command line; ``data`` maps each source's spec to its fingerprint.
    """
    return Result(
        command=_redact_command(sys.argv if command is None else command),
        started=now(),
        seed=seed,
        versions=versions(),
        hardware={**hardware(), "processes": processes},
        commit=commit(),
        model=None if model is None else _each_text(_plain(model)),
        config=redact(config or {}),
        data=_each_text(dict(data or {})),
    )


def versions() -> dict[str, str]:
    """Version of Python and of each installed package of the stack; absent packages are left out."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def hardware() -> dict[str, Any]:
    """CPU model, usable and physical cores, memory in bytes, and each visible GPU with its memory in bytes."""
    import torch  # not at the top: reading a result needs no torch

    gpus = []
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            gpus.append({"name": properties.name, "memory_bytes": properties.total_memory})
    return {
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "physical_cores": psutil.cpu_count(logical=False),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": gpus,
        "cuda": torch.version.cuda,
    }


def _cpu_model() -> str:
    """Return the processor's name as the system gives it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def commit(root: Path | None = None) -> dict[str, Any] | None:
    """Commit and dirty flag of the checkout whose top is ``root`` (default: the folder that holds the package).

    A file that git neither knows nor ignores makes it dirty too: it may be code that ran. None when there is no such
    checkout: a package installed inside somebody else's repository must not report that repository's commit.
    """
    root = Path(__file__).resolve().parents[1] if root is None else root.resolve()
    top = _git(root, "rev-parse", "--show-toplevel")
    head = _git(root, "rev-parse", "HEAD")
    if top is None or head is None or Path(top).resolve() != root:
        return None
    return {"hash": head, "dirty": bool(_git(root, "status", "--porcelain"))}


def _git(root: Path, *arguments: str) -> str | None:
    """Return what git answers in ``root``, or None when it is missing, slow, or says no."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=30, env=environment
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def save(result: Result, path: str | Path) -> Path:
    """Write ``result`` to ``path`` (its folder is made) so that a reader finds the whole file or none.

    Raises OSError when the disk refuses; what was at ``path`` before is then untouched.
    """
    path = Path(path)
    storage.write_json(path, _plain(result))
    return path


def load(path: str | Path) -> Result:
    """Read a stored result; raises :class:`UserError` naming everything in the file that is not of the schema."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(Problem("result", str(path), error.strerror or str(error), "name a readable file")) from None
    except ValueError as error:
        raise UserError(Problem("result", str(path), f"is not JSON ({error})", "name a stored result")) from None
    if not isinstance(content, dict):
        raise UserError(Problem("result", str(path), "is not a JSON object", "name a stored result"))
    content.setdefault("model", None)  # results stored before there were evaluations
    raise_if_any(_check(content))
    return Result(**{**content, "figures": _with_numbers(content["figures"])})


def _check(content: dict[str, Any]) -> list[Problem]:
    """Every way in which a file's content departs from :class:`Result`."""
    if content.get("schema") != SCHEMA:
        found = content.get("schema")
        return [Problem("schema", found, f"this version reads schema {SCHEMA}", "use the version that wrote it")]
    kinds: dict[str, tuple[type, ...]] = {
        "command": (list,),
        "started": (str,),
        "seed": (int, type(None)),
        "commit": (dict, type(None)),
        "model": (dict, type(None)),
        "finished": (str, type(None)),
        "schema": (int,),
    }
    names = [entry.name for entry in dataclasses.fields(Result)]
    problems = []
    for name in names:
        expected = kinds.get(name, (dict,))
        if name not in content:
            problems.append(Problem(name, None, "is missing", "the file was not written by tape_ds.results.save"))
        elif not isinstance(content[name], expected) or isinstance(content[name], bool):
            wanted = " or ".join("null" if kind is type(None) else kind.__name__ for kind in expected)
            problems.append(Problem(name, content[name], f"is not of type {wanted}", "restore the file"))
    for name in sorted(set(content) - set(names)):
        problems.append(Problem(name, content[name], "is not a field of a result", did_you_mean(name, names)))
    return problems


def _plain(value: Any) -> Any:
    """``value`` as JSON data: paths, arrays and dataclasses become plain, non-finite numbers become words."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain(dataclasses.asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(entry) for entry in value), key=str)
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if hasattr(value, "tolist"):  # a numpy or torch array or scalar
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def _with_numbers(value: Any) -> Any:
    """Return the reverse of :func:`_plain` for numbers that are not finite."""
    if isinstance(value, dict):
        return {key: _with_numbers(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_with_numbers(entry) for entry in value]
    return NON_FINITE.get(value, value) if isinstance(value, str) else value


def redact(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration as plain data with every credential replaced, found by the name it goes under or by what
    it looks like."""
    plain: dict[str, Any] = _by_name(_plain(config))
    return plain


def _by_name(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {redacted(key): _by_name(entry, key) for key, entry in value.items()}
    if isinstance(value, list):
        return [_by_name(entry, name) for entry in value]
    if value and isinstance(value, str) and SECRET_NAME.search(name):
        return REDACTED
    return redacted(value) if isinstance(value, str) else value


def _each_text(value: Any) -> Any:
    """Plain data with what looks like a credential replaced in each of its texts, keys among them."""
    if isinstance(value, dict):
        return {redacted(key): _each_text(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_each_text(entry) for entry in value]
    return redacted(value) if isinstance(value, str) else value


def _redact_command(command: Sequence[str]) -> list[str]:
    """Return a command line with the values of options such as ``--hub_token`` replaced."""
    shown = []
    secret_follows = False
    for argument in command:
        option, equals, value = argument.partition("=")
        names_secret = option.startswith("-") and bool(SECRET_NAME.search(option.lstrip("-")))
        if secret_follows and not argument.startswith("--"):
            shown.append(REDACTED)
        elif names_secret and equals and value:
            shown.append(f"{option}={REDACTED}")
        else:
            shown.append(redacted(argument))
        secret_follows = names_secret and not equals
    return shown


def passkeys_of(rows: Sequence[Mapping[str, Any]], variant: str | None = None) -> list[Mapping[str, Any]]:
    """Return rows of a run's figure ``passkey`` that are of one model: the variant of that name, by default the one
    that the run made, which stands last. Rows that name no variant are of that one alone."""
    wanted = rows[-1].get("variant") if rows and variant is None else variant
    return [row for row in rows if row.get("variant") == wanted]
