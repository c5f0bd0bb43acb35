"""What an experiment writes: its page, its result, and a table of its runs for programs."""

import functools
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from tape_ds import results, storage
from tools.experiment import page, readings
from tools.experiment.page import Measured, StoredSource
from tools.experiment.readings import Numbers, Rows
from tools.experiment.runs import ExperimentWork, PlannedRun
from tools.experiment.study import Study, StudyRow
from tools.experiment.study import text as comparison


def write(work: ExperimentWork, planned: Sequence[PlannedRun], folder: Path, typed: Sequence[str]) -> str:
    """``NAME``.md, .json and .csv of what is complete, in ``folder``; returns the page.

    Args:
        work: the experiment.
        planned: its runs.
        folder: is made.
        typed: the command line.

    Raises:
        UserError: a file that is no result, or a primary figure that there is not.
    """
    asked, complete = work.experiment, [run for run in planned if work.scored(run) is not None]
    own = work.own if work.concluded(planned) else None
    rows, made, sources = gather(work, complete, own)
    pictures = [file for pattern in asked.pictures for file in sorted(own.glob(pattern))] if own else []
    copied = {file: folder / f"{work.name}_{file.name}" for file in pictures}  # beside the page
    for file, target in copied.items():
        storage.write_file(target, functools.partial(shutil.copyfile, file))
    shown = tuple(map(page.shown, copied.values()))
    scale = work.name.rpartition("_")[2] if asked.label else None
    name = work.name.removesuffix(f"_{scale}")
    ours = Measured(name, asked.setting, rows, tuple(sources), shown, tuple(asked.remarks), scale)
    parts, figures = [f"# {asked.label}: {asked.about}" if asked.label else f"# {asked.about}"], ours.figures()
    if made and (len(asked.seeds) > 1 or not asked.label):
        arms = [row.arm for row in made]
        study = Study(made, asked.reference or next(arm for arm in asked.arms if arm in arms), asked.primary)
        parts.append(comparison(study))
        figures["comparison"] = study.figures()
        header = ["arm", "seed", *(measure.name for measure in study.measures)]
        lines = [[row.arm, row.seed, *(row.figures.get(each.quantity) for each in study.measures)] for row in made]
        storage.write_text(folder / f"{work.name}.csv", storage.as_csv(header, lines))
    seeds = sorted({run.seed for run in complete})
    whole = results.collect(
        command=typed, seed=seeds[0] if len(seeds) == 1 else None, processes=work.starting.processes
    )
    whole = whole.finish(figures)
    parts += [page.beside(asked.label, ours, folder)] if asked.label else [page.listed("Remarks", asked.remarks)]
    parts += [page.origin(sources, [shlex.join(whole.command)])] if not asked.label else []
    text = "\n\n".join(part for part in parts if part) + "\n"
    results.save(whole, folder / f"{work.name}.json")
    storage.write_text(folder / f"{work.name}.md", text)
    return f"{text}\nwritten to {folder / work.name}.md, .json"


def gather(
    work: ExperimentWork, complete: Sequence[PlannedRun], last: Path | None
) -> tuple[Rows, list[StudyRow], list[StoredSource]]:
    """Return what stands beside published numbers, the mean of each row's runs; every run's own; and what they are
    from.

    Beside published numbers stands what the last commands wrote: ``then``, else ``score``, else the launchers.

    Args:
        work: the experiment.
        complete: its runs that are.
        last: folder of what ``then`` wrote; None: one of its commands has yet to end, or failed.
    """
    asked = work.experiment
    found: dict[str, list[Numbers]] = {}
    made, sources = [], []
    untouched: set[tuple[str, int | None]] = set()
    for run in complete:
        own: Rows = {"": {}}
        shown: Numbers = {}
        for path, result, rows in readings.of_run(run.folder):
            for label, numbers in rows.items():
                own.setdefault(label, {}).update(numbers)
            beside = not asked.then and (path.parent.name != "results" or not asked.score)
            if beside:
                shown |= {each: value for each, value in rows[""].items() if each.task}
            if beside or not asked.label:
                sources.append(StoredSource.of(path, result))
        seeds = [run.seed] if run.depends_on_seed else asked.seeds or [run.seed]  # no seed changes it: paired with all
        made += [StudyRow(run.arm, seed, own[""]) for seed in seeds]
        for label, each in own.items():
            if label and (label, run.seed) not in untouched:  # every arm of a seed scores the same untouched model
                made.append(StudyRow(label, None, each))
                untouched.add((label, run.seed))
        if shown:
            found.setdefault(asked.names.get(run.arm, run.arm), []).append(shown)
    for path in sorted(last.glob("*.*")) if asked.then and last is not None else ():
        read, read_from = readings.read(path)
        sources += [StoredSource.of(path, read_from)] if read and read_from else []
        for label, numbers in read.items():
            found.setdefault(asked.names.get(label, label), []).append(numbers)
    return {label: page.mean(each) for label, each in found.items()}, made, sources
