#!/usr/bin/env bash
# lm-eval 0.4.13 (with transformers 5.23.0, torch 2.13.0): the likelihood of a whole text (loglikelihood_rolling: wikitext,
# pile, every task with bits_per_byte) where the tokenizer begins a text with BOS, as Llama's, Mistral's and Gemma's do.
#
# One would guess: BOS is what the first token of the text is predicted from, and is not scored itself. A model that gives
# each of 267 tokens the same probability then has log2(267) = 8.06 bits for each token of the text.
#
# What happens: HFLM puts its prefix token, which is BOS, before ids that begin with BOS already. The model reads BOS BOS,
# which it has never been trained on, and the second BOS is scored as a token of the text: 24.18 bits for a text of two
# tokens instead of 16.12, so 12.09 instead of 8.06 bits per byte for a text of two bytes. With a tokenizer that adds no
# BOS the same text has 16.12 bits: figures of two models whose tokenizers differ in this are not comparable. The
# difference is one token a document: large for short documents, small for long ones.
#
# Output seen (28 November 2026):
#   without BOS: the model reads [265, 64], 2 tokens are scored: 16.12 bits, 8.06 bits per byte
#   with BOS: the model reads [265, 265, 64], 3 tokens are scored: 24.18 bits, 12.09 bits per byte
#
# Exits with 0 while this is so. Needs only pip and a CPU.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/pip install --quiet torch==2.13.0 transformers==5.23.0 tokenizers==0.23.3 accelerate==1.15.0 lm_eval==0.4.13
cat > rolling.py <<'P'
import logging
import math

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

logging.disable(logging.WARNING)
TEXT = "ab"
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


def tokenizer(adds_bos):
    """Bytes as tokens, 267 entries with BOS and EOS; as Llama's, it may begin every text with BOS."""
    entries = {piece: number for number, piece in enumerate(BYTES)}
    entries |= {f"<unused{number}>": number for number in range(256, 265)}
    entries |= {"<s>": 265, "</s>": 266}
    made = Tokenizer(models.BPE(vocab=entries, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    found = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    if adds_bos:
        template = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 265)])
        found.backend_tokenizer.post_processor = template
    return found


class Recorded(HFLM):
    """Remembers what the model reads."""

    def _model_call(self, inps, *more, **others):
        self.read = inps[0].tolist()
        return super()._model_call(inps, *more, **others)


config = LlamaConfig(
    vocab_size=267, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
    max_position_embeddings=64, bos_token_id=265, eos_token_id=266,
)
model = LlamaForCausalLM(config).eval()
torch.nn.init.zeros_(model.lm_head.weight)  # every token has the same probability
bits = {}
for adds_bos in (False, True):
    lm = Recorded(pretrained=model, tokenizer=tokenizer(adds_bos), batch_size=1, device="cpu")
    request = Instance("loglikelihood_rolling", {}, (TEXT,), 0, ("task", 0, 1))
    (score,) = lm.loglikelihood_rolling([request], disable_tqdm=True)
    bits[adds_bos] = -score / math.log(2)
    name = "with BOS" if adds_bos else "without BOS"
    print(
        f"{name}: the model reads {lm.read}, {len(lm.read)} tokens are scored: "
        f"{bits[adds_bos]:.2f} bits, {bits[adds_bos] / len(TEXT.encode()):.2f} bits per byte"
    )
each = math.log2(267)
assert abs(bits[False] - 2 * each) < 1e-3 and abs(bits[True] - 3 * each) < 1e-3, "this has changed"
P
env/bin/python rolling.py 2>log || {
    tail log
    exit 1
}
