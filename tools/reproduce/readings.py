"""Numbers out of stored results, by the name that the published table has for each method and quantity.

A reading takes the folder that results lie in. Methods are found by the name of a run's folder, or by the row of a
comparison; one that the published table does not know keeps its own name.
"""

import csv
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from evaluation import published
from evaluation.published import Quantity
from tape_ds import results
from tools.reproduce.experiment import Measured, Reading, Source, Values, merged

Numbers = dict[Quantity, float]
Taking = Callable[[results.Result], Numbers]
Rows = Callable[[results.Result], Iterator[tuple[str, Numbers]]]
BEYOND = "beyond"
"""Behind a metric's name: over what was not trained alone."""


def runs(pattern: str, take: Taking, names: Mapping[str, str]) -> Reading:
    """A result for each method, each in a folder called like the method's run.

    Args:
        pattern: of the files, below the folder; its first part is the run's folder.
        take: a result's numbers.
        names: folder -> published name.
    """

    def read(folder: Path) -> Measured:
        values: Values = {}
        sources = []
        for path in sorted(folder.glob(pattern)):
            own = path.relative_to(folder).parts[0]
            result = results.load(path)
            values.setdefault(names.get(own, own), {}).update(take(result))
            sources.append(Source.of(path, result))
        return Measured(values, tuple(sources))

    return read


def one(pattern: str, rows: Rows, names: Mapping[str, str]) -> Reading:
    """A result with a row for each method.

    Args:
        pattern: of the file, below the folder.
        rows: label and numbers of each row.
        names: label -> published name.
    """

    def read(folder: Path) -> Measured:
        values: Values = {}
        sources, setting = [], ""
        for path in sorted(folder.glob(pattern)):
            result = results.load(path)
            for label, numbers in rows(result):
                values.setdefault(names.get(label, label), {}).update(numbers)
            sources.append(Source.of(path, result))
            setting = sizes(result.config)
        return Measured(values, tuple(sources), setting=setting)

    return read


def sizes(config: Mapping[str, Any]) -> str:
    """A model from scratch and its training, as far as a stored configuration says them."""
    said = {
        "num_hidden_layers": "{} layers",
        "hidden_size": "{} wide",
        "task": "{}",
        "max_digits": "to {} digits",
        "max_steps": "{:,} steps",
    }
    return ", ".join(words.format(config[name]) for name, words in said.items() if config.get(name) is not None)


def linked(page: Path) -> Measured:
    """The pictures that a page shows, and the commands that it says made them."""
    text = page.read_text(encoding="utf-8")
    pictures = tuple(page.parent / name for name in re.findall(r"!\[[^\]]*\]\(([^)#]+)\)", text))
    commands = re.findall(r"^\s{4}(python -m tools\.visualise\b.*)$", text, re.M)
    return Measured(files=pictures, sources=tuple(Source(page, command, "", "", "") for command in commands))


def files(*patterns: str) -> Reading:
    """Pictures and pages."""

    def read(folder: Path) -> Measured:
        return Measured(files=tuple(path for pattern in patterns for path in sorted(folder.glob(pattern))))

    return read


def together(*parts: Reading) -> Reading:
    """Several readings of the same folder."""
    return lambda folder: merged([read(folder) for read in parts])


def perplexity(result: results.Result) -> Numbers:
    """Of ``python -m evaluation perplexity``."""
    found = {}
    for each in result.figures["perplexity"]:
        text = published.text_of(each["source"])
        table = next(published.tables_for([Quantity(text or "", "perplexity", each["length"])]), None)
        theirs = table is None or table.convention == each["convention"]
        metric = "perplexity" if theirs else f"perplexity ({each['convention']})"
        found[Quantity(text or each["source"], metric, each["length"])] = each["perplexity"]
    return found


def passkeys(result: results.Result) -> Numbers:
    """Of ``python -m evaluation passkey``: found among those asked at a length, in per cent."""
    nominal = result.config.get("protocol") == "published"
    metric = "accuracy" if nominal else "accuracy, own prompts"
    return {
        Quantity("passkey", metric, each["length"]): 100 * each["correct"] / each["trials"]
        for each in result.figures["passkeys"]
    }


def scrolls(result: results.Result) -> Numbers:
    """Of ``python -m evaluation scrolls generate``."""
    return {
        Quantity(name, each["metric"]): each["score"]
        for name, each in result.figures["datasets"].items()
        if each["score"] is not None
    }


def harness(result: results.Result) -> Numbers:
    """Of ``python -m evaluation harness``: per cent. Groups stand for their members."""
    groups = result.figures.get("groups") or {}
    members = {name for group in groups.values() for name in group.get("tasks") or []}
    tasks = {name: each for name, each in result.figures["tasks"].items() if name not in members}
    known = ("acc", "acc_norm")
    return {
        Quantity(name.removeprefix("tape_"), "accuracy" if each["metric"] in known else each["metric"]): 100
        * each["value"]
        for name, each in {**tasks, **groups}.items()
    }


def encodings(text: str) -> Rows:
    """Of ``tools/compare_encodings.py``: perplexity of ``text`` by length."""

    def rows(result: results.Result) -> Iterator[tuple[str, Numbers]]:
        for each in result.figures["encodings"]:
            yield (
                each["encoding"],
                {Quantity(text, "perplexity", int(length)): value for length, value in each["perplexity"].items()},
            )

    return rows


