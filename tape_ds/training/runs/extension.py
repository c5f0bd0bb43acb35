"""Runs that extend a pretrained model: held-out documents, passkeys, RULER, and PoSE or packed sequences."""

from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from transformers import BitsAndBytesConfig, PreTrainedTokenizerBase, TrainerCallback

from tape_ds import encodings, paths
from tape_ds.attention import shifted_groups
from tape_ds.config.extension import ExtensionRecipe
from tape_ds.data import passkey
from tape_ds.data import tokenizer as tokenizers
from tape_ds.data.bad_rows import BadRows
from tape_ds.data.mix import MixedSequences, mix
from tape_ds.data.order import NoSamples, TrainingSequences
from tape_ds.data.pack import pack
from tape_ds.data.pose import PoseSequences
from tape_ds.data.retrieval.sequences import RetrievalForm, RetrievalSequences, writer_of
from tape_ds.data.selection import select, token_counts, upsampled
from tape_ds.data.sources import generated, weights
from tape_ds.data.tokenized import scored_rows
from tape_ds.encodings import scaling, trained_rope
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.methods.distillation import Teacher
from tape_ds.models import convert
from tape_ds.models.files.config_file import family_note
from tape_ds.models.loading import extendable
from tape_ds.results import UNTOUCHED, UNTRAINED, WITHOUT_UPDATES
from tape_ds.run_folder import RESULTS
from tape_ds.scoring import plots, tables
from tape_ds.scoring.passkey import PASSKEYS
from tape_ds.scoring.ruler_questions import HAYSTACK, RULER, RulerQuestion
from tape_ds.scoring.span_losses import SpanLosses
from tape_ds.targets.base import BaseModel
from tape_ds.training.held_out import (
    EvalDocument,
    RopeParameters,
    Variant,
    loss_by_position,
    read_scores,
)
from tape_ds.training.job import TrainingJob
from tape_ds.training.retrieval import Retrieval, draw_ruler, rows_of
from tape_ds.training.run import Data, Figures, Run, sample_count, weights_dtype

SCORES = "results/loss_by_position.json"
Sequences: TypeAlias = TrainingSequences | RetrievalSequences | MixedSequences | NoSamples


@dataclass(frozen=True, kw_only=True)
class DataToExtend(Data):
    """Training sequences, held-out documents and questions of an extension."""

    sequences: Sequences
    held_out: list[EvalDocument]
    prompts: list[passkey.PasskeyQuestion]
    """Each hides a number that the model is asked for."""
    ruler: list[RulerQuestion]


