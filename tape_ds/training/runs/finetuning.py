"""Runs that fine-tune a whole model on answers: of SCROLLS' questions, or of the assistant in conversations.

Sequences hold prompts and answers, and answers alone are targets; held-out answers are scored before and after.
"""

import json
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase, TrainerCallback

from tape_ds import encodings, paths, storage
from tape_ds.config.finetuning import HELD_OUT, TRAIN, ChatRecipe, FinetuningRecipe, ScrollsRecipe
from tape_ds.data import tokenizer as tokenizers
from tape_ds.data.bad_rows import BadRows
from tape_ds.data.chat import sequences as chat_sequences
from tape_ds.data.chat import template
from tape_ds.data.chat.sequences import CutConversations
from tape_ds.data.order import AnswerSequences
from tape_ds.data.scrolls import sequences as scrolls_sequences
from tape_ds.data.scrolls.sequences import CutText
from tape_ds.data.selection import spread, token_counts
from tape_ds.distributed.distributed_map import distributed_map
from tape_ds.encodings import scaling
from tape_ds.errors import Problem, UserError
from tape_ds.models.files.config_file import token_ids
from tape_ds.models.loading import extendable
from tape_ds.models.loading.extendable import Config
from tape_ds.run_folder import RESULTS
from tape_ds.scoring import answers, tables
from tape_ds.scoring.answers import AnswerLoss, Prompt
from tape_ds.scoring.ruler_questions import HAYSTACK, RULER, RulerQuestion
from tape_ds.targets.base import PLAIN, BaseModel
from tape_ds.targets.finetuning import finetuned
from tape_ds.training import identity
from tape_ds.training.held_out import Model, ScoredAround, Variants
from tape_ds.training.job import TrainingJob
from tape_ds.training.retrieval import Retrieval, draw_ruler, rows_of
from tape_ds.training.run import Data, Figures, Run, sample_count, weights_dtype

F = TypeVar("F", bound=FinetuningRecipe)
SCORES = "results/answers.json"
BEFORE: Variants = {"before": None}
AFTER: Variants = {"after": None}


def answer_scores(asked: Sequence[Prompt], file: Path) -> ScoredAround:
    """Return the callback that scores reference answers before and after training."""

    def measure(model: Model, variants: Variants) -> dict[str, AnswerLoss]:
        return {when: answers.score(model, asked, each=distributed_map) for when in variants}

    def questions(found: AnswerLoss) -> tuple[int, int]:
        return found.examples, found.targets

    def write(path: Path, scores: Mapping[str, AnswerLoss]) -> None:
        storage.write_json(path, {when: vars(loss) for when, loss in scores.items()})

    announcement = (f"scoring {len(asked):,} answers", "training")
    return ScoredAround(announcement, BEFORE, AFTER, file, measure, questions, read_scores, write)


def read_scores(path: Path) -> dict[str, AnswerLoss]:
    plain = json.loads(path.read_text()) if path.exists() else {}
    return {when: AnswerLoss(**stored) for when, stored in plain.items()}


@dataclass(frozen=True, kw_only=True)
class Tokenised:
    """A run's texts as tokens."""

    stored: Dataset
    """Training sequences."""
    lengths: np.ndarray
    """Tokens of each text in them, int64 [n]: of sequences, or of the conversations packed into them."""
    asked: list[Prompt]
    """Held-out prompts with their answers."""
    cut: Mapping[str, CutText | CutConversations]
    """Texts that did not fit, by split."""
    ends: tuple[int, ...]
    """Tokens that end an answer."""
    notes: Mapping[str, str]
    """Lines of the announcement about the data."""
    day: str | None = None
    """The day that a chat template writes."""


@dataclass(frozen=True, kw_only=True)
class DataToFinetune(Data):
    """Training sequences, and the texts and questions that are scored."""

    sequences: AnswerSequences
    texts: Tokenised
    config: Config
    """Configuration of the model, long enough for the longest text."""
    ruler: list[RulerQuestion]
    notes: Mapping[str, str]
    """Lines of the announcement about the data."""


