"""A run's folder in miniature."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from tape_ds import results
from tape_ds.checkpoint.trained import TrainedRecord, save_trained
from tape_ds.models import convert
from tape_ds.models.loading import extendable
from tests.models.helpers import VOCABULARY, randomised, tiny_model

YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 2.0,
    "original_max_position_embeddings": 64,
}


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    """A folder with a tiny Llama of 64 positions and its tokenizer."""
    folder = tmp_path_factory.mktemp("bases") / "tiny-base"
    with torch.random.fork_rng():  # the same whichever tests came before
        torch.manual_seed(0)
        plain = convert.to_plain(tiny_model(encoding="rope"))
    assert isinstance(plain, LlamaForCausalLM)
    plain.save_pretrained(folder)
    vocabulary = {f"w{index}": index for index in range(VOCABULARY)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="w0", bos_token="w1", eos_token="w2"
    ).save_pretrained(folder)
    return folder


def _loss(nll):
    return {"span": 64, "starts": [0, 64], "nll": nll, "counts": [63, 64], "mean": sum(nll) / 2}


@pytest.fixture(scope="session")
def run(base, tmp_path_factory):
    """A function that makes a run's folder, its position updates (or its adapters' stand-in, the norms) trained."""
    from transformers import AutoTokenizer

    def make(
        encoding="tape", method="tape", rope_parameters=YARN, trained=(".position.",), **fields
    ):
        folder = tmp_path_factory.mktemp("runs")
        changes = {"position_encoding": encoding, "rope_parameters": rope_parameters}
        config = convert.tape_config(extendable.read(base), max_position_embeddings=128, **changes)
        torch.manual_seed(3)
        model = randomised(convert.load(base, config), seed=5)
        names = tuple(n for n, _ in model.named_parameters() if any(part in n for part in trained))
        record = TrainedRecord(**{"base": str(base), "method": method, "names": names} | fields)
        save_trained(folder / "trained", model, record, AutoTokenizer.from_pretrained(base))
        config = {
            "train_data": [f"text:{base}/text.txt", "hub:allenai/c4:en"],
            "window": 32,
            "global_batch_size": 8,
            "pose_chunks": 2,
            "learning_rate": 0.001,
            "position_learning_rate": "10x",
            "lr_scheduler_type": "cosine",
            "bf16": True,
        }
        command = ["launchers/extend_llama.py", "--model", str(base)]
        figures = {
            "native_length": 64,
            "loss_by_position": {
                "untouched": {"a.py": _loss([2.5, 6.25]), "b.py": _loss([2.5, 6.75])},
                f"{method}, trained": {"a.py": _loss([2.25, 2.125]), "b.py": _loss([2.25, 2.375])},
            },
            "passkey": [
                {
                    "length": 128,
                    "trials": 4,
                    "correct": 3,
                    "accuracy": 0.75,
                    "replies": [{"key": 12345}],
                }
            ],
            "steps": 16,
            "tokens": 4096,
            "trained": list(names),
            "parameters": {"all": 1000, "trained": 25},
        }
        result = results.collect(command=command, seed=42, config=config).finish(figures)
        results.save(result, folder / "results" / "run.json")
        return folder

    return make
