"""Everything that decides the numbers of a run, field by field: stored with every checkpoint, compared before a resume.

A name is ``recipe.FIELD``, ``data.SPEC`` (the fingerprint of a source), ``tokenizer``, ``base.FILE`` (a file of the
base model's weights) or ``code.PACKAGE``. Settings that change no number (folders, logs, trackers, saving, scoring) are
not in it; the number of processes and their sharding are the manifest's.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tape_ds import results
from tape_ds.config import trainer
from tape_ds.config.kinds import KINDS, RENAMED
from tape_ds.config.recipe import Recipe
from tape_ds.data.sources.weights import shares_of
from tape_ds.data.tokenized import tokenizer_fingerprint
from tape_ds.errors import Problem, redacted
from tape_ds.fields import FIXED, FREE, RISKY
from tape_ds.models.files import weight_files
from tape_ds.targets.target import FetchedModel

COMPUTING = (
    *(
        "accelerate",
        "deepspeed",
        "flash-attn",
        "liger-kernel",
        "peft",
        "python",
        "tape_ds",
        "torch",
        "transformers",
    ),
    *("bitsandbytes", "triton"),
)
"""Packages another version of which may compute other numbers."""
DATE = "chat_date"
"""The date that a chat template gets for today: the day of the run's first start, kept by a resumed run."""
COMMIT = "code.commit"
"""Commit of this repository's checkout: a difference is printed and allowed, since most commits change no number."""


@dataclass(frozen=True)
class Difference:
    """A name whose value has changed."""

    name: str
    saved: Any
    now: Any

    @property
    def safe_to_change(self) -> bool:
        """Whether ``resume_anyway`` may pass over it."""
        kind, _, rest = self.name.partition(".")
        if rest == "position_weight_decay" and self.saved is None:
            # older than the group of position parameters: its optimizer state would not fit
            return False
        if kind != "recipe":
            return kind == "code"
        for recipe_kind in KINDS.values():
            field = recipe_kind.fields().get(rest)
            if field is not None and RISKY in field.metadata:
                return True
        return False

    def __str__(self) -> str:
        return f"{self.name} was {_shown(self.saved)} and is {_shown(self.now)}"


def collect(recipe: Recipe, fetched: FetchedModel) -> dict[str, Any]:
    """Return the identity of a run as plain values, that of its data left out (:func:`of_data`)."""
    decides_nothing = {"launcher"}
    for name, field in recipe.fields().items():
        marks = field.metadata
        if FREE in marks or (name in trainer.FIELDS and FIXED not in marks and RISKY not in marks):
            decides_nothing.add(name)
    if not recipe.trains_positions:
        decides_nothing.update(recipe.optimization.flat())

    values = recipe.as_dict()
    identity: dict[str, Any] = {}
    for name, value in sorted(values.items()):
        if name not in decides_nothing:
            identity[f"recipe.{name}"] = _plain(value)
    shares = shares_of(values.get("train_data", []))
    if shares is not None:
        identity["recipe.train_data.weight"] = shares

    identity["tokenizer"] = tokenizer_fingerprint(fetched.tokenizer)
    if fetched.base is not None:
        folder = Path(fetched.base.folder)
        for path in sorted(folder.glob("*.safetensors")) + sorted(folder.glob("*.bin")):
            identity[f"base.{path.name}"] = weight_files.fingerprint(path)

    for name, version in sorted(results.versions().items()):
        if name in COMPUTING:
            identity[f"code.{name}"] = version
    identity[COMMIT] = (results.commit() or {}).get("hash")
    return {**identity, **fetched.identity}


def of_data(fingerprints: Mapping[str, str]) -> dict[str, str]:
    return {f"data.{redacted(spec)}": value for spec, value in fingerprints.items()}


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """Return where two identities differ; a trainer's field that one lacks has transformers' default. Data are compared
    by their content, whatever their specs."""
    renamed = {f"recipe.{old}": f"recipe.{new}" for old, new in RENAMED.items()}
    saved = {renamed.get(name, name): value for name, value in saved.items()}
    # older checkpoints know no files of a base from the hub
    if not _named(saved, "base."):
        now = {name: value for name, value in now.items() if not name.startswith("base.")}
    found = []
    for name in sorted(saved.keys() | now.keys()):
        if name == DATE or name.startswith("data."):
            continue
        before = _value(saved, name)
        after = _value(now, name)
        if before != after:
            found.append(Difference(name, before, after))

    data_before = _named(saved, "data.")
    data_after = _named(now, "data.")
    if list(data_before.values()) == list(data_after.values()):
        return found
    if data_before == data_after:  # the same sources in another order
        return [*found, Difference("data", list(data_before), list(data_after))]
    for name in sorted(data_before.keys() | data_after.keys()):
        if data_before.get(name) != data_after.get(name):
            found.append(Difference(name, data_before.get(name), data_after.get(name)))
    return found


def _named(identity: Mapping[str, Any], beginning: str) -> dict[str, Any]:
    return {name: value for name, value in identity.items() if name.startswith(beginning)}


def problems(folder: Path, found: list[Difference], anyway: bool) -> list[Problem]:
    """Return why a run cannot resume the checkpoint ``folder``, a problem for each name."""
    refused = []
    for each in found:
        if each.name == COMMIT or (anyway and each.safe_to_change):
            continue
        kind, _, name = each.name.partition(".")
        remedy = "go back to what it was, or start in another output_dir"
        if each.safe_to_change:
            remedy = "go back to what it was, or --resume_anyway to continue with the new value"
        elif kind == "data":
            remedy = "restore the data: the sequences still to come would differ; or start in another output_dir"
        wrong = f"{folder.name} was saved by a run with {_shown(each.saved)} ({kind})"
        refused.append(Problem(name or each.name, _shown(each.now), wrong, remedy))
    return refused


def _value(identity: Mapping[str, Any], name: str) -> Any:
    if name in identity:
        return identity[name]
    kind, _, rest = name.partition(".")
    if kind == "recipe" and rest in trainer.FIELDS:
        return _plain(trainer.library_default(rest))
    return None


def _plain(value: Any) -> Any:
    """Return ``value`` as JSON gives it back; infinity, which JSON lacks, is a text."""
    return json.loads(json.dumps(value, default=str), parse_constant=str)


def _shown(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    if len(text) > 60:
        text = text[:57] + "..."
    return text