class Extension(Run[ExtensionRecipe, DataToExtend]):
    """A run that extends a pretrained model."""

    @classmethod
    def read_data(cls, job: TrainingJob[ExtensionRecipe]) -> DataToExtend:
        recipe = job.recipe
        tokenizer = job.fetched.tokenizer
        asked = recipe.evaluation
        bad_rows = BadRows(recipe.data.skip.bad_rows)
        held_out = held_out_documents(recipe, tokenizer, bad_rows)
        # the same for every method
        prompts = passkey.draw(
            tokenizer,
            asked.passkey_lengths,
            asked.passkey_trials,
            job.arguments.seed,
            asked.passkey_form,
        )
        ruler = draw_ruler(tokenizer, recipe.ruler)
        sequences: Sequences = NoSamples()
        if recipe.trains:
            sequences = training_sequences(recipe, tokenizer, bad_rows)
        return DataToExtend(
            sequences=sequences, bad_rows=bad_rows, held_out=held_out, prompts=prompts, ruler=ruler
        )

    @classmethod
    def load_model(cls, job: TrainingJob[ExtensionRecipe], data: DataToExtend) -> extendable.Model:
        arguments = job.arguments
        options: dict[str, object] = {}
        if job.recipe.method.load_in_4bit:
            # NormalFloat, its scales quantised too, and computed in the run's own precision (QLoRA, Dettmers et al.
            # 2023, arXiv:2305.14314). The output head stays whole, and so do position updates, which are no nn.Linear.
            compute_dtype = torch.float32
            if arguments.bf16:
                compute_dtype = torch.bfloat16
            elif arguments.fp16:
                compute_dtype = torch.float16
            options["device_map"] = {"": arguments.device}
            options["quantization_config"] = BitsAndBytesConfig(
                load_in_4bit=True,
                bnb_4bit_quant_type="nf4",
                bnb_4bit_use_double_quant=True,
                bnb_4bit_compute_dtype=compute_dtype,
                llm_int8_skip_modules=["lm_head"],
            )
        dtype = weights_dtype(arguments, job.recipe.trains)
        return extendable.load(job.base.folder, job.fetched.config, dtype=dtype, **options)

    @classmethod
    def load_teacher(cls, job: TrainingJob[ExtensionRecipe]) -> Teacher | None:
        """Load the base model as it is, in the precision that the run computes in; None where nothing is distilled."""
        method = job.recipe.method
        base = job.base
        if not method.distill:
            return None
        config = base.as_it_is(job.recipe.model.attention_backend)
        model = extendable.load(
            base.folder, config, dtype=weights_dtype(job.arguments, trains=False)
        )
        return Teacher(model.to(job.arguments.device), base.length, method.distill_weight)

    @property
    def base(self) -> BaseModel:
        return self.job.base

    @property
    def rope_parameters(self) -> RopeParameters:
        """``rope_parameters`` of the model that is trained, as this project names them."""
        return trained_rope.extended(
            self.base.rope, self.recipe.rope_parameters, self.recipe.model.target_length
        )

    @property
    def variants(self) -> dict[str, Variant]:
        """Models to score before training: the base model, and RoPE scaling without training where they differ. A base
        with another encoding than RoPE is scored as it starts, which is untouched where nothing was changed."""
        if not self.recipe.evaluation.eval_before:
            return {}
        own = dict(self.base.rope.parameters)
        extended = self.rope_parameters
        same = scaling.same(own, extended, self.base.rope.head_size)
        if not encodings.is_plain(self.base.config):
            if not self.recipe.trains:
                return {}
            native = self.base.config
            same = same and native.position_encoding == self.config.position_encoding
            same = same and native.position_options == self.config.position_options
            return {UNTOUCHED if same else untrained_name(extended): None}
        # a model without positions in attention computes as it is, whatever its base had
        variants: dict[str, Variant] = {UNTOUCHED: own if self.base.rope.is_used else None}
        if self.recipe.trains and not same:
            variants[untrained_name(extended)] = extended
        return variants

    @property
    def attention_span(self) -> float | None:
        if not self.recipe.method.chosen.grouped:
            return None
        group_tokens = self.recipe.method.group_tokens
        return shifted_groups.attention_span(
            self.recipe.window, group_tokens, self.config.num_attention_heads
        )

    def outline(self) -> dict[str, str]:
        recipe = self.recipe
        target = recipe.model.target_length
        millions = self.parameter_counts[0] / 1e6
        size = f"{millions:,.1f} M parameters, native context {self.base.length:,} -> {target:,}"
        start = trained_rope.described_change(self.base.rope, recipe.rope_parameters, target)
        vocabulary = convert.rows_note(self.base.config, self.tokenizer)
        return {
            "model": f"{recipe.model.model}, {size}{family_note(self.base.config.to_dict())}",
            "encoding": f"{encodings.described(self.config)} from {start}",
            "data": self._outline_of_data(),
            "held out": ", ".join(document.name for document in self.data.held_out) or "nothing",
            "vocabulary": vocabulary or f"{self.config.vocab_size:,} rows, a token each",
            **tokenizers.bos_note(self.tokenizer, self.config),
        }

    def _outline_of_data(self) -> str:
        data = self.recipe.data
        sequences = self.data.sequences
        if isinstance(sequences, NoSamples):
            return sequences.origin
        form = f"packing {data.packing}"
        if data.pose.chunks > 1:
            form = f"PoSE with {data.pose.chunks} chunks"
        outline = f"{sequences.origin}, {form}"
        # which name their sources themselves
        if not isinstance(sequences, MixedSequences):
            outline = f"{weights.described(data.train_data)}: {outline}"
        return outline

    def scoring(self) -> list[TrainerCallback]:
        trained = f"{self.recipe.method.method}, trained"
        final_name = trained if self.recipe.trains else untrained_name(self.rope_parameters)
        made: dict[str, Variant] = {final_name: None}
        callbacks: list[TrainerCallback] = []
        native = self.base.length
        if self.data.held_out:
            after = made
            span = self.recipe.evaluation.eval_span
            if self.recipe.trains and encodings.without_updates(self.config):
                # before the model itself: the trained model comes last in tables
                after = {f"{trained}, {WITHOUT_UPDATES}": WITHOUT_UPDATES, **made}
            show = partial(tables.print_loss_by_position, native_length=native)
            callbacks.append(
                loss_by_position(
                    self.data.held_out, span, self.variants, after, self.output / SCORES, show
                )
            )
        for asked in self.retrievals:
            if asked.questions:
                callbacks.append(asked.around(self.tokenizer, self.variants, made))
        return callbacks

    @property
    def retrievals(self) -> tuple[Retrieval, Retrieval]:
        """Passkeys, and RULER; either may have no question."""
        folder = self.output / RESULTS
        prompts = sorted(self.data.prompts, key=lambda prompt: prompt.length)
        show = partial(tables.print_passkeys, native_length=self.base.length)
        return (
            Retrieval(PASSKEYS, prompts, folder / "passkey.json", show),
            Retrieval(RULER, self.data.ruler, folder / "ruler.json", tables.print_ruler),
        )

    def figures(self) -> Figures:
        losses_of = {}
        if self.data.held_out:
            for variant, by_document in read_scores(self.output / SCORES).items():
                losses_of[variant] = {
                    name: losses.to_dict() for name, losses in by_document.items()
                }
        passkeys, ruler = self.retrievals
        return {
            "native_length": self.base.length,
            "loss_by_position": losses_of,
            "passkey": rows_of(passkeys.read()),
            "ruler": rows_of(ruler.read()),
            "ruler_haystack": HAYSTACK if self.data.ruler else None,
        }

    def show(self) -> None:
        native = self.base.length
        scores = read_scores(self.output / SCORES) if self.data.held_out else {}
        if scores:
            merged = {
                variant: SpanLosses.merge(parts.values()) for variant, parts in scores.items()
            }
            # the differences are from the model that training began with
            start = next((name for name in reversed(self.variants) if name in merged), None)
            plots.loss_by_position(
                merged, self.output / RESULTS / "loss_by_position.png", native, start
            )
            tables.print_loss_by_position(scores, native)
        for asked in self.retrievals:
            if asked.questions:
                asked.show(asked.read())


