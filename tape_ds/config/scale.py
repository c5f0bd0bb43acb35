"""The section of every recipe about sequence and tensor parallelism.

Processes may share the tokens of a sequence (ZeRO's shards stay spread over all processes), or every layer's heads and
columns (ZeRO shards the part of a process over those with the same part).
"""

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from tape_ds.config import deepspeed_config, trainer
from tape_ds.config.trainer import RecipeView
from tape_ds.distributed.layout import SEQUENCE, TENSOR, check_cuts, check_heads
from tape_ds.errors import Problem
from tape_ds.fields import FREE, Section, rule
from tape_ds.models.files.config_file import has_llamas_names


class Scale(Section):
    """How processes share the work."""

    sequence_parallel_size: Annotated[int, FREE] = Field(1, ge=1)
    """Neighbouring processes that share the tokens of the same sequences (Ulysses): each holds a part of every
    sequence, and attends with a part of the heads. Divides the processes and the model's query heads;
    ``global_batch_size`` and ``per_device_train_batch_size`` count whole sequences, of one such group the latter."""
    tensor_parallel_size: Annotated[int, FREE] = Field(1, ge=1)
    """Neighbouring processes that share every layer's heads and columns, and the vocabulary (Megatron-LM), in training
    and scoring; with ZeRO-1 or 2. Divides the processes and the model's query heads; batch sizes as above."""

    @property
    def ways(self) -> int:
        """Processes that work on the same sequences."""
        return self.sequence_parallel_size * self.tensor_parallel_size

    @property
    def field(self) -> str:
        """The one of the two that is above 1; they exclude each other."""
        if self.sequence_parallel_size > 1:
            return SEQUENCE
        return TENSOR

    @rule(SEQUENCE, TENSOR, "deepspeed")
    def _groups(self, recipe: RecipeView) -> Iterator[Problem]:
        size = self.tensor_parallel_size
        engine = recipe.deepspeed
        if self.ways > 1 and not recipe.trains:
            yield Problem(self.field, self.ways, "nothing is trained", "remove it")
        else:
            yield from check_groups(self, recipe.world_size)
        if size > 1 and engine is None:
            wrong = "only DeepSpeed averages gradients among the processes with the same pieces"
            yield Problem(
                TENSOR, size, wrong, "deepspeed: zero1 or zero2" if recipe.trains else "remove it"
            )
        elif size > 1 and (stage := deepspeed_config.stage(engine)) not in (1, 2):
            wrong = f"with ZeRO stage {stage}: a model is cut with stage 1 or 2"
            remedy = f"deepspeed: zero1 or zero2; or {TENSOR}: 1 and {SEQUENCE}: {size}"
            yield Problem(TENSOR, size, wrong, remedy)

        # these count on whole sequences
        for name, wrong in (
            (
                "neftune_noise_alpha",
                "its noise is drawn, and scaled, for the sequences as one process holds them",
            ),
            ("torch_compile", "a compiled graph does not hold what processes exchange in a layer"),
            (
                "include_num_input_tokens_seen",
                "it would count a sequence in each process that reads it",
            ),
        ):
            value = getattr(recipe.trainer, name)
            if self.ways > 1 and value and value != trainer.library_default(name):
                yield Problem(
                    name,
                    value,
                    f"with {self.field} above 1: {wrong}",
                    f"remove it, or {self.field}: 1",
                )

    @rule("deepspeed")
    def _engine(self, recipe: RecipeView) -> Iterator[Problem]:
        # to the engine this is plain data parallelism, with gradients averaged over all processes
        written = deepspeed_config.lookup(recipe.deepspeed or {}, SEQUENCE)
        if written not in (None, 1):
            wrong = "the trainer shares sequences itself, and the engine would average gradients over too few processes"
            remedy = (
                f"remove it from the JSON, and set sequence_parallel_size: {written} in the recipe"
            )
            yield Problem("deepspeed.sequence_parallel_size", written, wrong, remedy)
        written = deepspeed_config.lookup(recipe.deepspeed or {}, "tensor_parallel")
        if written is not None:
            wrong = "the trainer cuts the model itself, position states included"
            remedy = "remove it from the JSON, and set tensor_parallel_size in the recipe"
            yield Problem("deepspeed.tensor_parallel", written, wrong, remedy)


def check_model(scale: Scale, config: Any) -> list[Problem]:
    """Return why a model cannot be divided like this, once its transformers configuration is known."""
    heads = config.num_attention_heads
    key_value_heads = getattr(config, "num_key_value_heads", None) or heads
    found = list(check_heads(heads, key_value_heads, scale.sequence_parallel_size))
    size = scale.tensor_parallel_size
    if size > 1 and not has_llamas_names(config):
        wrong = f"models of the type {config.model_type} are not supported"
        return [*found, Problem(TENSOR, size, wrong, "leave it out, and use zero3")]
    return found + list(check_cuts(config, size))


def check_groups(scale: Scale, world: int) -> Iterator[Problem]:
    """Yield why ``world`` processes do not fall into groups that work on the same sequences."""
    if scale.sequence_parallel_size > 1 and scale.tensor_parallel_size > 1:
        wrong = f"together with {SEQUENCE} = {scale.sequence_parallel_size}: DeepSpeed has groups for one of the two"
        remedy = f"{SEQUENCE}: 1 ({TENSOR} keeps a part of every sequence in each process as well), or {TENSOR}: 1"
        yield Problem(TENSOR, scale.tensor_parallel_size, wrong, remedy)
    elif world % scale.ways:
        fitting = [each for each in range(1, world + 1) if world % each == 0]
        remedy = f"start a multiple of {scale.ways} processes, or give one of: {', '.join(map(str, fitting))}"
        yield Problem(
            scale.field, scale.ways, f"does not divide the job's processes, {world}", remedy
        )
