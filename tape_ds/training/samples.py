"""Text that the model writes while it trains, for the recipe's ``sample_prompts``."""

from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainerState

from tape_ds.config.sections import Samples
from tape_ds.data.prompting import prompt_ids
from tape_ds.scoring.generation import continue_prompts, ends_of
from tape_ds.training.environment import call_tracker
from tape_ds.training.trainer import TapeTrainer

NAME = "samples"


class WriteSamples(TrainerCallback):
    """Makes the model continue the recipe's prompts every ``sample_steps`` steps.

    Every rank writes the same: under ZeRO-3, and where ranks share heads, none can compute anything alone. The random
    state and each module's mode are restored, so that no loss changes.
    """

    def __init__(self, trainer: TapeTrainer, asked: Samples, tokenizer: PreTrainedTokenizerBase):
        self.trainer = trainer
        self.asked = asked
        self.tokenizer = tokenizer

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self.asked.sample_steps is None or state.global_step % self.asked.sample_steps:
            return
        texts = self.write(kwargs["model"])
        if state.is_world_process_zero:
            pairs = list(zip(self.asked.sample_prompts, texts, strict=True))
            for prompt, text in pairs:
                print(f"sample at step {state.global_step}: {prompt!r} -> {text!r}", flush=True)
            for tracker in self.trainer.callback_handler.callbacks:
                call_tracker(tracker, self._send, tracker, pairs, state.global_step)

    def _send(self, tracker: Any, pairs: list[tuple[str, str]], step: int) -> None:
        """Give the texts to TensorBoard or W&B."""
        board = getattr(tracker, "tb_writer", None)
        wandb = getattr(tracker, "_wandb", None)
        if board is not None:
            for number, (prompt, text) in enumerate(pairs):
                board.add_text(f"{NAME}/{number}", f"    {prompt}|{text}", step)
        if wandb is not None and wandb.run is not None:
            rows = [[step, prompt, text] for prompt, text in pairs]
            wandb.log(
                {
                    NAME: wandb.Table(columns=["step", "prompt", "text"], data=rows),
                    "train/global_step": step,
                }
            )

    def write(self, model: Any) -> list[str]:
        ends = ends_of(model, self.tokenizer)
        texts = []
        devices = [self.trainer.args.device] if self.trainer.args.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            # one by one: padding would be another text to some encodings
            for prompt in self.asked.sample_prompts:
                self.trainer.beat("scoring")
                ids = prompt_ids(prompt, self.tokenizer)
                (new,) = continue_prompts(
                    model, [ids], new_tokens=self.asked.sample_tokens, ends=ends
                )
                texts.append(self.tokenizer.decode(new))
        return texts
