"""Answers by test: what counts as right, and how sure a share is."""

import pytest
import torch
from torch import nn

from tape_ds.data.addressing import lengths
from tape_ds.data.addressing.tasks import TASKS, make
from tape_ds.model.configuration import TapeConfig
from tape_ds.model.llama import TapeForCausalLM
from tape_ds.scoring import addressing, exact_match
from tape_ds.scoring.addressing import Answered
from tape_ds.scoring.exact_match import Marked


class Oracle(nn.Module):
    """Reads whole sequences and says each next word, but for the first and then every ``spoilt``-th sequence of a
    batch."""

    def __init__(self, words, spoilt=None):
        super().__init__()
        self.config = TapeConfig(vocab_size=words, pad_token_id=None)
        self.table = nn.Embedding(words, words)
        nn.init.eye_(self.table.weight)
        self.spoilt = spoilt
        self.lm_head = nn.Identity()

    def get_input_embeddings(self):
        return self.table

    def get_output_embeddings(self):
        return self.lm_head

    @property
    def base_model(self):
        def read(input_ids, use_cache):
            said_BT = input_ids.roll(-1, dims=1)
            if self.spoilt is not None:
                said_BT[:: self.spoilt] = (said_BT[:: self.spoilt] + 1) % self.config.vocab_size
            return type("Out", (), {"last_hidden_state": self.table(said_BT)})

        return read


@pytest.mark.parametrize("name", TASKS)
def test_an_oracle_has_all_right_and_answers_are_counted_one_by_one(name):
    task = TASKS[name]
    (test,) = lengths.tests(task, [32])[:1]
    whole = addressing.ask(Oracle(len(task.vocabulary)), test, 40, 0)
    answers = {"look_back": 40, "look_ahead": 40, "selective_copy": 640, "recall": 320}.get(name, whole.answers)
    assert (whole.correct, whole.answers, whole.rows) == (answers, answers, 40)
    batch = 10 * task.tokens(32)
    spoilt = addressing.ask(Oracle(len(task.vocabulary), spoilt=10), test, 40, 0, batch_tokens=batch)
    assert 0 < spoilt.answers - spoilt.correct < spoilt.answers / 4, "the first sequence of each batch of ten"


def test_foreseen_says_what_the_logits_say_wherever_targets_stand():
    """Sequences of unlike lengths share a batch, and each target is judged by the token before it."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = TapeForCausalLM(
        TapeConfig(vocab_size=5, max_position_embeddings=32, initializer_range=0.5, pad_token_id=None, **sizes)
    ).eval()
    sequences, expected = [], []
    for number in range(12):
        ids_T = torch.randint(5, (6 + number % 5,))
        targets_T = torch.rand(len(ids_T)) < 0.4
        targets_T[0], targets_T[-1] = False, True
        logits_TV = model(input_ids=ids_T[None]).logits[0]
        right_T = logits_TV[:-1].argmax(dim=-1) == ids_T[1:]
        sequences.append(Marked(ids_T, targets_T))
        expected.append(right_T[targets_T[1:]].tolist())
    assert exact_match.foreseen(model, sequences) == expected
    flat = [each for one in expected for each in one]
    assert any(flat) and not all(flat)


def test_the_interval_is_wilsons_of_the_sequences():
    """Known values: of 10 of 10 [0.7225, 1], of 50 of 100 [0.4038, 0.5962]."""
    assert Answered(32, "", 10, 10, 10, 0.5).interval == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert Answered(32, "", 100, 100, 50, 0.5).interval == pytest.approx((0.4038, 0.5962), abs=1e-4)
    many = Answered(32, "", 100, 1600, 800, 0.5)
    assert many.share == 0.5 and many.interval == Answered(32, "", 100, 100, 50, 0.5).interval


def test_what_is_stored_is_read_again():
    found = Answered(64, "ignore 0.98", 100, 321, 300, 0.5)
    assert Answered.from_dict(found.to_dict()) == found and found.to_dict()["share"] == 300 / 321
    assert str(lengths.tests(make("flip_flop", {}), [64])[1]) == found.label == "length 64, ignore 0.98"
