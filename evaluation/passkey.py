"""The work of ``python -m evaluation passkey``, which :mod:`evaluation.passkey_options` describes."""

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from evaluation import heat_map, journal, models, passkey_options
from evaluation import options as shared
from evaluation.cost import Cost
from evaluation.models import FoundModel
from tape_ds.data import multikey, passkey_protocols
from tape_ds.data.multikey import KeyedText
from tape_ds.data.passkey import LARGEST_KEY, answer_ids
from tape_ds.data.passkey_protocols import PasskeyQuestion
from tape_ds.errors import Problem, collecting, command, is_main_process, raise_if_any
from tape_ds.scoring import passkey
from tape_ds.scoring.passkey import Passkey, Reply
from tape_ds.training import tables

NAME = "passkey"

Questions: TypeAlias = list[Any]
"""Of :class:`PasskeyQuestion`, or of :class:`KeyedText` where keys are asked for by name."""


@command
def main(argv: list[str] | None = None) -> int:
    """Check, ask, count, write, print."""
    options = passkey_options.parse(argv)
    model, tokenizer, questions = prepare(options)
    evaluation = journal.Evaluation(
        NAME,
        journal.folder(options.output, model),
        model=model.about(),
        config=passkey_options.settings(options),
        data={f"passkey:{options.protocol}": multikey.fingerprint()}
        if options.protocol == "multikey"
        else {f"passkey:{options.form}": passkey_protocols.fingerprint(options.form)},
        seed=None if options.protocol == "published" else options.seed,
    )
    shared.note_beyond(options.lengths, model)
    shared.note_bos(model)
    title = f"Passkeys found by {model.name_or_path} ({options.form}, {options.protocol})"
    return evaluation.run(
        lambda: ask_all(evaluation, options, model, tokenizer, questions),
        lambda figures: report(figures, evaluation.folder, title, model),
        overwrite=options.overwrite,
    )


def prepare(
    options: argparse.Namespace,
) -> tuple[FoundModel, PreTrainedTokenizerBase, Questions]:
    """Return the model, not loaded yet, and what it will be asked.

    Raises:
        UserError: everything wrong with the command line.
    """
    problems = passkey_options.check(options)
    model = models.find(options, problems)
    tokenizer = model.tokenizer()
    least = len(answer_ids(tokenizer, LARGEST_KEY) or ())
    if 1 <= options.new_tokens < least:
        wrong = f"{LARGEST_KEY} alone has {least} tokens"
        problems.append(Problem("--new_tokens", options.new_tokens, wrong, f"give {least} or more"))
    questions: Questions = []
    with collecting(problems, "--{}"):
        questions = ask(options, tokenizer)
    problems += beyond(options, model, questions)
    raise_if_any(problems)
    return model, tokenizer, questions


def ask(options: argparse.Namespace, tokenizer: PreTrainedTokenizerBase) -> Questions:
    """Return the protocol's questions.

    Raises:
        UserError: lengths without room for the prompt.
    """
    if options.protocol == "published":
        return passkey_protocols.published(tokenizer, options.lengths, options.trials)
    if options.protocol == "multikey":
        return multikey.draw(tokenizer, options.lengths, options.trials, seed=options.seed, reply=options.new_tokens)
    return passkey_protocols.grid(
        tokenizer,
        options.lengths,
        options.depths,
        options.trials,
        seed=options.seed,
        form=options.form,
        reply=options.new_tokens,
    )


def beyond(options: argparse.Namespace, model: FoundModel, questions: Questions) -> list[Problem]:
    """Lengths past a model's last position; a published prompt has the tokens that its characters give."""
    if options.protocol != "published" or model.position_limit is None:
        return shared.check_lengths("--lengths", options.lengths, model)
    longest = dict.fromkeys(options.lengths, 0)
    for question in questions:
        needed = len(question.write().ids) + options.new_tokens
        longest[question.length] = max(longest[question.length], needed)
    return shared.check_lengths("--lengths (in tokens of prompt and reply)", sorted(longest.values()), model)