def untrained_name(rope_parameters: RopeParameters) -> str:
    """Return the name of the scaled but untrained model: ``yarn x2, untrained``, or ``theta 1e+06, untrained``."""
    name = rope_parameters["rope_type"]
    if name == "default":
        name = f"theta {rope_parameters['rope_theta']:g}"
    factor = rope_parameters.get("factor")
    if factor:
        name += f" x{factor:g}"
    return f"{name}{UNTRAINED}"


def training_sequences(
    recipe: ExtensionRecipe, tokenizer: PreTrainedTokenizerBase, bad_rows: BadRows
) -> TrainingSequences | RetrievalSequences | MixedSequences:
    data = recipe.data
    cache = paths.data_cache(data.data_cache)
    end = None
    if data.append_eos:
        if tokenizer.eos_token_id is None:
            wrong = "the model's tokenizer has no EOS token"
            raise UserError(
                Problem(
                    "append_eos", True, wrong, "remove it; borders are kept in document_ids anyway"
                )
            )
        end = int(tokenizer.eos_token_id)

    def sequences_of(specs: list[str], seed: int) -> TrainingSequences | RetrievalSequences:
        pose = None
        if data.pose.chunks > 1:
            pose = PoseSequences(data.window, recipe.model.target_length, data.pose)
        source = generated.only_one(specs)
        if source is not None:
            form = RetrievalForm(data.window, pose, data.packing == "single", data.attend_across)
            writer = writer_of(source, tokenizer, cache, bad_rows, end)
            return RetrievalSequences(source, writer, form, samples=samples, seed=seed)
        found = select(
            specs, tokenizer, "train", cache, data.min_document_tokens, data.max_documents, bad_rows
        )
        origin = str(found)
        if data.min_document_tokens > 1:
            origin += f", none below {data.min_document_tokens:,}"
        documents = upsampled(found.documents, data.upsample)
        if data.upsample:
            origin += f"; long ones again: {len(documents):,} documents, {int(token_counts(documents).sum()):,} tokens"
        sequences = documents
        if pose is None:
            sequences = pack(documents, data.window, cache, data.packing, end, specs=specs)
            origin += f"; {int(token_counts(sequences).sum()):,} in {len(sequences):,} sequences"
        return TrainingSequences(
            sequences,
            samples=sample_count(recipe, len(sequences)),
            seed=seed,
            pose=pose,
            attend_across=data.attend_across,
            origin=origin,
        )

    # of a source that ends, sequences_of counts its own
    samples = sample_count(recipe, sequences=0)
    return mix(data.train_data, sequences_of, samples=samples, seed=recipe.trainer_value("seed"))


def held_out_documents(
    recipe: ExtensionRecipe, tokenizer: PreTrainedTokenizerBase, bad_rows: BadRows
) -> list[EvalDocument]:
    """Return the evaluation documents, each cut to ``eval_length`` tokens, so that positions compare."""
    length = recipe.evaluation.eval_length
    cache = paths.data_cache(recipe.data.data_cache)
    documents: list[EvalDocument] = []
    problems = []
    for spec in recipe.data.eval_data:
        for row in scored_rows([spec], tokenizer, cache, bad_rows):
            if len(row["input_ids"]) < length:
                wrong = f"{row['name']} has {len(row['input_ids'])} tokens, fewer than eval_length = {length}"
                problems.append(
                    Problem("eval_data", spec, wrong, "name longer documents, or lower eval_length")
                )
                continue
            name = row["name"]
            # two specs may each have a document of this name
            if any(document.name == name for document in documents):
                name = f"{name} ({spec})"
            documents.append(EvalDocument(name, torch.tensor([row["input_ids"][:length]])))
    raise_if_any(problems)
    return documents
