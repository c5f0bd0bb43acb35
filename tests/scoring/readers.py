"""Models whose answers are known: they read letters, and write the passkey where they can see it."""

import re
from types import SimpleNamespace

import torch
from torch import nn
from transformers import LlamaConfig

from tests.data.letters import END, Letters


class Reader(nn.Module):
    """Finds the key among the last ``sight`` letters of what it has read, and writes it; else the end of text."""

    def __init__(self, sight):
        super().__init__()
        self.config = LlamaConfig(num_hidden_layers=1)
        self.base_model = SimpleNamespace(encoding=SimpleNamespace(cache_exact=True))
        self.table, self.tokenizer = nn.Embedding(1, 1), Letters()
        self.sight, self.read = sight, ""

    def get_input_embeddings(self):
        return self.table

    def forward(self, input_ids, use_cache, logits_to_keep, past_key_values=None, cache=None):
        seen = "".join(map(chr, input_ids[0].tolist()))
        self.read = seen if seen[0] == chr(1) else self.read + seen
        text, _, written = self.read.rpartition("The pass key is")
        found = re.search(r"pass key is (\d+)", text[-self.sight :])
        reply = f" {found[1]}. " if found else ""
        logits = torch.zeros(1, 1, 128)
        logits[..., ord(reply[len(written)]) if len(written) < len(reply) else END] = 1.0
        return SimpleNamespace(logits=logits)
