"""From a checked extension recipe to a run: a pretrained model, what of it is trained, sequences and held-out
documents."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedTokenizerBase, TrainerCallback, TrainingArguments

from tape_ds import methods, paths
from tape_ds.checkpoint import trained
from tape_ds.checkpoint.trained import TrainedRecord
from tape_ds.data import passkey
from tape_ds.data import tokenizer as tokenizers
from tape_ds.data.bad_rows import BadRows
from tape_ds.data.order import TrainingSequences
from tape_ds.data.mix import MixedSequences, mix
from tape_ds.data.pack import pack
from tape_ds.data.tokenized import scored_rows
from tape_ds.data.pose import PoseSequences
from tape_ds.data.selection import select, token_counts
from tape_ds.data.sources import weights
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds import encodings
from tape_ds.models import rows as rows_of_vocabulary
from tape_ds.attention.shifted_groups import attention_span
from tape_ds.methods.distillation import Teacher
from tape_ds.models.flops import training_flops_per_token
from tape_ds.models.loading import config_file, configuration, extendable, model_folder
from tape_ds.models.loading.families import by_class
from tape_ds.encodings import scaling, trained_rope
from tape_ds.config.extension import ExtensionRecipe
from tape_ds.results import WITHOUT_UPDATES
from tape_ds.run_folder import RESULTS
from tape_ds.scoring.span_losses import SpanLosses
from tape_ds.training import identity, model_config, plots, tables
from tape_ds.training.callbacks import LossByPosition, PasskeyRetrieval
from tape_ds.training.held_out import (
    Found,
    HeldOut,
    Scores,
    Variant,
    passkey_rows,
    read_passkeys,
    read_scores,
)
from tape_ds.training.run import Run, fingerprints, sample_count, start, weights_dtype

SCORES = "results/loss_by_position.json"
PASSKEYS = "results/passkey.json"


@dataclass(frozen=True, kw_only=True)
class Extension(Run):
    """A run that extends a pretrained model."""

    recipe: ExtensionRecipe
    native: PreTrainedConfig
    """Configuration of the base model."""
    held_out: list[HeldOut]
    prompts: list[passkey.PasskeyPrompt]
    """What hides a number that the model is asked for."""

    @property
    def record(self) -> TrainedRecord:
        """As every run's; which parameters are trained depends on the method."""
        return TrainedRecord(**self.origin, method=self.recipe.method.method, names=self.names)

    @property
    def rope_parameters(self) -> dict[str, Any]:
        """``rope_parameters`` of the model that is trained, as this project names them."""
        return trained_rope.extended(self.own_rope, self.recipe.rope_parameters, self.recipe.model.target_length)

    @property
    def own_rope(self) -> trained_rope.TrainedRope:
        """The base model's RoPE."""
        return trained_rope.read(self.native.to_dict(), self.recipe.model.model)

    @property
    def variants(self) -> dict[str, dict[str, Any] | None]:
        """What is measured before training: the base model, and RoPE scaling without training where they differ. A
        base with another encoding than RoPE is scored as it starts, which is untouched where nothing was changed."""
        if not self.recipe.evaluation.eval_before:
            return {}
        own, extended = dict(self.own_rope.parameters), self.rope_parameters
        same = scaling.same(own, extended, self.own_rope.head_size)
        if not encodings.is_plain(self.native):
            native, config = self.native, self.config
            same = same and native.position_encoding == config.position_encoding
            same = same and native.position_options == config.position_options
            return {"untouched" if same else untrained_name(extended): None} if self.recipe.trains else {}
        variants: dict[str, dict[str, Any] | None] = {"untouched": own}
        if self.recipe.trains and not same:
            variants[untrained_name(extended)] = extended
        return variants

    @property
    def flops_per_token(self) -> float:
        """As every run's; attention in groups is the less work."""
        if not self.recipe.method.chosen.grouped:
            return super().flops_per_token
        total, trained = self.parameter_counts
        window, group = self.recipe.window, self.recipe.method.group_tokens
        span = attention_span(window, group, self.config.num_attention_heads)
        return training_flops_per_token(self.config, window, trained / total, attention_span=span)

    def outline(self) -> dict[str, str]:
        """Model with its lengths, encoding, sequences and documents."""
        recipe, config, native = self.recipe, self.config, self.native.to_dict()
        chunks, mixed = recipe.data.pose.chunks, isinstance(self.sequences, MixedSequences)
        target = recipe.model.target_length
        return {
            "model": f"{recipe.model.model}, {self.parameter_counts[0] / 1e6:,.1f} M parameters, native context "
            f"{self.native.max_position_embeddings:,} -> {target:,}{by_class(native)}",
            "encoding": f"{encodings.described(config)} from "
            + trained_rope.described_change(self.own_rope, recipe.rope_parameters, target),
            "data": ("" if mixed else f"{weights.described(recipe.data.train_data)}: ")
            + f"{self.sequences.origin}, "
            + (f"PoSE with {chunks} chunks" if chunks > 1 else f"packing {recipe.data.packing}")
            if recipe.trains
            else "none is read: nothing is trained",
            "held out": ", ".join(document.name for document in self.held_out) or "nothing",
            "vocabulary": rows_of_vocabulary.rows_note(self.native, self.tokenizer)
            or f"{self.config.vocab_size:,} rows, a token each",
            **tokenizers.bos_note(self.tokenizer, config),
        }

    def scoring(self) -> list[TrainerCallback]:
        """Return loss by position, where there is text to score; passkeys, where the recipe has lengths for them."""
        trained = f"{self.recipe.method.method}, trained"
        made: dict[str, Variant] = {trained if self.recipe.trains else untrained_name(self.rope_parameters): None}
        callbacks: list[TrainerCallback] = []
        if self.held_out:
            after, span = made, self.recipe.evaluation.eval_span
            if self.recipe.trains and encodings.without_updates(self.config):
                # Before the model itself: what was trained stands last.
                after = {f"{trained}, {WITHOUT_UPDATES}": WITHOUT_UPDATES, **made}
            callbacks.append(LossByPosition(self.held_out, span, self.variants, after, self.output / SCORES))
        if self.prompts:
            prompts, file = self.prompts, self.output / PASSKEYS
            callbacks.append(PasskeyRetrieval(prompts, self.tokenizer, self.variants, made, file))
        return callbacks

    def _scores(self) -> Scores:
        return read_scores(self.output / SCORES) if self.held_out else {}

    def _passkeys(self) -> Found:
        return read_passkeys(self.output / PASSKEYS) if self.prompts else {}

    def figures(self) -> dict[str, Any]:
        """Loss by position: variant -> document -> spans, what was trained last; passkeys by variant and length, in the
        same order."""
        scores = self._scores()
        return {
            "native_length": self.native.max_position_embeddings,
            "loss_by_position": {v: {n: part.to_dict() for n, part in parts.items()} for v, parts in scores.items()},
            "passkey": passkey_rows(self._passkeys()),
        }

    def show(self) -> None:
        """A picture of all documents together, and a table for each."""
        scores, native = self._scores(), self.native.max_position_embeddings
        if scores:
            merged = {variant: SpanLosses.merge(parts.values()) for variant, parts in scores.items()}
            start = next((name for name in reversed(self.variants) if name in merged), None)
            plots.loss_by_position(merged, self.output / RESULTS / "loss_by_position.png", native, start)
            tables.print_loss_by_position(scores, native)
        if self.prompts:
            tables.print_passkeys(self._passkeys(), native)


