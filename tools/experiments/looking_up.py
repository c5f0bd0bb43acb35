"""Teach a small model of random weights to look up, so that experiments about length begin with a model that can.

    python -m tools.experiments.looking_up runs/small_finder/start --output runs/small_finder/lists

A list of names and values is written twice, and the second time is the target. It gets harder in stages, each begun
when the one before is answered: in the same order; in another; with more entries; with names that differ in one part.
On documents alone, where little of a sequence is an answer, a model of a million parameters found nothing in five
million tokens. Embeddings are drawn again, larger than most families' (``--embedding_std``): from small ones all digits
become one vector, which no attention can copy. Exit codes: 0 done; 1 a stage is not answered after ``--steps``; 2 bad
input.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from operator import eq
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from tape_ds import paths
from tape_ds.arguments import Parser, below_one
from tape_ds.data.retrieval.names import draw_names, draw_values, pick
from tape_ds.errors import Problem, command, raise_if_any
from tools.experiments.new_decoder import write_folder

BETWEEN = (" -> ", " = ", ": ", " | ", " is ")
"""What may stand between a name and its value; one list has one of them."""
ANSWERED = 0.8
"""Values of a stage that must be right, every token of each, before the next stage begins."""
EARLIER = 0.2
"""Share of steps that are of stages before the present one."""
WARMUP = 60
ASKED_EVERY = 50
ASKED_BATCHES = 3


@dataclass(frozen=True)
class ListStage:
    """Lists of 2 to ``most`` entries; ``near``: the share of lists whose names differ in one part."""

    most: int
    near: float
    shuffled: bool


STAGES = (
    ListStage(4, 0.0, shuffled=False),
    ListStage(4, 0.0, shuffled=True),
    ListStage(8, 0.0, shuffled=True),
    ListStage(4, 1.0, shuffled=True),
    ListStage(8, 0.5, shuffled=True),
    ListStage(12, 0.5, shuffled=True),
)


class ListWriter:
    """Batches of lists that are written twice."""

    def __init__(self, tokenizer: Any, tokens: int):
        self.tokenizer = tokenizer
        self.tokens = tokens
        """Of a batch, padding included; some more where the last list is the longest."""

    def batch(self, rng: np.random.Generator, stage: ListStage) -> tuple[torch.Tensor, ...]:
        """Return ids, labels (-100: no target) and values (of a token of the k-th value, k from 1; else 0) [B, T]."""
        entries = int(rng.integers(2, stage.most, endpoint=True))
        lists: list[list[list[int]]] = []
        width = 0
        while width * (len(lists) + 1) <= self.tokens:
            lists.append(self._write(rng, stage, entries))
            width = max(width, len(lists[-1][0]))
        ids, labels, values = zip(*lists, strict=True)
        end = self.tokenizer.eos_token_id
        return _padded(ids, end), _padded(labels, -100), _padded(values, 0)

    def _write(self, rng: np.random.Generator, stage: ListStage, entries: int) -> list[list[int]]:
        if rng.random() < stage.near:
            asked = max(1, entries // 2)
            names = draw_names(rng, asked, entries - asked)
        else:
            names = [draw_names(rng, 1, 0)[0] for _ in range(entries)]
        between = pick(rng, BETWEEN)
        lines = []
        for name, value in zip(names, draw_values(rng, entries), strict=True):
            begin = self._ids(f"{name}{between}")
            whole = self._ids(f"{name}{between}{value}\n")
            # a tokenizer may join the last of the beginning with what follows
            same = takewhile(bool, map(eq, begin, whole))
            lines.append((sum(same), whole))
        first = rng.permutation(entries)
        second = rng.permutation(first) if stage.shuffled else first
        ids: list[int] = []
        for k in first:
            ids += lines[k][1]
        labels = [-100] * len(ids)
        values = [0] * len(ids)
        for k in second:
            begins, whole = lines[k]
            ids += whole
            labels += whole
            values += [0] * begins + [int(k) + 1] * (len(whole) - begins)
        return [ids, labels, values]

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids


def _padded(rows: Sequence[list[int]], filler: int) -> torch.Tensor:
    return pad_sequence(list(map(torch.tensor, rows)), batch_first=True, padding_value=filler)


@torch.no_grad()
def share_answered(model: PreTrainedModel, writer: ListWriter, stage: ListStage) -> float:
    """Return the share of values each of whose tokens is the likeliest, in lists that are the same at every call."""
    rng = np.random.default_rng(0)
    right = asked = 0
    for _ in range(ASKED_BATCHES):
        ids, _, values = writer.batch(rng, stage)
        is_right = model(input_ids=ids).logits[:, :-1].argmax(-1) == ids[:, 1:]
        for row, owners in zip(is_right, values[:, 1:], strict=True):
            for value in owners.unique():
                if value:
                    asked += 1
                    right += bool(row[owners == value].all())
    return right / asked


def teach(
    model: PreTrainedModel, writer: ListWriter, *, steps: int, learning_rate: float, seed: int
) -> bool:
    """Train until the last stage is answered; return False where ``steps`` end before."""
    rng = np.random.default_rng([seed, 1])
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, (0.9, 0.98), weight_decay=0.01)
    stage = 0
    losses = []
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min(1.0, step / WARMUP)
        at = stage
        if stage and rng.random() < EARLIER:
            at = int(rng.integers(stage))
        ids, labels, _ = writer.batch(rng, STAGES[at])
        logits = model(input_ids=ids).logits[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step % ASKED_EVERY:
            continue
        share = share_answered(model, writer, STAGES[stage])
        mean = np.mean(losses[-ASKED_EVERY:])
        print(f"step {step}, stage {stage + 1}: loss {mean:.3f}, answered {share:.0%}", flush=True)
        if share >= ANSWERED:
            stage += 1
        if stage == len(STAGES):
            return True
    return False


@command
def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="python -m tools.experiments.looking_up", description=__doc__)
    parser.add_argument("model", help="a folder of tools.experiments.new_decoder")
    parser.add_argument("--output", required=True)
    parser.add_argument("--steps", type=int, default=6000, help="at most; default: %(default)s")
    parser.add_argument("--tokens", type=int, default=4096, help="a step; default: %(default)s")
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    parser.add_argument("--embedding_std", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(sys.argv[1:] if argv is None else argv)
    output = Path(options.output)
    problems = below_one(options, "steps", "tokens") + paths.check_new("--output", output)
    if not (Path(options.model) / "config.json").is_file():
        remedy = "make one by tools.experiments.new_decoder"
        problems.append(Problem("model", options.model, "is no folder of a model", remedy))
    raise_if_any(problems)
    torch.manual_seed(options.seed)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    torch.nn.init.normal_(model.get_input_embeddings().weight, std=options.embedding_std)
    learned = teach(
        model,
        ListWriter(tokenizer, options.tokens),
        steps=options.steps,
        learning_rate=options.learning_rate,
        seed=options.seed,
    )
    write_folder(output, model, tokenizer)
    return 0 if learned else 1


if __name__ == "__main__":
    sys.exit(main())
