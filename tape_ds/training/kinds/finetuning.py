"""From a checked fine-tuning recipe to a run: a whole model, rows of prompts and answers, held-out questions."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import datasets
import torch
from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainerState

from tape_ds import methods, paths, storage
from tape_ds.checkpoint.trained import TrainedRecord
from tape_ds.data import tokenizer as tokenizers
from tape_ds.data.scrolls import examples, rows
from tape_ds.data.scrolls.rows import AnswerRows, CutText
from tape_ds.errors import Problem, raise_if_any
from tape_ds.model import convert, extendable
from tape_ds.model import rows as rows_of_vocabulary
from tape_ds.parallel.distributed_map import share_out
from tape_ds.recipe.finetuning import HELD_OUT, TRAIN, FinetuningRecipe, data_origin
from tape_ds.recipe.scale import check_model
from tape_ds.recipe.sections import check_trained, learns
from tape_ds.scoring import answers
from tape_ds.scoring.answers import AnswerLoss, Asked
from tape_ds.training import identity, model_config, tables
from tape_ds.training.kinds.extension import base_address
from tape_ds.training.run import RunOfVariedRows, require_room, require_same, sample_count, start, weights_dtype

SCORES = "results/answers.json"
BEFORE, AFTER = "before", "after"


class AnswerScores(TrainerCallback):
    """Scores reference answers; results go to ``file``. A resumed run keeps what its first part found before."""

    def __init__(self, asked: Sequence[Asked], file: Path):
        self.asked = asked
        self.file = file

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Score the model as it came; scores of an earlier run in this folder go."""
        if state.global_step > 0:
            return
        if state.is_world_process_zero:
            self.file.unlink(missing_ok=True)
        self._score(kwargs["model"], BEFORE, state)

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Score the fine-tuned model."""
        self._score(kwargs["model"], AFTER, state)

    def _score(self, model: Any, when: str, state: TrainerState) -> None:
        if state.is_world_process_zero:
            print(f"scoring {len(self.asked):,} answers {when} training", flush=True)
        found = answers.score(model, self.asked, each=share_out)
        if state.is_world_process_zero:
            scores = read_scores(self.file) | {when: found}
            storage.write_json(self.file, {name: each.to_dict() for name, each in scores.items()})


def read_scores(path: Path) -> dict[str, AnswerLoss]:
    """Stored scores; empty when there are none."""
    plain = json.loads(path.read_text()) if path.exists() else {}
    return {when: AnswerLoss.from_dict(each) for when, each in plain.items()}


@dataclass(frozen=True, kw_only=True)
class Finetuning(RunOfVariedRows):
    """A run that fine-tunes a whole model on the answers of one data set."""

    recipe: FinetuningRecipe
    rows: AnswerRows
    asked: list[Asked]
    """Held-out questions with their answers."""
    cut: dict[str, CutText]
    """What did not fit, by split."""

    @property
    def record(self) -> TrainedRecord:
        """Every parameter is trained, so the folder is a whole model; the base says what it was."""
        return TrainedRecord(base=base_address(self.recipe.model.model), method="full", names=self.names)

    @property
    def mean_tokens(self) -> int:
        """Tokens of a row, in the mean over all."""
        return round(float(self.rows.lengths.mean()))

    @property
    def most_tokens(self) -> int:
        """Tokens of the longest row."""
        return int(self.rows.lengths.max())

    def outline(self) -> dict[str, str]:
        """Model, encoding, rows, what was cut, and what is scored."""
        data, config = self.recipe.data, self.config
        return {
            "model": f"{self.recipe.model.model}, {self.parameter_counts[0] / 1e6:,.1f} M parameters, "
            f"{config.max_position_embeddings:,} positions",
            "encoding": f"{config.position_encoding} {getattr(config, 'position_options', None) or ''}".rstrip(),
            "data": f"{data.dataset} of {data.data_dir or data_origin(data.dataset)}: {len(self.rows.lengths):,} rows",
            "held out": f"{len(self.asked):,} questions of {HELD_OUT}" if self.asked else "nothing",
            **{f"cut, {name}": str(cut) for name, cut in self.cut.items()},
        }

    def scoring(self) -> list[TrainerCallback]:
        """Return the loss on held-out answers, where there are any."""
        return [AnswerScores(self.asked, self.output / SCORES)] if self.asked else []

    def figures(self) -> dict[str, Any]:
        """Return the loss on held-out answers, what was cut, and the tokens that were read, padding left out."""
        found = read_scores(self.output / SCORES) if self.asked else {}
        return {
            "tokens": self.rows.tokens,
            "answer_loss": [{"when": when, **each.to_dict()} for when, each in found.items()],
            "cut": {name: asdict(cut) for name, cut in self.cut.items()},
        }

    def show(self) -> None:
        """A line for before and after."""
        found = read_scores(self.output / SCORES) if self.asked else {}
        template = "{0.nll:.3f} nats per token, {0.foreseen:.1%} of {0.targets:,} tokens foreseen"
        if found:
            tables.print_rows({f"answers {when}": template.format(each) for when, each in found.items()})

    def fingerprints(self) -> dict[str, str]:
        """Of each split that is read."""
        data = self.recipe.data
        return {
            f"scrolls:{data.dataset}/{split}": examples.fingerprint(data.dataset, split, data.data_dir)
            for split in ([TRAIN, HELD_OUT] if self.asked else [TRAIN])
        }


def assemble(recipe: FinetuningRecipe) -> Finetuning:
    """Build everything up to the trainer.

    Raises:
        UserError: whatever only the model's own files or the data can tell, on every rank alike.
    """
    base = convert.resolve(base_address(recipe.model.model))
    native = extendable.read_config(base)
    raise_if_any([*extendable.check(native), *check_model(recipe.scale, native)])
    config = model_config.finetuned(recipe, native)
    learned = learns(config.position_encoding, getattr(config, "position_options", None) or {})
    raise_if_any(list(check_trained(recipe.optimization, learned)))
    data = recipe.data
    read = {f"scrolls:{data.dataset}/{TRAIN}": examples.fingerprint(data.dataset, TRAIN, data.data_dir)}
    started = start(recipe, read)
    arguments = started.arguments
    tokenizer = tokenizers.load(base, "model")
    raise_if_any([*rows_of_vocabulary.check_rows(native, tokenizer), *check_end(recipe, tokenizer)])
    decides = identity.of(recipe, tokenizer, read, base)
    require_same(recipe, started, decides)
    train = tokenized(recipe, tokenizer, TRAIN)
    held_out = tokenized(recipe, tokenizer, HELD_OUT, recipe.data.eval_examples) if recipe.data.eval_examples else None
    samples = sample_count(recipe, len(train))
    require_room(recipe, config, started.rank_sync)
    model = extendable.load(base, config, dtype=weights_dtype(arguments))
    prepared = methods.prepare("full", model, settings=None)
    return Finetuning(
        recipe=recipe,
        arguments=arguments,
        config=config,
        model=prepared.model,
        names=prepared.names,
        tokenizer=tokenizer,
        rows=AnswerRows(train, samples=samples, seed=arguments.seed, step_rows=recipe.global_batch_size),
        asked=[Asked(torch.tensor([row["input_ids"]]), row["targets"]) for row in held_out or []],
        cut={"train": rows.cut(train)} | ({"held out": rows.cut(held_out)} if held_out is not None else {}),
        identity=decides,
        resumed=started.resumed,
    )


def check_end(recipe: FinetuningRecipe, tokenizer: PreTrainedTokenizerBase) -> list[Problem]:
    """An answer must be able to end."""
    if tokenizer.eos_token_id is not None:
        return []
    remedy = "give a model whose tokenizer names its eos_token"
    return [Problem("model", recipe.model.model, "its tokenizer has no EOS token, so no answer could end", remedy)]


def tokenized(
    recipe: FinetuningRecipe, tokenizer: PreTrainedTokenizerBase, split: str, questions: int | None = None
) -> datasets.Dataset:
    """Return the rows of a split, one for each reference answer; or of so many questions, one for each.

    Raises:
        UserError: the data.
    """
    data = recipe.data
    form = rows.RowForm(data.max_tokens, data.answer_tokens, data.reference_format)
    cache = paths.data_cache(data.data_cache)
    return rows.tokenized(data.dataset, split, data.data_dir, tokenizer, form, cache, questions)