class Finetuning(Run[F, DataToFinetune], Generic[F]):
    """A run that fine-tunes a whole model on answers."""

    SERVING: ClassVar[type[AnswerSequences]] = AnswerSequences
    """Serves the tokenised training sequences."""
    TEXTS: ClassVar[str] = "sequences"
    """Texts that positions are counted in."""

    @classmethod
    @abstractmethod
    def tokenise(cls, job: TrainingJob[F], day: date, bad_rows: BadRows) -> Tokenised:
        """Tokenise the data; ``day`` is that of the run's first start."""

    @classmethod
    def read_data(cls, job: TrainingJob[F]) -> DataToFinetune:
        recipe = job.recipe
        # a chat template may write today's date: a resumed run keeps that of its first start
        first_day = None
        if job.resumed:
            first_day = job.resumed.manifest.identity.get(identity.DATE)
        day = date.fromisoformat(job.rank_sync.first(first_day or date.today().isoformat()))
        bad_rows = BadRows(recipe.data.skip.bad_rows)
        texts = cls.tokenise(job, day, bad_rows)
        sequences = cls.SERVING(
            texts.stored,
            samples=sample_count(recipe, len(texts.stored)),
            seed=job.arguments.seed,
            step_sequences=recipe.global_batch_size,
        )
        longest = int(texts.lengths.max())
        notes = {**texts.notes, **cls._note_beyond(job, texts.lengths)}
        short = recipe.note_of_length(longest, job.base.length)
        if short is not None:
            notes["length"] = short
        return DataToFinetune(
            sequences=sequences,
            bad_rows=bad_rows,
            texts=texts,
            config=finetuned(recipe, job.base, longest),
            ruler=draw_ruler(job.fetched.tokenizer, recipe.ruler),
            notes=notes,
        )

    @classmethod
    def _note_beyond(cls, job: TrainingJob[F], lengths: np.ndarray) -> dict[str, str]:
        """Refuse texts that are longer than the model reaches; where the run is forced, return a line of the
        announcement."""
        reached = reach(job.base, job.fetched.config)
        beyond = int((lengths > reached).sum())
        if not beyond:
            return {}
        recipe = job.recipe
        rope = job.base.rope
        limit = int(reached)
        wrong = f"{beyond:,} of {len(lengths):,} {cls.TEXTS} are longer than the model's native length, {limit:,} "
        wrong += (
            f"tokens (the longest: {int(lengths.max()):,}), and its RoPE has no scaling for them"
        )
        remedy = f"extend the model first (tape-ds extend), or --max_tokens {limit}, or --force to train as it is"
        if rope.window is None:  # config.json does not decide it
            wrong += f", unless its {scaling.described(rope.parameters)} begins there"
            remedy += f"; if it does, write max_sequence_length: {round(rope.factor * limit)} into its config.json"
        if not recipe.memory.force:
            raise UserError(Problem("max_tokens", recipe.data.max_tokens, wrong, remedy))
        return {"length": wrong}

    @classmethod
    def load_model(cls, job: TrainingJob[F], data: DataToFinetune) -> extendable.Model:
        """Load the base, and add the tokens that end an answer to those that end its generation."""
        model = extendable.load(job.base.folder, data.config, dtype=weights_dtype(job.arguments))
        generation = model.generation_config
        known = token_ids(generation.eos_token_id)
        missing = [token for token in data.texts.ends if token not in known]
        if missing:
            generation.eos_token_id = [*known, *missing]
            # else transformers may take the configuration's single one instead
            generation._from_model_config = False
        return model

    @property
    def config(self) -> Config:
        return self.data.config

    @property
    def identity(self) -> Mapping[str, object]:
        day = self.data.texts.day
        if day is None:
            return self.job.identity
        return {**self.job.identity, identity.DATE: day}

    @property
    def mean_tokens(self) -> int:
        return round(float(self.data.sequences.lengths.mean()))

    @property
    def most_tokens(self) -> int:
        return int(self.data.sequences.lengths.max())

    def outline(self) -> dict[str, str]:
        millions = self.parameter_counts[0] / 1e6
        size = f"{millions:,.1f} M parameters, {self.config.max_position_embeddings:,} positions"
        return {
            "model": f"{self.recipe.model.model}, {size}",
            "encoding": encodings.described(self.config),
            **self.data.notes,
        }

    def scoring(self) -> list[TrainerCallback]:
        callbacks: list[TrainerCallback] = []
        if self.data.texts.asked:
            callbacks.append(answer_scores(self.data.texts.asked, self.output / SCORES))
        if self.data.ruler:
            callbacks.append(self.retrieval.around(self.tokenizer, BEFORE, AFTER))
        return callbacks

    @property
    def retrieval(self) -> Retrieval:
        """RULER's questions, which may be none."""
        return Retrieval(
            RULER, self.data.ruler, self.output / RESULTS / "ruler.json", tables.print_ruler
        )

    def figures(self) -> Figures:
        """Return the loss on held-out answers, what was cut, and the tokens that were read, padding left out."""
        found = read_scores(self.output / SCORES) if self.data.texts.asked else {}
        asked: Figures = {}
        if self.data.ruler:
            asked = {"ruler": rows_of(self.retrieval.read()), "ruler_haystack": HAYSTACK}
        return {
            "tokens": self.data.sequences.tokens,
            "answer_loss": [{"when": when, **vars(loss)} for when, loss in found.items()],
            "cut": {name: asdict(cut) for name, cut in self.data.texts.cut.items()},
            **asked,
        }

    def show(self) -> None:
        found = read_scores(self.output / SCORES) if self.data.texts.asked else {}
        template = "{0.nll:.3f} nats per token, {0.foreseen:.1%} of {0.targets:,} tokens foreseen"
        if found:
            tables.print_rows(
                {f"answers {when}": template.format(loss) for when, loss in found.items()}
            )
        if self.data.ruler:
            self.retrieval.show(self.retrieval.read())


