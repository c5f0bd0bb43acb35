"""Any decoder of transformers, as its own class computes it, with this project's attention, documents and loss.

transformers registers attention functions and mask functions by name. The mask function here returns
:class:`KeyPlaces` instead of a mask, and the attention function reads them. So documents, padding and positions that
skip (PoSE) reach transformers' classes as they reach this project's models, and recomputed layers get the same again.

Shape letters: B batch, T queries, S keys, H query heads, G key/value heads, K head size, D hidden size, V vocabulary
entries.
"""

import contextlib
import copy
import functools
import re
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.masking_utils import AttentionMaskInterface
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from tape_ds.attention import available, requested
from tape_ds.attention.attend import attend, attend_with_weights
from tape_ds.attention.document_layout import DocumentLayout
from tape_ds.encodings.trained_rope import of_full
from tape_ds.kernels.weighted_cross_entropy import weights_of
from tape_ds.models import recurrent
from tape_ds.models.decoder_configuration import ATTENTION, SCORE_SCALE, with_rope
from tape_ds.models.files.exact import load_exact
from tape_ds.models.inputs import CACHE, Documents, past_length
from tape_ds.models.language_model import LanguageModel
from tape_ds.models.output_head import OutputHead, causal_lm_loss
from tape_ds.registration import register

CHUNK = 1024
"""Tokens whose logits exist at once, if a family changes its head's output."""
DROPPED = "positions_before_drope"
"""Field of a configuration whose attention lost its positions: the fields that it had them with."""
_ROUTER = re.compile("(Router|Gating|MoEV1Gate)$")
"""Ends of the names of classes that send a token to its experts."""


@dataclass(frozen=True)
class KeyPlaces:
    """A layer's argument instead of a mask."""

    layout: DocumentLayout | None
    """Documents among the layer's keys; None: one document without padding."""
    offset: int | Tensor
    """Place of the first query among the keys."""
    window: int | None = None
    """Keys that a query sees, itself included; None: all before it."""
    positions: Tensor | None = None
    """Position ids [1 or B, T] that may skip ahead; None: those of the keys follow one another."""
    _within: dict[int, DocumentLayout | None] = field(default_factory=dict)

    def within(self, window: int, sequences: int) -> DocumentLayout | None:
        """Return the documents for layers with a window. Where positions skip ahead by the window or more (PoSE), such
        a layer sees nothing before the skip, as in use; a shorter skip counts as one key."""
        if self.positions is None:
            return self.layout
        if window not in self._within:
            skips_BT = F.pad((self.positions.diff(dim=1) >= window).cumsum(dim=1), (1, 0)).expand(
                sequences, -1
            )
            ids_BT = skips_BT
            none = not torch.compiler.is_compiling() and not bool(skips_BT.any())
            if self.layout is not None:
                documents_BT = self.layout.ids_BS.long()
                ids_BT = torch.where(
                    documents_BT < 0, -1, documents_BT * skips_BT.shape[1] + skips_BT
                )
            self._within[window] = (
                self.layout if none else DocumentLayout(ids_BT, skips_BT.shape[1])
            )
        return self._within[window]


_UNKNOWN: Any = object()
_layout: ContextVar[DocumentLayout | None] = ContextVar("_layout", default=_UNKNOWN)
"""Documents of the call that is being computed."""
_positions: ContextVar[Tensor | None] = ContextVar("_positions", default=None)
"""Its position ids, without a cache."""


