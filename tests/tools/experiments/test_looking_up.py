"""Lists that a small model learns to look up in: what is asked, and when the next stage begins."""

import numpy as np
import pytest
import torch

from tests.data.conftest import build_tokenizer
from tests.models.helpers import tiny_model
from tools.experiments import looking_up
from tools.experiments.looking_up import ListStage, ListWriter


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_list_is_written_twice_and_the_second_time_is_asked(shuffled):
    tokenizer = build_tokenizer()
    rng = np.random.default_rng(3)
    ids, labels, values = ListWriter(tokenizer, 1000).batch(rng, ListStage(6, 0.5, shuffled))
    assert ids.shape == labels.shape == values.shape and ids.numel() <= 1000
    reordered = False
    for row, targets, owners in zip(ids, labels, values, strict=True):
        asked = targets != -100
        assert torch.equal(targets[asked], row[asked])
        text = tokenizer.decode(row[: asked.nonzero()[-1, 0] + 1])
        lines = text.strip().split("\n")
        half = len(lines) // 2
        assert sorted(lines[:half]) == sorted(lines[half:]) and len(set(lines)) == half
        reordered |= lines[:half] != lines[half:]
        assert sorted(set(owners.tolist()) - {0}) == list(range(1, half + 1))
        for value in range(1, half + 1):
            # what is counted as a value ends a line of the second time
            written = tokenizer.decode(row[owners == value]).strip()
            assert sum(line.endswith(written) for line in lines[half:]) == 1
    assert reordered == shuffled


class Copies(torch.nn.Module):
    """Foresees every token but those of the second value of each list."""

    def __init__(self, writer):
        super().__init__()
        self.batch = None
        original = writer.batch

        def kept(rng, stage):
            self.batch = original(rng, stage)
            return self.batch

        writer.batch = kept

    def forward(self, input_ids):
        _, _, values = self.batch
        known = input_ids.clone()
        known[values == 2] += 1
        logits = torch.nn.functional.one_hot(known.roll(-1, 1), known.max().item() + 1)
        return type("Output", (), {"logits": logits.float()})


def test_a_value_is_answered_when_each_of_its_tokens_is():
    writer = ListWriter(build_tokenizer(), 400)
    share = looking_up.share_answered(Copies(writer), writer, ListStage(2, 0.0, shuffled=True))
    assert share == 0.5


def test_a_stage_begins_when_the_one_before_is_answered(monkeypatch, capsys):
    shares = iter((0.2, 0.9, 0.9))
    monkeypatch.setattr(looking_up, "ASKED_EVERY", 2)
    monkeypatch.setattr(looking_up, "STAGES", looking_up.STAGES[:2])
    monkeypatch.setattr(looking_up, "share_answered", lambda *_: next(shares))
    tokenizer = build_tokenizer()
    model = tiny_model(encoding="rope", vocab_size=len(tokenizer))
    before = model.lm_head.weight.clone()
    writer = ListWriter(tokenizer, 300)
    assert looking_up.teach(model, writer, steps=9, learning_rate=1e-3, seed=0)
    assert not torch.equal(model.lm_head.weight, before)
    stages = [line.split(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert stages == ["step 2, stage 1", "step 4, stage 1", "step 6, stage 2"]
    monkeypatch.setattr(looking_up, "share_answered", lambda *_: 0.0)
    assert not looking_up.teach(model, writer, steps=2, learning_rate=1e-3, seed=0)


def test_mistakes_are_named(tmp_path, capsys):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    words = [str(tmp_path / "none"), "--output", str(tmp_path / "taken"), "--steps", "0"]
    assert looking_up.main(words) == 2
    printed = capsys.readouterr().err
    for name in ("--steps", "--output", "model"):
        assert name in printed
