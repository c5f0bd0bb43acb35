"""Greedy text after prompts, a batch at a time.

It is transformers' own ``generate`` with a KV cache, stopped at the end of text. What it must not do is obey settings
that came with a checkpoint: many ship a ``generation_config`` that samples, or forbids repetition, and every one of its
fields would count where none is given. It is put aside while this runs, so that results depend on what is said here.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import GenerationConfig

from tape_ds.scoring import CHUNK
from tape_ds.scoring.causal_lm import bare, evaluating
from tape_ds.scoring.passkey import reads_in_pieces

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def continue_prompts(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    *,
    new_tokens: int,
    ends: Sequence[int],
    use_cache: bool = True,
    chunk: int = CHUNK,
    streamer: Any = None,
) -> list[list[int]]:
    """Return the tokens that ``model`` writes behind each prompt; an end of text is none of them.

    Args:
        model: a causal LM of transformers or of this project, bare or wrapped; it is asked in evaluation mode.
        prompts: token ids, padded on the left here where their lengths differ.
        new_tokens: at most so many for each prompt.
        ends: ids of the tokens that end a text, see :func:`ends_of`.
        use_cache: off, the whole text is read again for every new token.
        chunk: tokens of a prompt that are read at once, where the model promises that pieces change nothing.
        streamer: gets a single prompt and each token behind it, as transformers' streamers do.

    Raises:
        ValueError: no prompt, an empty prompt, ``new_tokens`` or ``chunk`` below 1.
    """
    if not prompts or not all(prompts) or new_tokens < 1 or chunk < 1:
        raise ValueError(f"{len(prompts)} prompts, new_tokens = {new_tokens}, chunk = {chunk}: none may be empty or 0")
    causal_lm = bare(model)
    device = causal_lm.get_input_embeddings().weight.device
    longest = max(map(len, prompts))
    ids_BT = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask_BT = torch.zeros_like(ids_BT)
    for row, prompt in enumerate(prompts):
        ids_BT[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask_BT[row, longest - len(prompt) :] = 1
    configuration = GenerationConfig(
        do_sample=False,
        top_k=None,
        max_new_tokens=new_tokens,
        use_cache=use_cache,
        prefill_chunk_size=chunk if use_cache and longest > chunk and reads_in_pieces(causal_lm) else None,
        eos_token_id=list(ends) or None,
        pad_token_id=0,  # behind an end; whatever stands there is cut off
    )
    with evaluating(causal_lm), _no_settings_of_its_own(causal_lm), torch.no_grad():
        out_BT = causal_lm.generate(
            ids_BT.to(device),
            attention_mask=mask_BT.to(device),
            generation_config=configuration,
            streamer=streamer,
        )
    return [_until_end(row, set(ends)) for row in out_BT[:, longest:].tolist()]


def ends_of(model: nn.Module, tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    """Return ids that end a text: the tokenizer's, and those that the checkpoint's generation settings name."""
    settings = getattr(bare(model), "generation_config", None)
    named = getattr(settings, "eos_token_id", None)
    known = [tokenizer.eos_token_id, *(named if isinstance(named, (list, tuple)) else [named])]
    return sorted({int(each) for each in known if each is not None})


def _until_end(ids: list[int], ends: set[int]) -> list[int]:
    end = next((place for place, each in enumerate(ids) if each in ends), len(ids))
    return ids[:end]


@contextmanager
def _no_settings_of_its_own(causal_lm: Any) -> Iterator[None]:
    """``generate`` fills every field that is not given from the model's own settings: within the block it has none."""
    own = causal_lm.generation_config
    causal_lm.generation_config = GenerationConfig()
    try:
        yield
    finally:
        causal_lm.generation_config = own
