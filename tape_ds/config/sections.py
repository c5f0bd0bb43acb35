"""Sections of every recipe: memory, the optimizer's groups, safety, profiling, samples.

How model states are sharded and offloaded is set by the DeepSpeed JSON, see :mod:`.deepspeed_config`.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from tape_ds import encodings
from tape_ds.config import deepspeed_config
from tape_ds.config.command_line import plain
from tape_ds.config.trainer import RecipeView
from tape_ds.errors import Problem, UserError
from tape_ds.fields import COMPARED, FREE, RISKY, Section, Tokens, rule

# fields of several kinds of recipes
Backend = Annotated[
    str, RISKY, Field(description="``auto``, or the name of a backend (docs/kernels.md).")
]
_LIGER = "Liger's kernels for norms, feed-forward and the loss of long batches; auto: on CUDA if it is installed."
Liger = Annotated[Literal["auto", "on", "off"], RISKY, Field(description=_LIGER)]
_CACHE = "in XDG_CACHE_HOME, else in HF_HOME, else in ~/.cache."
DataCache = Annotated[
    str | None,
    FREE,
    Field(description=f"Folder of tokenised data, shared by runs; null: ``tape_ds/data`` {_CACHE}"),
]
_STATE = "dtype of the position state between layers; null: that of the hidden states."
StateDType = Annotated[str | None, Field(description=_STATE)]
_MIXED = "Data specs, or ``{source: SPEC, weight: NUMBER}`` for each: shares of the tokens (docs/data.md)."
Mixture = Annotated[list[str | dict[str, Any]], FREE, COMPARED, Field(description=_MIXED)]


class Memory(Section):
    """Memory savings; how much each saves and costs is in docs/memory.md."""

    checkpoint_layers: Annotated[Literal[1, "selective"], RISKY] = 1
    """With ``activation_checkpointing: true``: compute every block again in the backward (1), or all of it but
    attention (selective)."""
    checkpoint_offload: Annotated[bool, RISKY] = False
    """Keep those blocks' inputs, hidden and position state, in the host's memory meanwhile."""
    mlp_tiles: Annotated[int, RISKY] = Field(1, ge=1)
    """Pieces of a sequence that feed-forwards work on one at a time, each computed again in the backward; for sequences
    so long that the inside of a single feed-forward is too large."""
    expandable_segments: Annotated[bool, FREE] = True
    """Let CUDA's allocator grow its segments, which limits fragmentation; an allocator that the environment configures
    is left alone."""
    force: Annotated[bool, FREE] = False
    """Start although the run is predicted to need more memory than the GPUs have; fine-tune on texts that are longer
    than the model's native length, although its RoPE has no scaling for them."""
    allow_cpu: Annotated[bool, FREE] = False
    """Train on a CPU what is refused there: a model of more than a billion parameters, or a run whose launcher was
    given ``--gpus``. ``use_cpu: true`` and ``DS_ACCELERATOR=cpu`` allow it as well."""

    @rule(
        "activation_checkpointing",
        "checkpoint_layers",
        "checkpoint_offload",
        "activation_checkpointing_kwargs",
    )
    def _checkpointing(self, recipe: RecipeView) -> Iterator[Problem]:
        for name, default in (("checkpoint_layers", 1), ("checkpoint_offload", False)):
            if getattr(self, name) != default and not recipe.trainer.recomputes:
                wrong = "nothing is computed again: activation_checkpointing is off"
                yield Problem(
                    name,
                    getattr(self, name),
                    wrong,
                    "add activation_checkpointing: true, or remove it",
                )
        # transformers' own names for the same, which know nothing of position states
        ours = {"every_n_layers": "checkpoint_layers", "offload": "checkpoint_offload"}
        for key, value in (recipe.trainer.activation_checkpointing_kwargs or {}).items():
            if key in ours:
                wrong = "this stack has a field for it"
                yield Problem(
                    f"activation_checkpointing_kwargs.{key}", value, wrong, f"use {ours[key]}"
                )

    @rule("mlp_tiles", "window", "sequence_parallel_size")
    def _tiles(self, recipe: RecipeView) -> Iterator[Problem]:
        tokens = -(-recipe.window // recipe.scale.sequence_parallel_size)
        if self.mlp_tiles > tokens:
            wrong = f"a process has {tokens:,} tokens of a sequence"
            yield Problem(
                "mlp_tiles", self.mlp_tiles, wrong, "give 1 (whole sequences) or more, up to that"
            )


class Safety(Section):
    """How a run stays alive."""

    keep_every: Annotated[int | None, FREE] = Field(None, ge=1)
    """Keep the checkpoints of steps that this divides, whatever ``save_total_limit`` is."""
    keep_steps: Annotated[list[Annotated[int, Field(ge=1)]], FREE] = []
    """Steps that save, and whose checkpoints are kept."""
    async_save: Annotated[bool, FREE] = False
    """Write checkpoints while training continues: a save takes only the time to copy the state to the CPU's memory, and
    that much memory."""
    resume_anyway: Annotated[bool, FREE] = False
    """Resume although settings differ that change the numbers from here on but break nothing; they are logged."""
    start_anew: Annotated[bool, FREE] = False
    """Begin again in a folder that holds another run: what that run wrote there (checkpoints, trained weights, results,
    metrics) is named, and removed. Files that no run wrote are refused or kept."""
    nonfinite_limit: Annotated[int, FREE] = Field(5, ge=0)
    """Stop after this many steps in a row whose loss or gradient is not finite on some rank; 0: never."""
    spike_sigma: Annotated[float, RISKY] = Field(8.0, ge=0)
    """Standard deviations (estimated from the median's deviations) above the median of the last ``spike_window`` losses
    that make a loss a spike; 0: spikes are not looked for."""
    spike_window: Annotated[int, RISKY] = Field(128, ge=8)
    """Losses that a new one is compared with."""
    spike_action: Annotated[Literal["warn", "skip"], RISKY] = "warn"
    """At a spike, log it (warn), or leave the step out as well (skip)."""
    watchdog_seconds: Annotated[float, FREE] = Field(1800.0, ge=0)
    """Time without any progress on a rank after which stacks are written and the job is ended; 0: never."""

    @rule()
    def _trainer(self, recipe: RecipeView) -> Iterator[Problem]:
        for name in ("keep_every", "keep_steps"):
            if (value := getattr(self, name)) and recipe.trainer.save_strategy == "no":
                yield Problem(
                    name,
                    value,
                    "save_strategy is no: nothing is saved",
                    f"{name}: null, or save_strategy: steps",
                )
        if self.start_anew and (checkpoint := recipe.trainer.resume_from_checkpoint):
            wrong = f"it removes what resume_from_checkpoint = {checkpoint!r} would resume"
            yield Problem(
                "start_anew", True, wrong, "start_anew: false, or resume_from_checkpoint: null"
            )
        if self.spike_action == "skip" and recipe.trainer.fp16:
            wrong = "fp16's loss scale takes a skipped step for an overflow, and shrinks"
            yield Problem("spike_action", "skip", wrong, "use bf16, or spike_action: warn")


class Averaging(Section):
    """Weights of several checkpoints as one."""

    average_last: Annotated[int | None, FREE] = Field(None, ge=2)
    """Make ``trained``, and what is scored, the mean of this many of the last checkpoints, that of the last step among
    them; null: the weights of the last step."""

    @rule("average_last", "max_steps", "save_strategy", "save_steps", "save_total_limit")
    def _saved(self, recipe: RecipeView) -> Iterator[Problem]:
        count = self.average_last
        limit = recipe.trainer.save_total_limit
        if count is None:
            return
        if not recipe.trains:
            yield Problem("average_last", count, "nothing is trained", "remove it")
        elif recipe.trainer.save_strategy == "no":
            remedy = "average_last: null, or save_strategy: steps"
            yield Problem("average_last", count, "save_strategy is no: nothing is saved", remedy)
        elif limit is not None and limit < count:
            wrong = f"save_total_limit = {limit} keeps fewer"
            yield Problem(
                "average_last", count, wrong, f"save_total_limit: {count}, or average_last: null"
            )
        elif recipe.trainer.max_steps > 0:
            yield from self.check_saves(recipe.trainer.max_steps, recipe.trainer.save_steps)

    def check_saves(self, steps: int, save_steps: float) -> Iterator[Problem]:
        """Yield why a run of ``steps`` steps has too few checkpoints for the mean."""
        count = self.average_last
        if count is None:
            return
        # as transformers counts a share
        every = max(1, math.ceil(save_steps * steps)) if save_steps < 1 else int(save_steps)
        saves = -(-steps // every)
        if saves >= count:
            return
        wrong = f"a run of {steps:,} steps has {saves} with save_steps = {every:,}"
        remedy = "average_last: null"
        if steps >= count:
            remedy = f"save_steps: {steps // count}, or average_last: null"
        yield Problem("average_last", count, wrong, remedy)


class Profile(Section):
    """Steps that are recorded, and where."""

    profile: Annotated[bool, FREE] = False
    """Record some steps with torch's profiler: a trace, the time of operators, on CUDA every allocation, in
    the run's folder under ``profile``. Such steps are slower, all others are not."""
    profile_start: Annotated[int, FREE] = Field(3, ge=1)
    """The first of them, counted from the start of this process; the steps before it are warm-up."""
    profile_steps: Annotated[int, FREE] = Field(2, ge=1)
    """Number of steps; a trace of a large model has hundreds of megabytes for each."""
    profile_ranks: Annotated[list[int], FREE] = [0]
    """Ranks that record."""

    @rule("profile_start", "profile_steps", "max_steps")
    def _steps(self, recipe: RecipeView) -> Iterator[Problem]:
        steps = recipe.trainer.max_steps
        last = self.profile_start + self.profile_steps - 1
        if self.profile and 0 < steps < last:
            wrong = f"with profile_steps = {self.profile_steps} it needs {last} steps, and max_steps = {steps}"
            yield Problem(
                "profile_start",
                self.profile_start,
                wrong,
                "begin earlier, record fewer, or take more steps",
            )
        wrong_ranks = [rank for rank in self.profile_ranks if not 0 <= rank < recipe.world_size]
        if self.profile and (wrong_ranks or not self.profile_ranks):
            remedy = f"give one or more of the ranks 0 to {recipe.world_size - 1}, or remove it"
            wrong = "no such rank" if wrong_ranks else "no rank would record"
            yield Problem("profile_ranks", wrong_ranks, wrong, remedy)


_RATE = "position_learning_rate"
_DECAY = "position_weight_decay"


class Optimization(Section):
    """Learning rate and weight decay of position parameters."""

    position_learning_rate: Annotated[float | str | None, RISKY] = None
    """Learning rate of the encoding's own parameters, which the schedule scales like any other: a number, or a factor
    of ``learning_rate`` such as ``10x``; null: ``learning_rate``."""
    position_weight_decay: Annotated[float, RISKY] = Field(0.0, ge=0)
    """Weight decay of the encoding's own parameters; ``weight_decay`` does not reach them."""

    def position_rate(self, learning_rate: float) -> float:
        """Return the learning rate of position parameters, given that of all others."""
        given = self.position_learning_rate
        if given is None:
            return learning_rate
        if isinstance(given, str):
            return learning_rate * (_factor(given) or 0.0)
        return given

    def outline(self, learning_rate: float) -> str:
        factor = ""
        if isinstance(self.position_learning_rate, str):
            factor = f" ({self.position_learning_rate})"
        rate = f"learning rate {self.position_rate(learning_rate):g}{factor}"
        return f"{rate}, weight decay {self.position_weight_decay:g}"

    @rule(_RATE, _DECAY, "position_encoding", "position_options", "method", "train_position")
    def _trained(self, recipe: RecipeView) -> Iterator[Problem]:
        yield from check_trained(self, recipe.trains_positions)

    @rule(_RATE, "optim", "deepspeed")
    def _values(self, recipe: RecipeView) -> Iterator[Problem]:
        rate = self.position_learning_rate
        optim = recipe.trainer.optim
        number = _factor(rate) if isinstance(rate, str) else rate
        if rate is not None and (number is None or number <= 0):
            wrong = "out of range"
            if number is None:
                wrong = "neither a learning rate nor a factor"
            yield Problem(
                _RATE,
                rate,
                wrong,
                "give a number above 0, a factor of learning_rate such as 10x, or null",
            )
        for name, given in ((_RATE, rate), (_DECAY, self.position_weight_decay or None)):
            # these divide a model's parameters themselves
            if given is not None and optim.startswith(("galore", "apollo", "lomo", "adalomo")):
                wrong = f"optim = {optim!r} divides the model's parameters by itself"
                yield Problem(name, given, wrong, "remove it, or use optim: adamw_torch")
        if (
            rate is not None
            and deepspeed_config.lookup(recipe.deepspeed or {}, "scheduler") is not None
        ):
            wrong = (
                "the scheduler in the DeepSpeed JSON gives all parameters the same learning rate"
            )
            yield Problem(
                _RATE,
                rate,
                wrong,
                "remove the scheduler block from the JSON: the trainer's does the same",
            )


def _factor(text: str) -> float | None:
    """Return the 10 of ``10x``."""
    number: Any = plain(text[:-1]) if text.endswith("x") else None
    if type(number) in (int, float):
        return float(number)
    return None


def learns(encoding: str, options: Mapping[str, Any]) -> bool:
    """Return whether an encoding has parameters to train; False if its name or options are wrong."""
    try:
        chosen = encodings.options_of(encoding, options)
    except UserError:
        return False
    return chosen.learns or chosen.abacus


def check_trained(optimization: Optimization, trained: bool) -> Iterator[Problem]:
    """Yield the fields without an effect, where ``trained`` is whether any parameters of an encoding are."""
    for name in (_RATE, _DECAY):
        value = getattr(optimization, name)
        default = Optimization.model_fields[name].default
        if not trained and value != default:
            remedy = f"remove it (where a base has it: {name}: null), or train an encoding "
            wrong = "no parameters of a positional encoding are trained"
            yield Problem(
                name, value, wrong, remedy + "with parameters: tape, fire, t5, or any with abacus"
            )


class Samples(Section):
    """Texts that the model continues while it trains."""

    sample_prompts: Annotated[list[str], FREE] = []
    """Texts that the model continues, greedily, every ``sample_steps`` steps: to the log, TensorBoard and W&B. No loss
    changes by it; several processes write the same text together."""
    sample_steps: Annotated[int | None, FREE] = Field(None, ge=1)
    """Steps between samples."""
    sample_tokens: Annotated[Tokens, FREE] = Field(48, ge=1)
    """New tokens after each prompt, at most."""

    @rule("sample_prompts", "sample_steps")
    def _both(self, recipe: RecipeView) -> Iterator[Problem]:
        if bool(self.sample_prompts) != (self.sample_steps is not None):
            name = "sample_steps" if self.sample_prompts else "sample_prompts"
            yield Problem(
                name,
                getattr(self, name),
                "the other one of the two is given",
                f"give {name} as well",
            )
        if not all(self.sample_prompts):
            yield Problem(
                "sample_prompts",
                self.sample_prompts,
                "one of them is empty",
                "write a word, or remove it",
            )
