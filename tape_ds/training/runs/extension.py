"""Runs that extend a pretrained model: its weights and their teacher, and scores of loss, passkeys and RULER."""

from functools import partial

from transformers import BitsAndBytesConfig, TrainerCallback

from tape_ds import encodings
from tape_ds.attention import shifted_groups
from tape_ds.config.extension import ExtensionRecipe
from tape_ds.data import tokenizer as tokenizers
from tape_ds.encodings import scaling, trained_rope
from tape_ds.methods.distillation import Teacher
from tape_ds.models import convert
from tape_ds.models.files.config_file import family_note
from tape_ds.models.loading import extendable
from tape_ds.results import UNTOUCHED, UNTRAINED, WITHOUT_UPDATES
from tape_ds.run_folder import RESULTS
from tape_ds.scoring import tables
from tape_ds.scoring.passkey import PASSKEYS
from tape_ds.scoring.ruler_questions import HAYSTACK, RULER
from tape_ds.scoring.span_losses import SpanLosses
from tape_ds.targets.base import BaseModel
from tape_ds.training.held_out import (
    RopeParameters,
    Variant,
    loss_by_position,
    read_scores,
)
from tape_ds.training.job import TrainingJob
from tape_ds.training.retrieval import Retrieval, rows_of
from tape_ds.training.run import Figures, Run, weights_dtype
from tape_ds.training.runs.extension_data import DataToExtend

SCORES = "results/loss_by_position.json"


class Extension(Run[ExtensionRecipe, DataToExtend]):
    """A run that extends a pretrained model."""

    @classmethod
    def read_data(cls, job: TrainingJob[ExtensionRecipe]) -> DataToExtend:
        return DataToExtend.read(job.recipe, job.fetched.tokenizer, job.arguments.seed)

    @classmethod
    def load_model(cls, job: TrainingJob[ExtensionRecipe], data: DataToExtend) -> extendable.Model:
        arguments = job.arguments
        options: dict[str, object] = {}
        if job.recipe.method.load_in_4bit:
            # NormalFloat, its scales quantised too, and computed in the run's own precision (QLoRA, Dettmers et al.
            # 2023, arXiv:2305.14314). The output head stays whole, and so do position updates, which are no nn.Linear.
            options["device_map"] = {"": arguments.device}
            options["quantization_config"] = BitsAndBytesConfig(
                load_in_4bit=True,
                bnb_4bit_quant_type="nf4",
                bnb_4bit_use_double_quant=True,
                bnb_4bit_compute_dtype=weights_dtype(arguments, trains=False),
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
            "data": self.data.outline(self.recipe),
            "held out": ", ".join(document.name for document in self.data.held_out) or "nothing",
            "vocabulary": vocabulary or f"{self.config.vocab_size:,} rows, a token each",
            **tokenizers.bos_note(self.tokenizer, self.config),
        }

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
            # matplotlib takes a second to import, and one process draws
            from tape_ds.scoring import plots

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