def ask_all(
    evaluation: journal.Evaluation,
    options: argparse.Namespace,
    found: FoundModel,
    tokenizer: PreTrainedTokenizerBase,
    questions: Questions,
) -> dict[str, Any]:
    """Load the model, ask every question that no earlier start has asked; what it replied."""
    if is_main_process():
        print(f"passkeys: {passkey_options.count(options)}", flush=True)
    model = found.load()
    cost = Cost(found.device)
    if options.use_cache and not passkey.reads_in_pieces(model) and is_main_process():
        print("prompts are read in one piece: this model does not promise that pieces give the same", flush=True)
    if options.protocol == "multikey":
        texts = [(f"text {number}", each) for number, each in enumerate(questions)]
        stored = evaluation.run_jobs(texts, partial(replies, model, tokenizer, options)).values()
        found_all = [each for part in stored for each in map(Passkey.from_dict, part)]
        pairs = [(each.length, None, given) for each in found_all for given in each.replies]
        prompts = sum(len(text.ids) for _, text in texts)  # which its questions share
    else:
        longest_first = sorted(questions, key=lambda question: -question.length)
        jobs = [(question.name, question) for question in longest_first]
        found_replies = evaluation.run_jobs(jobs, partial(reply, model, tokenizer, options))
        pairs = [(each.length, each.depth, Reply(**found_replies[each.name])) for each in questions]
        prompts = sum(given.tokens for _, _, given in pairs)
    return {**summarise(pairs, options.form), "cost": cost.taken(prompt_tokens=prompts)}


def reply(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, options: argparse.Namespace, question: PasskeyQuestion
) -> dict[str, Any]:
    """Return what the model says to one question."""
    prompt = question.write()
    length = max(question.length, len(prompt.ids) + options.new_tokens)  # a nominal length may be less than the tokens
    with models.used_at(model, length):
        (found,) = passkey.score(
            model,
            tokenizer,
            [prompt],
            chunk=options.chunk,
            new_tokens=options.new_tokens,
            use_cache=options.use_cache,
        )
    return vars(found.replies[0])


def replies(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, options: argparse.Namespace, text: KeyedText
) -> list[dict[str, Any]]:
    """Return what the model says to all questions of a text, used as it is at the longest length."""
    with models.used_at(model, max(text.questions)):
        found = passkey.score_shared(model, tokenizer, text, chunk=options.chunk, new_tokens=options.new_tokens)
    return [each.to_dict() for each in found]


def summarise(found: Sequence[tuple[int, float | None, Reply]], form: str) -> dict[str, Any]:
    """Return replies, each with its length and depth, counted by both, and all of them by length."""
    places = sorted({(length, depth) for length, depth, _ in found})
    cells = []
    for length, depth in places:
        given = [each for *place, each in found if tuple(place) == (length, depth)]
        known = all(each.same_ids is not None for each in given)
        cells.append(
            {
                "length": length,
                "depth": depth,
                "trials": len(given),
                "correct": sum(each.correct for each in given),
                "correct_ids": sum(bool(each.same_ids) for each in given) if known else None,
                "mean_tokens": statistics.fmean(each.tokens for each in given),
            }
        )
    lengths = sorted({length for length, _ in places})
    by_length = [Passkey(n, tuple(each for length, _, each in found if length == n)) for n in lengths]
    return {"form": form, "cells": cells, "passkeys": [each.to_dict() for each in by_length]}


def report(figures: Mapping[str, Any], folder: Path, title: str, model: FoundModel) -> None:
    """The pictures and tables beside the result, and the table and the wrong replies on the terminal."""
    written = heat_map.write(figures["cells"], folder, title=title, native_length=model.known_length)
    print(f"\n{title}\n")
    print(heat_map.markdown(figures["cells"]))
    by_length = [Passkey.from_dict(each) for each in figures["passkeys"]]
    tables.print_passkeys({model.name_or_path: by_length}, model.known_length or by_length[-1].length)
    print(", ".join(str(path) for path in written))


if __name__ == "__main__":
    sys.exit(main())