def untrained_name(rope_parameters: dict[str, Any]) -> str:
    """Return how the scaled but untrained start is called in tables: ``yarn x2, untrained``, or ``theta 1e+06,
    untrained``."""
    name, factor = rope_parameters["rope_type"], rope_parameters.get("factor")
    name = f"theta {rope_parameters['rope_theta']:g}" if name == "default" else name
    return f"{name} x{factor:g}, untrained" if factor else f"{name}, untrained"


def assemble(recipe: ExtensionRecipe) -> Extension:
    """Build everything up to the trainer.

    Raises:
        UserError: whatever only the model's own files or the data can tell, on every rank alike.
    """
    base = model_folder.resolve(base_path(recipe.model.model))
    native = configuration.read(base)
    raise_if_any(model_config.check_fit(recipe, native))
    recipe = model_config.fitted(recipe, native)
    tokenizer = tokenizers.load(base, "model")
    raise_if_any(rows_of_vocabulary.check_rows(native, tokenizer))
    config = model_config.extended(recipe, native, tokenizer)
    read = partial(fingerprints, weights.specs_of(recipe.data.train_data) if recipe.trains else [])
    decides = identity.of(recipe, tokenizer, read(), base)
    started = start(recipe, config, decides, read)
    arguments, bad_rows = started.arguments, BadRows(recipe.data.skip.bad_rows)
    held_out, asked = held_out_documents(recipe, tokenizer, bad_rows), recipe.evaluation
    lengths, trials = asked.passkey_lengths, asked.passkey_trials
    prompts = passkey.draw(tokenizer, lengths, trials, arguments.seed, asked.passkey_form)  # the same for every method
    # Last: it may take hours to be tokenised.
    sequences: Any = training_sequences(recipe, tokenizer, bad_rows) if recipe.trains else []
    dtype = weights_dtype(arguments, recipe.trains)
    model = extendable.load(base, config, dtype=dtype, **quantisation(recipe, arguments))
    prepared = methods.prepare(recipe.method.method, model, recipe.method)
    return Extension(
        recipe=recipe,
        arguments=arguments,
        native=native,
        origin=trained.origin(base_path(recipe.model.model), base),
        config=config,
        model=prepared.model,
        names=prepared.names,
        tokenizer=tokenizer,
        sequences=sequences,
        bad_rows=bad_rows,
        teacher=teacher_of(recipe, base, native, arguments),
        held_out=held_out,
        prompts=prompts,
        identity=decides,
        resumed=started.resumed,
    )


