"""Models whose arithmetic is known: they answer what the test says, and record what they are asked."""

import torch
from torch import nn

from tape_ds.data.generated import TASKS
from tape_ds.data.generated.task import EOS, PAD, tokenizer_of


class Calculator(nn.Module):
    """Answers a batch of prompts with ``answer(prompts)``, read or written; stands for a causal LM."""

    def __init__(self, task, answer, most=10**9):
        super().__init__()
        self.tokenizer = tokenizer_of(TASKS[task])
        self.config = None
        self.table = nn.Embedding(len(self.tokenizer) + 1, len(self.tokenizer) + 1)  # one more than there are letters
        nn.init.eye_(self.table.weight)
        self.lm_head = nn.Identity()
        self.answer, self.most = answer, most
        self.batches = []

    def get_input_embeddings(self):
        return self.table

    def get_output_embeddings(self):
        return self.lm_head

    def base_model(self, input_ids, use_cache):
        """After each prompt, and the right answer so far, the next letter of the answer."""
        if len(self.batches) == self.most:
            raise KeyboardInterrupt
        texts = ["".join(self.tokenizer.convert_ids_to_tokens(row.tolist())) for row in input_ids]
        prompts = [text.partition("=")[0] + "=" for text in texts]
        self.batches.append(prompts)
        said_BT = torch.full_like(input_ids, PAD)
        for row, prompt, ids in zip(said_BT, prompts, self.replies(prompts), strict=True):
            room = len(row) - len(prompt) + 1
            row[len(prompt) - 1 :][: len(ids)] = torch.tensor(ids[:room])
        return type("Out", (), {"last_hidden_state": self.table(said_BT)})

    def replies(self, prompts):
        return [[*self.tokenizer.convert_tokens_to_ids(list(text)), EOS] for text in self.answer(prompts)]


def right(task):
    """The answers, worked out from the prompts' text alone, as a pupil would."""

    def addition(prompt):
        first, second = (int(number[::-1]) for number in prompt[:-1].split("+"))
        return str(first + second)[::-1]

    def subtraction(prompt):
        first, second = (int(number[::-1]) for number in prompt[:-1].split("-"))
        return ("-" if first < second else "") + str(abs(first - second))[::-1]

    def multiplication(prompt):
        first, second = (int(number[::-1]) for number in prompt[:-1].split("x"))
        return str(first * second)[::-1]

    def sorting(prompt):
        pairs = [entry.split(":") for entry in prompt[:-1].split(",")]
        return "".join(letter for letter, _ in sorted(pairs, key=lambda pair: int(pair[1][::-1])))

    def bitwise_or(prompt):
        first, second = prompt[:-1].split("+")
        places = max(len(first), len(second))
        both = int(first.ljust(places, "0"), 2) | int(second.ljust(places, "0"), 2)
        return f"{both:0{places}b}"

    one = {
        "addition": addition,
        "subtraction": subtraction,
        "multiplication": multiplication,
        "sorting": sorting,
        "bitwise_or": bitwise_or,
    }[task]
    return lambda prompts: [one(prompt) for prompt in prompts]
