"""Scores within the run that trains: held-out documents (loss by position, perplexity by length).

For loss by position, and the questions of :mod:`tape_ds.training.retrieval`, two models are scored before training,
from the same weights: ``untouched`` (the base model, its own RoPE parameters) and ``untrained`` (RoPE scaled by the
recipe, which the TAPE model equals at step 0). Jobs, one per variant and document, or per block of a length, are shared
among the ranks.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from peft import PeftModel
from torch import Tensor
from transformers import TrainerCallback, TrainerState

from tape_ds import encodings, storage
from tape_ds.distributed.distributed_map import distributed_map
from tape_ds.models.changed_positions import evaluated_at, positions_of
from tape_ds.models.llama import TapeForCausalLM
from tape_ds.models.loading import extendable
from tape_ds.scoring.losses import Perplexity, bare, score_blocks, score_spans
from tape_ds.scoring.span_losses import SpanLosses

Model: TypeAlias = extendable.Model | PeftModel
RopeParameters: TypeAlias = dict[str, Any]
"""In transformers' terms."""
Variant: TypeAlias = RopeParameters | str | None
"""RoPE parameters to compute with as a plain RoPE model without adapters, WITHOUT_UPDATES for the model with its
position state left as it started, or None for the model as it is."""
Variants: TypeAlias = Mapping[str, Variant]
Scores: TypeAlias = dict[str, dict[str, SpanLosses]]
"""variant -> document -> losses."""


@dataclass(frozen=True)
class EvalDocument:
    """One held-out document, cut to the length that is scored."""

    name: str
    input_ids_1T: Tensor


@dataclass(eq=False)
class ScoredAround(TrainerCallback):
    """Scores variants of the model before the first step and after the last.

    A resumed run keeps the scores of its first part, as far as the questions are the same: scores of different
    questions do not belong in one table.
    """

    announcement: tuple[str, str]
    """The line printed before: texts in front of the variants' names and after them."""
    before: Variants
    after: Variants
    file: Path
    measure: Callable[[Any, Variants], dict[str, Any]]
    """Scores variants of a model, on every rank together."""
    questions: Callable[[Any], Any]
    """Returns the questions of a variant's scores."""
    read: Callable[[Path], dict[str, Any]]
    write: Callable[[Path, dict[str, Any]], None]
    show: Callable[[Any], None] | None = None
    """Prints the scores before training, long before all figures of the run are printed."""

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.global_step > 0:
            return
        if state.is_world_process_zero:
            self.file.unlink(missing_ok=True)
        if self.before:
            found = self._score(kwargs["model"], self.before, state)
            if self.show is not None and state.is_world_process_zero:
                self.show(found)

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self._score(kwargs["model"], self.after, state)

    def _score(self, model: Any, variants: Variants, state: TrainerState) -> dict[str, Any]:
        first = state.is_world_process_zero
        if first:
            print(
                " ".join((self.announcement[0], "; ".join(variants), self.announcement[1])),
                flush=True,
            )
        found = self.measure(model, variants)
        if first:
            same = self.questions(next(iter(found.values())))
            kept = {
                name: each
                for name, each in self.read(self.file).items()
                if self.questions(each) == same
            }
            self.write(self.file, kept | found)
        return found


@dataclass(eq=False)
class ScoredAfter(TrainerCallback):
    """Scores a trained model by ``measure``, on every rank together, and writes its plain values to ``file``, from
    which those of an earlier run are removed."""

    announcement: str
    measure: Callable[[Any], Any]
    file: Path

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self.file.unlink(missing_ok=True)

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            print(self.announcement, flush=True)
        found = self.measure(kwargs["model"])
        if state.is_world_process_zero:
            storage.write_json(self.file, found)


def loss_by_position(
    documents: list[EvalDocument],
    span: int,
    before: Variants,
    after: Variants,
    file: Path,
    show: Callable[[Scores], None] | None = None,
) -> ScoredAround:
    """Return the callback that scores the held-out documents."""

    def measure(model: Model, variants: Variants) -> Scores:
        return score_variants(model, documents, variants, span)

    def questions(found: dict[str, SpanLosses]) -> Any:
        return {name: losses.counts for name, losses in found.items()}

    names = ", ".join(document.name for document in documents)
    announcement = ("scoring", f"on {names} ({documents[0].input_ids_1T.shape[1]} tokens)")
    return ScoredAround(
        announcement, before, after, file, measure, questions, read_scores, write_scores, show
    )


def score_variants(
    model: Model, documents: Sequence[EvalDocument], variants: Variants, span: int
) -> Scores:
    """Score every document under every variant; every rank must call it and gets all results. Under ZeRO-3 documents
    have equal lengths, since all ranks gather the same weights together."""

    def score_one(job: tuple[str, EvalDocument]) -> SpanLosses:
        variant, document = job
        with computing_as(model, variants[variant], document.input_ids_1T.shape[1]):
            return score_spans(model, document.input_ids_1T, span)

    results: Scores = {variant: {} for variant in variants}
    for names in scored_together(model, variants):
        jobs = [(name, document) for name in names for document in documents]
        for (name, document), scored in zip(jobs, distributed_map(score_one, jobs), strict=True):
            results[name][document.name] = scored
    return results


def scored_together(model: Model, variants: Variants) -> list[list[str]]:
    """Return groups of variants that ranks may score at the same time: under ZeRO-3 those that call the same modules,
    since a layer with updates and one without would wait for different weights; else all."""
    sharded = any(hasattr(parameter, "ds_id") for parameter in model.parameters())
    groups: dict[object, list[str]] = {}
    for name, variant in variants.items():
        groups.setdefault(type(variant) if sharded else None, []).append(name)
    return list(groups.values())


@contextlib.contextmanager
def computing_as(model: Model, variant: Variant, length: int) -> Iterator[None]:
    """Make ``model`` compute as the variant; with its own encoding as that is used on ``length`` tokens."""
    own = bare(model)
    with contextlib.ExitStack() as stack:
        if isinstance(variant, str):
            off = encodings.without_updates(own.config)
            assert off is not None, "only a model with updates has this variant"
            stack.enter_context(positions_of(own, encodings.config_at(off, length)))
        elif variant is None and isinstance(own, TapeForCausalLM):
            stack.enter_context(evaluated_at(own, length))
        elif variant is not None:
            if isinstance(model, PeftModel):
                stack.enter_context(model.disable_adapter())
            stack.enter_context(own.with_rope_parameters(variant))
        yield


def write_scores(path: Path, scores: Scores) -> None:
    plain = {
        variant: {name: losses.to_dict() for name, losses in part.items()}
        for variant, part in scores.items()
    }
    storage.write_json(path, plain)


def read_scores(path: Path) -> Scores:
    plain = json.loads(path.read_text()) if path.exists() else {}
    return {
        variant: {name: SpanLosses.from_dict(losses) for name, losses in part.items()}
        for variant, part in plain.items()
    }


def perplexities(
    model: TapeForCausalLM, documents: Sequence[EvalDocument], lengths: Sequence[int]
) -> dict[int, Perplexity]:
    """Return perplexity on the same documents at every length; every rank must call it and gets all results. An
    encoding that depends on the length is used as it is for that length."""
    texts = [document.input_ids_1T for document in documents]
    found = {}
    for length in lengths:
        with evaluated_at(model, length):
            found[length] = score_blocks(model, texts, length, each=distributed_map)
    return found


def read_perplexities(path: Path) -> dict[int, Perplexity]:
    plain = json.loads(path.read_text()) if path.exists() else {}
    return {int(length): Perplexity.from_dict(found) for length, found in plain.items()}
