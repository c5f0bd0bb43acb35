"""What is scored within the run that trains: held-out documents (loss by position, perplexity by length), and passkeys.

For loss by position two models are scored before training, from the same weights: ``untouched`` (the base model, its
own angles) and ``untrained`` (its angles scaled as the recipe says, which is also what the TAPE model computes at step
0). Jobs, one per variant and document, per block of a length, or per prompt, are shared out over the ranks.
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tape_ds import storage
from tape_ds.data.passkey import Prompt
from tape_ds.model import extendable
from tape_ds.model.llama import TapeForCausalLM, evaluated_at
from tape_ds.scoring import passkey, perplexity
from tape_ds.scoring.causal_lm import bare
from tape_ds.scoring.loss_by_position import score
from tape_ds.scoring.passkey import Passkey
from tape_ds.scoring.perplexity import Perplexity
from tape_ds.scoring.span_losses import SpanLosses
from tape_ds.training.shared_work import rounds, share_out

Model: TypeAlias = extendable.Model | PeftModel
WITHOUT_UPDATES = "updates off"
Variant: TypeAlias = dict[str, Any] | str | None
"""``rope_parameters`` to compute with as a plain RoPE model without adapters, WITHOUT_UPDATES for the model with its
position state left as it started, or None for the model as it is."""
Variants: TypeAlias = Mapping[str, Variant]
Scores: TypeAlias = dict[str, dict[str, SpanLosses]]
"""variant -> document -> losses."""


@dataclass(frozen=True)
class HeldOut:
    """One held-out document, cut to the length that is scored."""

    name: str
    input_ids_1T: Tensor


def score_variants(
    model: Model,
    documents: Sequence[HeldOut],
    variants: Variants,
    span: int,
) -> Scores:
    """Score every document under every variant; every rank must call it and gets all results.

    Args:
        model: the model itself, engine hooks on it or not.
        documents: of equal length where ZeRO-3 shards the model, since all ranks gather the same weights together.
        variants: by name.
        span: positions per span.
    """
    results: Scores = {variant: {} for variant in variants}
    for names in _alike(variants):
        jobs = [(name, document) for name in names for document in documents]
        losses = share_out(lambda job: _score_one(model, job[1], variants[job[0]], span), jobs)
        for (name, document), scored in zip(jobs, losses, strict=True):
            results[name][document.name] = scored
    return results


def forwards(documents: Sequence[HeldOut], variants: Variants) -> int:
    """How many forwards of this rank :func:`score_variants` takes."""
    return sum(rounds(len(names) * len(documents)) for names in _alike(variants))


def _alike(variants: Variants) -> list[list[str]]:
    """Names of the variants that call the same modules, which ranks may score beside one another: under ZeRO-3 a layer
    with its updates and one without would wait for different weights."""
    kinds: dict[object, list[str]] = {}
    for name, variant in variants.items():
        kinds.setdefault(type(variant), []).append(name)
    return list(kinds.values())


def _score_one(model: Model, document: HeldOut, variant: Variant, span: int) -> SpanLosses:
    if variant is None:
        return score(model, document.input_ids_1T, span)
    if isinstance(variant, str):
        with bare(model).without_updates():
            return score(model, document.input_ids_1T, span)
    adapters = model.disable_adapter() if isinstance(model, PeftModel) else contextlib.nullcontext()
    with adapters, bare(model).at_angles(variant):
        return score(model, document.input_ids_1T, span)


def write_scores(path: Path, scores: Scores) -> None:
    """Store scores as JSON."""
    plain = {variant: {name: losses.to_dict() for name, losses in part.items()} for variant, part in scores.items()}
    storage.write_json(path, plain)


def read_scores(path: Path) -> Scores:
    """Scores stored by :func:`write_scores`; empty when there are none."""
    if not path.exists():
        return {}
    plain = json.loads(path.read_text())
    return {
        variant: {name: SpanLosses.from_dict(losses) for name, losses in part.items()}
        for variant, part in plain.items()
    }


def perplexities(model: TapeForCausalLM, documents: Sequence[HeldOut], lengths: Sequence[int]) -> dict[int, Perplexity]:
    """Perplexity on the same documents at every length; every rank must call it and gets all results.

    An encoding that is used differently at other lengths than it was trained at is so used here.
    """
    texts = [document.input_ids_1T for document in documents]
    found = {}
    for length in lengths:
        with evaluated_at(model, length):
            found[length] = perplexity.score(model, texts, length, each=share_out)
    return found


def write_perplexities(path: Path, scores: Mapping[int, Perplexity]) -> None:
    """Store perplexities as JSON, by length."""
    storage.write_json(path, {length: found.to_dict() for length, found in scores.items()})


def read_perplexities(path: Path) -> dict[int, Perplexity]:
    """Perplexities stored by :func:`write_perplexities`; empty when there are none."""
    plain = json.loads(path.read_text()) if path.exists() else {}
    return {int(length): Perplexity.from_dict(found) for length, found in plain.items()}


def passkeys(model: Model, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt]) -> list[Passkey]:
    """What the model replies to ``prompts``, by length; every rank must call it and gets all results."""
    return passkey.score(model, tokenizer, prompts, each=share_out)


def write_passkeys(path: Path, found: Sequence[Passkey]) -> None:
    """Store replies as JSON."""
    storage.write_json(path, [each.to_dict() for each in found])


def read_passkeys(path: Path) -> list[Passkey]:
    """Replies stored by :func:`write_passkeys`; empty when there are none."""
    return [Passkey.from_dict(each) for each in json.loads(path.read_text())] if path.exists() else []
