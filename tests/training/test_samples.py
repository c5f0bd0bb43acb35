"""Text that the model writes while it trains: seen, handed on, and without a trace in the losses."""

import pytest
import torch
from transformers import TrainerState
from transformers.integrations import TensorBoardCallback

from tape_ds.config.sections import Samples
from tape_ds.training.environment import isolate_trackers
from tape_ds.training.samples import WriteSamples
from tests.training.test_trainer import STEPS, build, losses


class Letters:
    """Letters as ids of the tiny model, with an end after every text."""

    eos_token_id = 2
    all_special_ids = (2,)

    def __len__(self):
        return 53

    def __call__(self, text, add_special_tokens=True, verbose=True):
        return {
            "input_ids": [3 + ord(letter) % 50 for letter in text]
            + [self.eos_token_id] * add_special_tokens
        }

    def decode(self, ids):
        return " ".join(map(str, ids))


ASKED = Samples(sample_prompts=["abc", "de"], sample_steps=2, sample_tokens=5)


def noisy(module, _inputs, output):
    """So that the random state, and the mode that a module is in, decide the losses."""
    return output + 0.1 * torch.rand_like(output) if module.training else output


def train(folder, callback=None, **changes):
    trainer = build(folder, **changes)
    words = trainer.model.get_input_embeddings()
    torch.nn.init.normal_(words.weight)  # else it writes one token for ever
    words.register_forward_hook(noisy)
    if callback is not None:
        trainer.add_callback(callback(trainer))
    trainer.train()
    return trainer


def writing(trainer):
    return WriteSamples(trainer, ASKED, Letters())


@pytest.mark.parametrize("method", ["tape", "lora"])
def test_samples_do_not_change_the_losses(method, tmp_path, capsys):
    plain, sampled = (
        train(tmp_path / "a", method=method),
        train(tmp_path / "b", writing, method=method),
    )
    assert losses(sampled) == losses(plain) and len(losses(plain)) == STEPS
    assert all(module.training for module in sampled.model.modules())
    shown = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("sample at step")
    ]
    assert [line.split(" -> ")[0] for line in shown] == [
        f"sample at step {step}: {prompt!r}"
        for step in (2, 4, 6)
        for prompt in ASKED.sample_prompts
    ]
    assert shown[-1].split(" -> ")[1].strip("'")


class Full:
    """TensorBoard's writer on a disk that is full."""

    def add_scalar(self, *arguments):
        raise OSError(28, "No space left on device")

    add_text = add_scalar


@pytest.mark.parametrize("first", ["log", "text"])
def test_a_tracker_that_fails_is_disabled_with_one_warning(first, tmp_path, capsys):
    trainer = build(tmp_path)
    tracker = TensorBoardCallback(Full())
    trainer.callback_handler.callbacks = [tracker]
    isolate_trackers([tracker])
    writer, state = writing(trainer), TrainerState(global_step=4, is_world_process_zero=True)
    writer.write = lambda model: ["x", "y"]
    for _ in range(2):
        if first == "log":
            trainer.callback_handler.on_log(trainer.args, state, trainer.control, {"loss": 1.0})
        writer.on_step_end(None, state, None, model=None)
    warning = "warning: TensorBoard is disabled, training continues: OSError: [Errno 28] No space left on device"
    assert capsys.readouterr().out.count(warning) == 1
