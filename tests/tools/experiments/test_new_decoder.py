"""A model folder with random weights, to be trained from scratch."""

from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.export.conftest import base
from tools.experiments import new_decoder

__all__ = ["base"]
SIZES = '{"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8}'


def test_the_vocabulary_is_the_tokenizers_and_the_weights_follow_from_the_seed(base, tmp_path):
    folders = [tmp_path / name for name in ("a", "b", "c")]
    for folder, seed in zip(folders, "001", strict=True):
        given = [
            "gemma2",
            "--tokenizer",
            str(base),
            "--config",
            SIZES,
            "--output",
            str(folder),
            "--seed",
            seed,
        ]
        assert new_decoder.main(given) == 0
    model = AutoModelForCausalLM.from_pretrained(folders[0])
    assert model.config.model_type == "gemma2" and model.config.hidden_size == 16
    assert model.config.vocab_size == len(AutoTokenizer.from_pretrained(folders[0]))
    weights = [(folder / "model.safetensors").read_bytes() for folder in folders]
    assert weights[0] == weights[1] != weights[2]