def teacher_of(
    recipe: ExtensionRecipe, base: str | Path, native: PreTrainedConfig, arguments: TrainingArguments
) -> Teacher | None:
    """Return the base model as it is, in the precision that the run computes in; None where nothing is distilled."""
    if not recipe.method.distill:
        return None
    config = model_config.untouched(native, recipe.model.attention_backend)
    model = extendable.load(base, config, dtype=weights_dtype(arguments, trains=False))
    return Teacher(model.to(arguments.device), native.max_position_embeddings, recipe.method.distill_weight)


def quantisation(recipe: ExtensionRecipe, arguments: TrainingArguments) -> dict[str, Any]:
    """Arguments of ``from_pretrained`` where the base is held in 4 bits: NormalFloat, its scales quantised too, and
    computed in the run's own precision (QLoRA, Dettmers et al. 2023, arXiv:2305.14314). The output head stays whole,
    and so do position updates, which are no ``nn.Linear``."""
    if not recipe.method.load_in_4bit:
        return {}
    from transformers import BitsAndBytesConfig

    kind = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16 if arguments.bf16 else torch.float16 if arguments.fp16 else torch.float32,
        llm_int8_skip_modules=["lm_head"],
    )
    return {"quantization_config": kind, "device_map": {"": arguments.device}}


def base_path(model: str) -> str:
    """Return the recipe's model so that it is found from any folder: a path absolute, anything else as it is."""
    path = Path(model).expanduser()
    return str(path.absolute()) if model != config_file.SMOLLM2 and path.exists() else model


def training_sequences(
    recipe: ExtensionRecipe, tokenizer: PreTrainedTokenizerBase, bad_rows: BadRows | None = None
) -> TrainingSequences | MixedSequences:
    """Return the run's samples: as many as its steps (or epochs) consume.

    Raises:
        UserError: the data, or ``append_eos`` where the tokenizer has no EOS.
    """
    bad_rows = bad_rows or BadRows(recipe.data.skip.bad_rows)
    data, samples, seed = recipe.data, sample_count(recipe, sequences=0), recipe.trainer_value("seed")
    if data.append_eos and tokenizer.eos_token_id is None:
        wrong = "the model's tokenizer has no EOS token"
        raise UserError(Problem("append_eos", True, wrong, "remove it; borders are kept in document_ids anyway"))
    return mix(data.train_data, partial(_sequences_of, recipe, tokenizer, bad_rows), samples=samples, seed=seed)


def _sequences_of(
    recipe: ExtensionRecipe,
    tokenizer: PreTrainedTokenizerBase,
    bad_rows: BadRows,
    specs: list[str],
    seed: int,
) -> TrainingSequences:
    """Return samples of these sources together, with this seed."""
    data, cache = recipe.data, paths.data_cache(recipe.data.data_cache)
    end = int(tokenizer.eos_token_id) if data.append_eos else None
    found = select(specs, tokenizer, "train", cache, data.min_document_tokens, data.max_documents, bad_rows)
    origin = f"{found}" + f", none below {data.min_document_tokens:,}" * (data.min_document_tokens > 1)
    if data.pose.chunks > 1:
        sequences, pose = found.documents, PoseSequences(data.window, recipe.model.target_length, data.pose)
    else:
        sequences, pose = pack(found.documents, data.window, cache, data.packing, end, specs=specs), None
        origin += f"; {int(token_counts(sequences).sum()):,} in {len(sequences):,} sequences"
    return TrainingSequences(
        sequences,
        samples=sample_count(recipe, len(sequences)),
        seed=seed,
        pose=pose,
        attend_across=data.attend_across,
        origin=origin,
    )


def held_out_documents(
    recipe: ExtensionRecipe, tokenizer: PreTrainedTokenizerBase, bad_rows: BadRows | None = None
) -> list[HeldOut]:
    """Return the evaluation documents, each cut to ``eval_length`` tokens.

    Raises:
        UserError: a document is shorter; all are scored at one length, so that positions compare.
    """
    length = recipe.evaluation.eval_length
    documents: list[HeldOut] = []
    problems = []
    for spec in recipe.data.eval_data:
        for row in scored_rows([spec], tokenizer, paths.data_cache(recipe.data.data_cache), bad_rows):
            if len(row["input_ids"]) < length:
                wrong = f"{row['name']} has {len(row['input_ids'])} tokens, fewer than eval_length = {length}"
                problems.append(Problem("eval_data", spec, wrong, "name longer documents, or lower eval_length"))
                continue
            taken = any(document.name == row["name"] for document in documents)  # two specs may each have one
            name = f"{row['name']} ({spec})" if taken else row["name"]
            documents.append(HeldOut(name, torch.tensor([row["input_ids"][:length]])))
    raise_if_any(problems)
    return documents