def places(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    **_: Any,
) -> KeyPlaces:
    """Return the places of one kind of layer, with a window of ``local_size``; its cache may have dropped the first
    ``kv_offset`` keys."""
    layout = _layout.get()
    if isinstance(q_offset, Tensor) and not torch.compiler.is_compiling():
        q_offset = int(q_offset)  # a static cache counts on the device
    # the decoder was called, not the whole model
    if layout is _UNKNOWN:
        layout = Documents(attention_mask, None, None, None, None, None).layout(
            batch_size, q_length, q_offset
        )
    if layout is not None and kv_offset:
        layout = layout.cached(
            ("from", kv_offset),
            lambda whole: DocumentLayout(
                whole.ids_BS[:, kv_offset:], whole.queries, whole.offset - kv_offset
            ),
        )
    return KeyPlaces(layout, q_offset - kv_offset, local_size, _positions.get())


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: KeyPlaces | Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    backend: str = "auto",
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention of one layer, as transformers calls it -> [B, T, H, V], and weights of the ``reference`` backend."""
    if dropout:
        raise ValueError(
            f"attention dropout of {dropout} is computed by no backend: set it to 0 in the configuration"
        )
    if isinstance(attention_mask, Tensor):
        raise ValueError(
            "ready-made masks are not supported: give attention_mask [batch, tokens], or document_ids"
        )
    where = (
        KeyPlaces(None, key.shape[2] - query.shape[2]) if attention_mask is None else attention_mask
    )
    # some families do not pass their layers the window
    window = sliding_window or where.window
    layout = where.layout if window is None else where.within(window, len(query))
    arguments: dict[str, Any] = {"layout": layout, "offset": where.offset, "scale": scaling}
    needs = {"window": window, "softcap": softcap, "sinks": s_aux}
    arguments |= {name: need for name, need in needs.items() if need is not None}
    if requested(backend) == "reference":
        (out_BHTV,), weights_BHTS = attend_with_weights(query, key, [value], **arguments)
    else:
        (out_BHTV,), weights_BHTS = attend(query, key, [value], **arguments, backend=backend), None
    return out_BHTV.transpose(1, 2).contiguous(), weights_BHTS


for _backend in ("auto", *available()):
    _name = ATTENTION if _backend == "auto" else f"{ATTENTION}_{_backend}"
    AttentionInterface.register(_name, functools.partial(attention, backend=_backend))
    AttentionMaskInterface.register(_name, places)


@torch.no_grad()
def has_plain_head(model: Any) -> bool:
    """Return whether a model's logits are its output head's output: large ones would show a soft cap or a factor."""
    weight = model.get_input_embeddings().weight
    # a wrapper's configuration has none
    width = model.get_output_embeddings().in_features
    large_11D = torch.linspace(-99, 99, width, dtype=weight.dtype, device=weight.device)[None, None]
    return torch.equal(model.get_output_embeddings()(large_11D), logits_of(model, large_11D))


class ExtendedDecoder(LanguageModel, PreTrainedModel):
    """The arguments, the loss and the scaled angles of this project's models, for a class of transformers;
    :func:`class_of` joins the two."""

    native: type[PreTrainedModel]
    """The class of transformers."""
    _plain_head: bool | None = None
    """Whether the head's output is the logits; None: not known yet."""

    def __init__(self, config: PreTrainedConfig, *arguments: Any, **named: Any):
        super().__init__(config, *arguments, **named)
        OutputHead.of(self.get_output_embeddings())
        self.is_recurrent = bool(recurrent.separate_documents(self))
        for module in rotary_modules(self).values():
            module._apply = MethodType(_apply_without_casts, module)  # type: ignore[method-assign]

    def decode(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        cu_seq_lens_q: Tensor | None = None,
        max_length_q: int | None = None,
        seq_idx: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run the decoder; documents and padding as in :meth:`tape_ds.models.llama.TapeModel.forward`."""
        given = input_ids if inputs_embeds is None else inputs_embeds
        assert given is not None
        sequences, tokens = given.shape[:2]
        documents = Documents(
            attention_mask, document_ids, seq_idx, cu_seq_lens_q, max_length_q, position_ids
        )
        layout = documents.layout(sequences, tokens, past_length(past_key_values))
        outer = _layout.set(layout)
        skipping = _positions.set(position_ids if past_key_values is None and tokens > 1 else None)
        if attention_mask is None and past_key_values is None:
            # without a mask, transformers takes every jump of positions for a document's border, and waits for the
            # device
            attention_mask = torch.ones(sequences, tokens, dtype=torch.long, device=given.device)
        if self.is_recurrent and position_ids is None and past_key_values is not None:
            # Bamba's class would count from 0 again
            position_ids = torch.arange(tokens, device=given.device)[None] + past_length(
                past_key_values
            )
        kept_apart = False
        if self.is_recurrent and layout is not None:
            kwargs["use_cache"] = recurrent.keeps_cache(
                layout, past_key_values, kwargs.get("use_cache"), self.config
            )
            kept_apart = not kwargs["use_cache"]
            if kept_apart:
                # nothing but the mask reaches layers that carry a state
                attention_mask = recurrent.numbered(layout)
        apart = recurrent.expected.set(kept_apart)
        try:
            return self.base_model(
                input_ids=input_ids,
                attention_mask=attention_mask,
                position_ids=position_ids,
                inputs_embeds=inputs_embeds,
                **{CACHE: past_key_values},
                **kwargs,
            )
        finally:
            _layout.reset(outer)
            _positions.reset(skipping)
            recurrent.expected.reset(apart)

    def logits(self, hidden_BTD: Tensor) -> Tensor:
        return logits_of(self, hidden_BTD)

    def loss(self, hidden_BTD: Tensor, labels_BT: Tensor, **kwargs: Any) -> Tensor | None:
        """Return the loss by the head alone if its output is the logits, else by the family's logits, a chunk at a
        time."""
        if self._plain_head is None:
            self._plain_head = has_plain_head(self)
        if self._plain_head:
            return causal_lm_loss(self.get_output_embeddings(), hidden_BTD, labels_BT, **kwargs)
        return causal_lm_loss(self._chunked_loss, hidden_BTD, labels_BT, **kwargs)

    def _chunked_loss(
        self,
        hidden_BTD: Tensor,
        targets: Tensor,
        ignore_index: int,
        weights: Tensor | None = None,
        cap: float | None = None,
    ) -> Tensor:
        def of_chunk(hidden_1ND: Tensor, targets_N: Tensor, given_N: Tensor | None) -> Tensor:
            logits_NV = logits_of(self, hidden_1ND)[0].float()
            if given_N is None:
                return F.cross_entropy(
                    logits_NV, targets_N, ignore_index=ignore_index, reduction="sum"
                )
            losses_N = F.cross_entropy(
                logits_NV, targets_N, ignore_index=ignore_index, reduction="none"
            )
            plain_N = losses_N.detach()
            weights_N = weights_of(given_N, plain_N, cap).masked_fill(targets_N == ignore_index, 0)
            return torch.stack(((weights_N * losses_N).sum(), plain_N.sum(), weights_N.sum()))

        hidden_1MD = hidden_BTD.flatten(0, 1)[None]
        targets_M = targets.flatten()
        given_M = None if weights is None else weights.flatten()
        losses = []
        for at in range(0, len(targets_M), CHUNK):
            rows = slice(at, at + CHUNK)
            given_N = None if given_M is None else given_M[rows]
            losses.append(
                checkpoint(
                    of_chunk, hidden_1MD[:, rows], targets_M[rows], given_N, use_reentrant=False
                )
            )
        return torch.stack(losses).sum(dim=0)

    @torch.no_grad()
    def separate_losses(self, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        if self._plain_head is None:
            self._plain_head = has_plain_head(self)
        if self._plain_head:
            return self.get_output_embeddings()(hidden_BTD, targets=targets_BT, apart=True)
        hidden_1MD = hidden_BTD.flatten(0, 1)[None]
        targets_M = targets_BT.flatten()
        losses = []
        # once without targets too: ZeRO-3 gathers the head together
        for at in range(0, max(1, len(targets_M)), CHUNK):
            logits_NV = logits_of(self, hidden_1MD[:, at : at + CHUNK])[0].float()
            losses.append(F.cross_entropy(logits_NV, targets_M[at : at + CHUNK], reduction="none"))
        return torch.cat(losses).view_as(targets_BT)

    @contextlib.contextmanager
    def with_rope_parameters(self, rope_parameters: Mapping[str, Any]) -> Iterator[None]:
        config = copy.deepcopy(self.config)
        dropped = getattr(config, DROPPED, None)
        if dropped:
            for name, value in dropped.items():
                setattr(config, name, value)
        rotary = rotary_modules(on_meta(config) if dropped else self)
        # attention without positions has nothing to scale
        if not rotary:
            yield
            return
        config.rope_parameters = with_rope(config, rope_parameters)
        if not dropped and config.rope_parameters == self.config.rope_parameters:
            yield
            return
        scales: dict[str, float] = {}
        if SCORE_SCALE in of_full(config.rope_parameters):
            # latent attention takes its factor on scores from RoPE parameters too
            for path, module in on_meta(config).named_modules():
                if isinstance(scale := getattr(module, "scaling", None), float):
                    own: Any = self.get_submodule(path)
                    scales[path], own.scaling = own.scaling, scale
        for path, module in rotary.items():
            _put(self, path, type(module)(config).to(self.device))
        try:
            yield
        finally:
            for path, module in rotary.items():
                _put(self, path, None if dropped else module)
            for path, scale in scales.items():
                self.get_submodule(path).scaling = scale


class _InPlaceOf:
    """An object with some attributes replaced."""

    def __init__(self, replaced: Any, **given: Any):
        self._replaced = replaced
        self.__dict__ |= given

    def __getattr__(self, name: str) -> Any:
        return getattr(self._replaced, name)


class _Decoded:
    """A decoder whose output is known: any call returns these hidden states."""

    was_called = False

    def __init__(self, decoder: nn.Module, hidden_BTD: Tensor):
        self._decoder = decoder
        self.last_hidden_state = hidden_BTD

    def __call__(self, *_: Any, **__: Any) -> Any:
        self.was_called = True
        return self

    def __getitem__(self, index: int) -> Tensor:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name, None)


def decoder_name(model: Any) -> str | None:
    """Return the name of the attribute that holds the decoder of a causal LM; None without one.

    It is the prefix of its base model, except for classes that are also a part of a whole, whose prefix is the whole's
    (Llama 4's and Llama 3.2's with pictures).
    """
    names = (model.base_model_prefix, "model")
    return next((name for name in names if isinstance(getattr(model, name, None), nn.Module)), None)


def logits_of(model: Any, hidden_BTD: Tensor) -> Tensor:
    """Return the logits [B, T, V] of hidden states as the forward of a class of transformers computes them, with its
    soft caps and factors."""
    forward = model.native.forward if isinstance(model, ExtendedDecoder) else type(model).forward
    name = decoder_name(model)
    if name is None:
        raise TypeError(f"{type(model).__name__} has no decoder")
    decoded = _Decoded(getattr(model, name), hidden_BTD)
    head_alone = _InPlaceOf(model, **{name: decoded})
    ids_BT = torch.zeros(hidden_BTD.shape[:2], dtype=torch.long, device=hidden_BTD.device)
    logits: Tensor = forward(head_alone, input_ids=ids_BT, use_cache=False).logits
    if not decoded.was_called:
        raise TypeError(f"{type(model).__name__} does not call its decoder")
    return logits


def load(source: str | Path, config: PreTrainedConfig, **arguments: Any) -> ExtendedDecoder:
    """Load a folder with ``config``; arguments go to ``from_pretrained``. Code in the folder is never run."""
    kind = class_of(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)])
    # no other attention sees documents
    if not str(config._attn_implementation).startswith(ATTENTION):
        config._attn_implementation = ATTENTION
    model: ExtendedDecoder = load_exact(kind, source, config=config, **arguments)
    return model


@functools.cache
def class_of(native: type[PreTrainedModel]) -> Any:
    """Return ``native`` with :class:`ExtendedDecoder` mixed in, under its own name, which saved models carry."""
    own = {"native": native, "config_class": native.config_class, "__module__": native.__module__}
    return type(native.__name__, (ExtendedDecoder, native), own)


def rotary_modules(model: nn.Module) -> dict[str, nn.Module]:
    return {
        path: module
        for path, module in model.named_modules()
        if any(name.endswith("inv_freq") for name, _ in module.named_buffers(recurse=False))
    }


def _put(model: nn.Module, path: str, module: nn.Module | None) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def _apply_without_casts(self: nn.Module, function: Any, recurse: bool = True) -> nn.Module:
    """Move frequencies without rounding: an engine in bf16 casts every buffer, and of 8,192 positions 897 would remain
    distinct."""
    buffers = dict(self.named_buffers(recurse=False))
    type(self)._apply(self, function, recurse)
    for name, before in buffers.items():
        now = self._buffers[name]
        assert now is not None
        if now.dtype != before.dtype:
            self._buffers[name] = before.to(now.device)
    return self


def key_of(config: PreTrainedConfig) -> str:
    """Return a key for what is found out of a configuration once."""
    return f"{config.model_type} {config.to_json_string(use_diff=False)}"


def on_meta(config: PreTrainedConfig) -> Any:
    # transformers' table has our own type of GPT-J only then
    register()
    with torch.device("meta"):
        return class_of(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)])(config)


def routers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules that send tokens to experts, by path."""
    return {
        path: module
        for path, module in model.named_modules()
        if _ROUTER.search(type(module).__name__)
    }
