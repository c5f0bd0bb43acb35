"""The work of ``python -m evaluation perplexity``, which :mod:`tape_ds.scoring.perplexity_options` describes."""

import argparse
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from tape_ds.data.sources import Source, parse_all
from tape_ds.errors import Problem, collecting, command, raise_if_any
from tape_ds.scoring import models, perplexity_options, resumable, scored_texts, window_jobs
from tape_ds.scoring import options as shared
from tape_ds.scoring.causal_lm import unscorable
from tape_ds.scoring.models import FoundModel
from tape_ds.scoring.perplexity_options import Scoring
from tape_ds.scoring.resumable import Cost
from tape_ds.scoring.span_losses import SpanLosses
from tape_ds.scoring.window_jobs import Jobs, Texts
from tape_ds.training import tables

NAME = "perplexity"


@command
def main(argv: list[str] | None = None) -> int:
    """Check, read, score, write, print."""
    options = perplexity_options.parse(argv)
    model, sources = prepare(options)
    evaluation = resumable.Evaluation(
        NAME,
        resumable.folder(options.output, model),
        model=model.about(),
        config=perplexity_options.settings(options),
        data={source.spec: source.fingerprint() for source in sources},
        seed=None,
    )
    shared.note_beyond(options.lengths, model)
    if not options.bos:
        shared.note_bos(model)
    return evaluation.run(
        lambda: score(evaluation, options, model, sources),
        lambda figures: report(figures, model),
        overwrite=options.overwrite,
    )


def prepare(options: argparse.Namespace) -> tuple[FoundModel, list[Source]]:
    """Return the model, not loaded yet, and the sources, not read yet.

    Raises:
        UserError: everything wrong with the command line.
    """
    problems = perplexity_options.check(options)
    sources: list[Source] = []
    with collecting(problems):
        sources = parse_all(list(dict.fromkeys(options.data)), "--data")
    model = models.find(options, problems)
    problems += models.check_lengths("--lengths", options.lengths, model)
    if options.bos and model.tokenizer().bos_token_id is None:
        problems.append(Problem("--bos", True, "the tokenizer has no BOS", "leave it out, or name another --tokenizer"))
    if (reason := unscorable(model.config)) is not None:
        problems.append(Problem("model", model.name_or_path, reason, "score another model"))
    raise_if_any(problems)
    return model, sources


def plan(found: Texts, options: argparse.Namespace, scoring: Scoring, model: FoundModel) -> Jobs:
    """Return the jobs, once it is known that each source has some at each length and the model an embedding for each
    token.

    Raises:
        UserError: texts too short for a length, ids beyond the model's vocabulary.
    """
    jobs = window_jobs.plan(found, options.lengths, scoring)
    covered = {
        (each.source, each.length)
        for each in jobs.values()
        if not each.spans
        if any(window.end - window.start == scoring.room(each.length) for _, window in each.windows)
    }
    vocabulary = model.config.get_text_config().vocab_size
    problems = []
    for source, parts in found.items():
        longest = max(len(text.ids) for text in parts)
        for length in options.lengths:
            if (source, length) not in covered:
                wrong = f"none of the {len(parts)} texts of {source} fills a window; the longest has {longest:,} tokens"
                problems.append(Problem("--lengths", length, wrong, "leave it out, or name longer texts"))
        highest = max(int(text.ids.max(initial=0)) for text in parts)
        if highest >= vocabulary:
            wrong = f"it has the token {highest}, the model's vocabulary ends at {vocabulary - 1}"
            problems.append(Problem("--data", source, wrong, "name the --tokenizer that the model was trained with"))
    raise_if_any(problems)
    return jobs


def score(
    evaluation: resumable.Evaluation,
    options: argparse.Namespace,
    found: FoundModel,
    sources: list[Source],
) -> dict[str, Any]:
    """Read the texts, load the model, do the jobs that no earlier start has done; the figures.

    Raises:
        UserError: texts that cannot be read, or are too short; the model is not loaded then.
    """
    tokenizer = found.tokenizer()
    parts: dict[str, list[scored_texts.ScoredText]] = {}
    problems: list[Problem] = []
    for source in sources:
        with collecting(problems):
            parts[source.spec] = scored_texts.read(
                source, tokenizer, bare=options.bos, **perplexity_options.choice(options)
            )
    raise_if_any(problems)
    scoring = perplexity_options.scoring_of(options, tokenizer)
    jobs = plan(parts, options, scoring, found)
    model = found.load()
    cost = Cost(found.device)
    work = partial(window_jobs.work, model, parts, scoring, options.batch_size, options.chunk)
    done = evaluation.run_jobs(list(jobs.items()), work)
    figures = window_jobs.figures(parts, options.lengths, scoring, jobs, done)
    return {**figures, "cost": cost.taken(tokens=window_jobs.tokens(jobs))}


def report(figures: Mapping[str, Any], model: FoundModel) -> None:
    """The tables on the terminal, and what was left out."""
    for source in figures["documents"]:
        entries = [each for each in figures["perplexity"] if each["source"] == source]
        print(f"\n{NAME} of {model.name_or_path} on {source} ({entries[0]['convention']})")
        tables.print_rows({f"{each['length']:,}": _line(each) for each in entries})
    for source, documents in figures["loss_by_position"].items():
        print(f"\n{source}")
        losses = {name: SpanLosses.from_dict(values) for name, values in documents.items()}
        longest = max(each["length"] for each in figures["perplexity"])
        tables.print_loss_by_position({model.name_or_path: losses}, model.known_length or longest)


def _line(entry: Mapping[str, Any]) -> str:
    """Return one length in words."""
    error = entry["standard_error"]
    spread = "" if error is None else f" +- {error:.4f}"
    words = [
        f"{entry['perplexity']:.4f}",
        f"{entry['nll']:.4f}{spread} nats per token",
        f"{entry['targets']:,} targets in {entry['windows']:,} windows of {entry['documents']:,} documents",
    ]
    out = entry["left_out"]
    for names, wrong in ((entry["shorter"], "shorter than a window"), (out, "too short, left out")):
        if names["documents"]:
            more = ", ..." if names["documents"] > len(names["names"]) else ""
            shown = ", ".join(map(str, names["names"]))  # a stored result gives back the words nan and inf as numbers
            words.append(f"{names['documents']:,} documents {wrong}: {shown}{more}")
    if out["tokens"]:
        words.append(f"{out['tokens']:,} tokens in no window")
    return "; ".join(words)


if __name__ == "__main__":
    sys.exit(main())
