"""transformers' own model tests on our classes.

``test_transformers.py`` has pytest run this file, with their tests on the path as the package ``transformers_tests``.
"""

import unittest

import torch
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES
from transformers_tests.test_modeling_common import GenerationTesterMixin, ModelTesterMixin
from transformers_tests.test_training_mixin import TrainingTesterMixin

from tape_ds import TapeConfig, TapeForCausalLM, TapeModel
from tests.models.helpers import ENCODINGS, HEADS, SIZES

# by which the tests tell base models
MODEL_MAPPING_NAMES[TapeConfig.model_type] = TapeModel.__name__


class Tester:
    """What the tests ask of a model's tester: sizes, a configuration, and inputs."""

    is_training = True
    batch_size, seq_length = 3, 7
    causal_lm_class, base_model_class = TapeForCausalLM, TapeModel

    def __init__(self, encoding: str):
        self.fields = {
            **SIZES,
            **HEADS["gqa"],
            **ENCODINGS[encoding],
            "num_hidden_layers": 2,
            "pad_token_id": 0,
        }
        vars(self).update(self.fields)

    def get_config(self) -> TapeConfig:
        return TapeConfig(**self.fields)

    def prepare_config_and_inputs_for_common(self):
        ids = torch.randint(3, self.vocab_size, (self.batch_size, self.seq_length))
        return self.get_config(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


class Suite(ModelTesterMixin, GenerationTesterMixin, TrainingTesterMixin):
    """Everything that the source package has for a language model."""

    all_model_classes = (TapeModel, TapeForCausalLM)
    encoding: str
    model_tester = None

    def setUp(self):
        self.model_tester = Tester(self.encoding)


class Tape(Suite, unittest.TestCase):
    """``tape``."""

    encoding = "tape"


class Rope(Suite, unittest.TestCase):
    """``rope``."""

    encoding = "rope"


class Alibi(Suite, unittest.TestCase):
    """``alibi``."""

    encoding = "alibi"
