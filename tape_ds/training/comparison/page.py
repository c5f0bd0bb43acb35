"""The page of a comparison: the table of its arms, what decides between them, and the noise of a repeated run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tape_ds import results
from tape_ds.markdown_table import markdown_table
from tape_ds.training.comparison import summary
from tape_ds.training.comparison.measures import Column, Measure
from tape_ds.training.comparison.study import Study, verdict
from tape_ds.training.numbers import NOT_AVAILABLE, number


def write(
    study: Study,
    columns: Sequence[Column | Measure],
    begun: results.Result,
    figures: Mapping[str, Any],
    *,
    folder: Path,
    name: str,
    lead: str,
    csv: str,
) -> str:
    """``name``.md, .json and .csv of a comparison in ``folder``; returns the page.

    Args:
        study: its runs.
        columns: of the table.
        begun: its record, of :func:`summary.collect`.
        figures: what the record holds beside the rows and what the study says.
        folder: is made.
        name: of the tool and its files.
        lead: what stands above the table.
        csv: the table for programs.
    """
    whole = begun.finish({**figures, f"{study.title}s": study.rows, "comparison": study.figures()})
    parts = [lead, table(study, columns), conclusions(study), summary.provenance(whole, f"tools/{name}.py")]
    text = "\n\n".join(parts) + "\n"
    summary.write(whole, folder, name, text, csv)
    return text


def table(study: Study, columns: Sequence[Column | Measure]) -> str:
    """A line for each arm, means over its runs; the best of each measure in bold."""
    best = {each.name: _best(study, each) for each in columns if isinstance(each, Measure) and each.has_best}
    several = len(study.seeds) > 1
    lines = []
    for arm, rows in study.arms.items():
        line = [arm, str(len(rows))] if several else [arm]
        for column in columns:
            if isinstance(column, Column):
                line.append(column.cell(rows))
                continue
            found = study.sample(arm, column)
            shown = column.write_sample(found)
            line.append(f"**{shown}**" if found is not None and found.mean == best.get(column.name) else shown)
        lines.append(line)
    return markdown_table([study.title, *(["runs"] if several else []), *map(_header, columns)], lines)


def _header(column: Column | Measure) -> str:
    return column.header or column.title if isinstance(column, Measure) else column.header


def _best(study: Study, measure: Measure) -> float | None:
    """The best mean of all arms; what is not a number is none, nor is a share of nothing."""
    means = [found.mean for arm in study.arms if (found := study.sample(arm, measure)) is not None]
    known = [mean for mean in means if mean == mean]
    return min(known, default=None) if measure.lower else max(known, default=None) or None


def conclusions(study: Study) -> str:
    """What stands below the table: the primary figure seed by seed, every arm against the reference in numbers and in
    a sentence, and what a repeated run came to."""
    parts = [_decides(study), _by_seed(study)] if len(study.seeds) > 1 else ["A single run for each: no interval."]
    if study.claims and len(study.seeds) > 1:
        parts.append(_differences(study))
    if study.claims:
        parts.append("\n".join(f"- {verdict(study, claim)}" for claim in study.claims))
    return "\n\n".join([*parts, *_noise(study)])


def _decides(study: Study) -> str:
    better = "lower" if study.primary.lower else "higher"
    return (
        "± is half the width of Student's 95 % interval over seeds. What decides is "
        f"**{study.primary.title}** ({better} is better), every arm against `{study.reference}` on the same seeds. "
        "p is that of the exact two-sided sign-flip test; Holm's is adjusted for all claims of this page, and one of "
        "0.05 or less makes an arm better or worse."
    )


def _by_seed(study: Study) -> str:
    values = {arm: study.values(arm, study.primary) for arm in study.arms}
    lines = [
        [arm, *(study.primary.write(found.get(seed)) for seed in study.seeds)] for arm, found in values.items() if found
    ]
    return markdown_table([f"{study.primary.title}, by seed", *map(str, study.seeds)], lines)


def _differences(study: Study) -> str:
    write, lines = study.primary.write_difference, []
    for claim in study.claims:
        found = claim.found
        mean, interval = (None, None) if found is None else (found.mean, found.interval)
        shown = NOT_AVAILABLE if mean is None else write(mean)
        ends = NOT_AVAILABLE if interval is None else " to ".join(map(write, interval))
        count = str(len(claim.differences))
        lines.append([claim.arm, shown, ends, count, number(claim.p, ".3g"), number(claim.p_holm, ".3g")])
    unit = ", points" if study.primary.is_share else ""
    return markdown_table([f"less {study.reference}{unit}", "mean", "95 % interval", "seeds", "p", "p, Holm's"], lines)


def _noise(study: Study) -> list[str]:
    found = study.repeated()
    if found is None:
        return []
    lines = []
    for each in study.measures:
        one, other = found["figures"][each.name]
        moved = NOT_AVAILABLE if one is None or other is None else each.write_difference(other - one)
        lines.append([each.title, each.write(one), each.write(other), moved])
    said = f"`{found['arm']}` trained again with seed {found['seed']}. What differs is noise, 0 where runs are "
    return [f"{said}deterministic:", markdown_table(["figure", "first", "again", "difference"], lines)]
