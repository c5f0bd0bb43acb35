"""Feed-forwards a piece of the sequence at a time: what is inside them exists for one piece only, forward and backward.

A gated feed-forward holds four tensors of T x ``intermediate_size`` while it runs, and nothing in it crosses tokens. In
tiles of T / n tokens, each computed again in the backward, it holds 1/n of that (ALST, Bekman et al. 2025,
arXiv:2506.13996, Section 3.2). So do TAPE's position updates in the forms that act across channels.

DeepSpeed's ``TiledMLP`` runs a backward inside the backward, and an engine has to know which tile is the last. Here
torch adds the tiles' gradients up before any hook on the weight runs. The number of tiles is the same for every
sequence: with tiles of a fixed size, under ZeRO-3, a rank with a longer sequence would wait for the others for ever.

Shape letters: B batch, T tokens, D hidden size, H query heads, G key/value heads, C columns of the state.
"""

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.models.llama.modeling_llama import LlamaMLP

from tape_ds.encodings.tape import TapeLayer
from tape_ds.methods.modules import in_words, modules_of


def use_tiles(model: nn.Module, tiles: int) -> list[str]:
    """Make feed-forwards and unfused position updates work on ``tiles`` pieces of each sequence in training; return
    what is tiled, for the log.

    In evaluation nothing is kept, and a step of decoding has one token. To be called last, once adapters and other
    kernels are in place: a tile runs the forward that is there now.
    """
    if tiles < 1:
        raise ValueError(f"tiles = {tiles}: give 1 or more")
    feed_forwards = modules_of(model, LlamaMLP)
    # layers that update their state by plain operations, see tape_ds.encodings.tape
    updates = []
    for layer in modules_of(model, TapeLayer):
        has_updates = layer.attend is not None or layer.gate is not None
        if layer.whole_halves and has_updates:
            updates.append(layer)
    if not feed_forwards:
        raise ValueError(f"{type(model).__name__} has no feed-forward that can be tiled")

    def tile_feed_forward(forward: Callable[[Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
        def tiled(self: nn.Module, x_BTD: Tensor) -> Tensor:
            if not self.training:
                return forward(x_BTD)
            return torch.cat(
                [_again(forward, piece) for piece in x_BTD.tensor_split(tiles, dim=1)], dim=1
            )

        return tiled

    def tile_update(next_state: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def tiled(
            self: TapeLayer,
            start: Tensor,
            state: Tensor | None,
            attended_BHTC: Tensor | None,
            y_BTD: Tensor,
        ) -> Tensor:
            if not self.training:
                return next_state(start, state, attended_BHTC, y_BTD)
            by_tokens: list[Any] = []
            for x in (start, state, attended_BHTC):
                # a layer without it has no piece of it
                by_tokens.append([None] * tiles if x is None else x.tensor_split(tiles, dim=2))
            pieces = zip(*by_tokens, y_BTD.tensor_split(tiles, dim=1), strict=True)
            return torch.cat([_again(next_state, *piece) for piece in pieces], dim=2)

        return tiled

    for module in feed_forwards:
        module.forward = MethodType(tile_feed_forward(module.forward), module)
    for layer in updates:
        layer.next_state = MethodType(tile_update(layer.next_state), layer)
    return in_words({"feed-forward": feed_forwards, "position update": updates})


def _again(function: Callable[..., Any], *inputs: Any) -> Any:
    return checkpoint(function, *inputs, use_reentrant=False)