def of_training(text: str) -> Taking:
    """Of a run of ``launchers/pretrain_c4.py``: perplexity of ``text`` by length."""

    def take(result: results.Result) -> Numbers:
        scored: Mapping[str, Mapping[str, Any]] = result.figures["perplexity"]
        return {Quantity(text, "perplexity", int(length)): each["perplexity"] for length, each in scored.items()}

    return take


def grid(means: Mapping[str, Mapping[str, Any]], task: str, trained: int) -> Numbers:
    """Per cent right of a grid of operand lengths: the mean as published, to twice the trained lengths, and that of
    the part that was not trained."""
    found = {}
    metrics = {"twice": "exact_match", "beyond": f"exact_match {BEYOND}", "trained": "exact_match within"}
    for part, metric in metrics.items():
        value = means[part]["value"]
        if value is not None:
            found[Quantity(f"{task}_{trained}", metric)] = 100 * value
    return found


def arithmetic(result: results.Result) -> Numbers:
    """Of ``python -m evaluation arithmetic``."""
    figures = result.figures
    return grid(figures["means"], figures["task"], figures["trained"][0])


def flops(result: results.Result) -> Iterator[tuple[str, Numbers]]:
    """Of ``tools/flops.py --table3``: what this project counts, in the paper's convention and in the other."""
    columns = {
        "FLOPs (G)": Quantity("cost", "gflop"),
        "MACs (G)": Quantity("cost", "gmac"),
        "parameters (M)": Quantity("cost", "parameters"),
        "MACs causal (G)": Quantity("cost", "gmac, causal"),
    }
    for row in result.figures["rows"]:
        if row["count"] != "published":
            label = row["encoding"] if row["count"] == "this project" else f"{row['encoding']}, {row['count']}"
            yield label, {columns[name]: row[name] for name in columns if row[name] is not None}


def stability(result: results.Result) -> Iterator[tuple[str, Numbers]]:
    """Of ``tools/stability.py``: in the units of Table 8's halves; :func:`halved` tells their quantities apart."""
    for row in result.figures["models"]:
        found: Numbers = {}
        for treatment, moved in row["mean"].items():
            for layer, figures in moved["layers"].items():
                own = Quantity(treatment, f"layer {layer}")
                found[own] = 100 * figures["attention_l1"]
                if figures["positions_percent"] is not None:
                    found[halved(own)] = figures["positions_percent"]
        yield row["name"], found


def halved(quantity: Quantity) -> Quantity:
    """A quantity of Table 8's second half, which calls its columns as the first does."""
    return Quantity(f"{quantity.task}, positions", quantity.metric, quantity.length)


def grids(result: results.Result) -> Iterator[tuple[str, Numbers]]:
    """Of ``tools/compare_arithmetic.py``."""
    figures = result.figures
    for row in figures["encodings"]:
        yield row["encoding"], grid(row["means"], figures["task"], figures["trained"][0])


def differences(result: results.Result) -> Iterator[tuple[str, Numbers]]:
    """Of ``tools/visualise.py``: how far two models' attention is apart in each layer, 0 to 2."""
    found = result.figures.get("attention_l1_between_models") or {}
    names = " - ".join(each["name"] for each in result.figures["models"])
    yield names, {Quantity("attention L1", f"layer {layer}"): value for layer, value in found.items()}


def answers(result: results.Result) -> Iterator[tuple[str, Numbers]]:
    """Of ``python -m evaluation scrolls compare``: exact match of each question, and of all that were asked."""
    figures = result.figures
    for name, scores in figures["scores"].items():
        found = {
            Quantity(f"{figures['dataset']}, our question {number}", "exact_match"): each["answers"][name][
                "exact_match"
            ]
            for number, each in enumerate(figures["questions"], 1)
        }
        yield name, found | {Quantity(figures["dataset"], "exact_match"): scores["exact_match"]["score"]}


def benchmark(labels: Callable[[str, str], str | None]) -> Reading:
    """Tables of ``python -m benchmarks table4``: time of a step, and steps a second, by the fastest rival of a label.

    ``labels``: the published name of an encoding and a rival; None: it has none and is left out.
    """

    def read(path: Path) -> Measured:
        values: Values = {}
        sources = []
        for file in [path] if path.is_file() else sorted(path.glob("table4_*.csv")):
            with open(file, encoding="utf-8", newline="") as lines:
                rows = [row for row in csv.DictReader(lines) if row["status"] == "timed"]
            for row in rows:
                label = labels(row["encoding"], row["rival"])
                if label is not None:
                    _keep_fastest(values.setdefault(label, {}), row)
            sources += [_of_benchmark(file, row) for row in rows[:1]]
        return Measured(values, tuple(sources))

    return read


def _keep_fastest(numbers: Numbers, row: Mapping[str, str]) -> None:
    """In the units of Table 4."""
    milliseconds = float(row["total_p50"] or row["forward_p50"])
    time = Quantity(row["shape"], "time")
    if 10 * milliseconds < numbers.get(time, float("inf")):
        numbers |= {time: 10 * milliseconds, Quantity(row["shape"], "throughput"): 1e3 / milliseconds}


def _of_benchmark(file: Path, row: Mapping[str, str]) -> Source:
    """The table's first row says what holds for all of them."""
    device = "cpu" if row["chip"] == "cpu" else "cuda"
    command = f"python -m benchmarks table4 --device {device} --dtype {row['dtype']} --repeats {row['repeats']}"
    return Source(file, command, row["device"], row["date"], row["commit"])
