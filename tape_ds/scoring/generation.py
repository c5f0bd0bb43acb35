"""Greedy generation after prompts, in batches.

Uses transformers' ``generate``, but no setting of the checkpoint's ``generation_config``: many sample or forbid
repetition, and every field that is not given would be filled from it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import GenerationConfig

from tape_ds.models.files.config_file import token_ids
from tape_ds.scoring import CHUNK
from tape_ds.scoring.losses import bare, evaluating
from tape_ds.scoring.replies import reads_in_pieces, until

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@torch.no_grad()
def continue_prompts(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    *,
    new_tokens: int,
    ends: Sequence[int],
    streamer: Any = None,
) -> list[list[int]]:
    """Return the tokens that ``model`` generates after each prompt, without the end of text.

    Args:
        model: a causal LM, bare or wrapped; evaluated in evaluation mode.
        prompts: token ids; padded on the left if their lengths differ.
        new_tokens: maximum for each prompt.
        ends: ids of the tokens that end a text, see :func:`ends_of`.
        streamer: one of transformers', for a single prompt.
    """
    if not prompts or not all(prompts) or new_tokens < 1:
        raise ValueError(
            f"{len(prompts)} prompts, new_tokens = {new_tokens}: none may be empty or 0"
        )
    causal_lm = bare(model)
    device = causal_lm.get_input_embeddings().weight.device
    longest = max(map(len, prompts))
    ids_BT = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask_BT = torch.zeros_like(ids_BT)
    for row, prompt in enumerate(prompts):
        ids_BT[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask_BT[row, longest - len(prompt) :] = 1
    # a prompt at once would need the memory of all its positions
    piece = None
    if longest > CHUNK and reads_in_pieces(causal_lm):
        piece = CHUNK
    config = GenerationConfig(
        do_sample=False,
        top_k=None,
        max_new_tokens=new_tokens,
        use_cache=True,
        prefill_chunk_size=piece,
        eos_token_id=list(ends) or None,
        # after an end, where it is cut off
        pad_token_id=0,
    )
    # a checkpoint's own settings would fill what is not given here
    own_config = causal_lm.generation_config
    causal_lm.generation_config = GenerationConfig()
    try:
        with evaluating(causal_lm):
            out_BT = causal_lm.generate(
                ids_BT.to(device),
                attention_mask=mask_BT.to(device),
                generation_config=config,
                streamer=streamer,
            )
    finally:
        causal_lm.generation_config = own_config
    return [list(until(ids, ends)) for ids in out_BT[:, longest:].tolist()]


def ends_of(model: nn.Module, tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    """Return the ids that end a text: the tokenizer's, and those of the checkpoint's generation settings."""
    config = getattr(bare(model), "generation_config", None)
    named = token_ids(getattr(config, "eos_token_id", None))
    return sorted({*token_ids(tokenizer.eos_token_id), *named})