def reach(base: BaseModel, config: Config) -> float:
    """Return the tokens of a text that a base model, used as ``config``, has rotary angles for; infinite for another
    encoding, attention without positions, or RoPE that is scaled by the text's length."""
    rope = getattr(config, "rope_parameters", None) or {}
    is_plain = getattr(config, "position_encoding", PLAIN) == PLAIN and base.rope.is_used
    if not is_plain or scaling.is_dynamic(rope):
        return math.inf
    return base.rope.reach


class ScrollsTuning(Finetuning[ScrollsRecipe]):
    """A run that learns to answer the questions of one data set."""

    @classmethod
    def tokenise(cls, job: TrainingJob[ScrollsRecipe], day: date, bad_rows: BadRows) -> Tokenised:
        # a training sequence for each reference answer; of the held-out questions one for each
        data = job.recipe.data
        tokenizer = job.fetched.tokenizer
        read = partial(
            scrolls_sequences.tokenize,
            data.dataset,
            data_dir=data.data_dir,
            tokenizer=tokenizer,
            form=scrolls_sequences.SequenceForm(
                data.max_tokens, data.answer_tokens, data.reference_format
            ),
            cache_dir=paths.data_cache(data.data_cache),
            bad_rows=bad_rows,
        )
        held_out = read(HELD_OUT, questions=data.eval_examples) if data.eval_examples else []
        train = read(TRAIN)
        cut = {"train": scrolls_sequences.cut(train)}
        if held_out:
            cut["held out"] = scrolls_sequences.cut(held_out)
        asked = [Prompt(torch.tensor([row["input_ids"]]), row["targets"]) for row in held_out]
        notes = {
            "data": f"{data.named}: {len(train):,} sequences",
            "held out": f"{len(asked):,} questions of {HELD_OUT}" if asked else "nothing",
            **tokenizers.bos_note(tokenizer, job.fetched.config),
            **{f"cut, {name}": str(each) for name, each in cut.items()},
        }
        return Tokenised(
            stored=train,
            lengths=token_counts(train),
            asked=asked,
            cut=cut,
            ends=(int(tokenizer.eos_token_id),),
            notes=notes,
        )


class ChatTuning(Finetuning[ChatRecipe]):
    """A run that learns the assistant's turns of conversations, rendered by the model's own chat template."""

    SERVING = chat_sequences.ChatSequences
    TEXTS = "conversations"

    @classmethod
    def tokenise(cls, job: TrainingJob[ChatRecipe], day: date, bad_rows: BadRows) -> Tokenised:
        # packed training sequences, and every answer of the conversations that are held out
        data = job.recipe.data
        tokenizer = job.fetched.tokenizer
        cache = paths.data_cache(data.data_cache)
        other = None
        if data.eval_examples and data.eval_data:
            other = chat_sequences.rendered(
                data.eval_data, tokenizer, "heldout", cache, day, bad_rows
            )
        stored = chat_sequences.rendered(data.train_data, tokenizer, "train", cache, day, bad_rows)
        # a function of these two alone: a resumed run never holds out a conversation that it was trained on
        aside = spread(len(stored), math.floor(len(stored) * data.eval_share))
        rest = np.setdiff1d(np.arange(len(stored)), aside)
        train = chat_sequences.choose(stored, rest, data.max_tokens, data.too_long)
        if len(train.numbers) == 0:
            remedy = "raise it, or give other data"
            raise UserError(
                Problem(
                    "max_tokens", data.max_tokens, f"no conversation is left: {train.cut}", remedy
                )
            )

        cut = {"train": train.cut}
        asked = []
        chosen = None
        if other is not None:
            chosen = chat_sequences.choose(
                other, np.arange(len(other)), data.max_tokens, data.too_long
            )
        elif data.eval_examples and data.eval_share:
            chosen = chat_sequences.choose(stored, aside, data.max_tokens, data.too_long)
        if chosen is not None:
            cut["held out"] = chosen.cut
            if len(chosen.numbers) == 0:
                name = "eval_data" if data.eval_data else "eval_share"
                wrong = f"no held-out conversation is left to be scored: {chosen.cut}"
                raise UserError(
                    Problem(name, getattr(data, name), wrong, "hold out more, or eval_examples: 0")
                )
            for conversation in chosen.spread(data.eval_examples):
                for ids, targets in chat_sequences.answers(conversation):
                    asked.append(Prompt(torch.tensor(ids[None]), targets))

        packed = chat_sequences.packed(train, cache)
        ends, note = _ends(stored, tokenizer)
        origin = ", ".join(data.eval_data) or f"{data.eval_share:.1%} of the conversations"
        notes = {
            "data": f"{', '.join(data.train_data)}: {len(train.numbers):,} conversations in {len(packed):,} sequences",
            "held out": f"{len(asked):,} answers of {origin}" if asked else "nothing",
            **{f"cut, {name}": str(each) for name, each in cut.items()},
            "end of an answer": note,
        }
        written_day = None
        if template.is_dated(tokenizer):
            notes["date"] = (
                f"{day:%d %B %Y} wherever the chat template asks for today's, also after a resume"
            )
            written_day = day.isoformat()
        unread = sorted(chat_sequences.counted(stored, "unread"))
        if unread:
            notes["not read"] = f"the columns {', '.join(unread)}"
        return Tokenised(
            stored=packed,
            lengths=train.lengths,
            asked=asked,
            cut=cut,
            ends=ends,
            notes=notes,
            day=written_day,
        )


def _ends(stored: Dataset, tokenizer: PreTrainedTokenizerBase) -> tuple[tuple[int, ...], str]:
    """Return the special tokens that end answers, and a sentence that names them and counts the answers without one,
    at which a generation could not stop."""
    # how many answers end with which token, -1 for none that ends an answer
    counts = chat_sequences.counted(stored, "ends")
    added = tokenizer.added_tokens_decoder
    if counts[-1]:
        # the template puts no end: a token that was added as a word is one of these answers' words
        for token in list(counts):
            if token in added and not added[token].special:
                counts[-1] += counts.pop(token)
    tokens = tuple(sorted(counts.keys() - {-1}))
    named = ", ".join(f"{tokenizer.convert_ids_to_tokens(token)} (id {token})" for token in tokens)
    if not counts[-1]:
        return tokens, f"{named}; the trained model stops there"
    first = next(row for row in stored if -1 in row["ends"])
    learnt = tokenizer.decode(
        [first["input_ids"][place] for place in np.flatnonzero(first["targets"])[-8:]]
    )
    wrong = f"{counts[-1]:,} of {counts.total():,} answers have no special token at the end of what is learnt "
    wrong += f"(as {learnt!r})"
    if named:
        return tokens, f"{named}; but {wrong}"
    return tokens, f"{wrong}: a generation will not stop there by itself"
