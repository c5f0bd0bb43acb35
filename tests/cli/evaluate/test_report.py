"""``tape-ds evaluate report``: which results it finds, and that the page shows their figures."""

import math
import re
from xml.etree import ElementTree

import pytest

from tape_ds import results
from tape_ds.cli.evaluate import report
from tape_ds.scoring import report_columns as columns
from tape_ds.scoring import report_page
from tests.evaluation import report_examples as examples


def written(tmp_path, *arguments):
    folder = tmp_path / "page"
    assert report.main([*map(str, arguments), "--output", str(folder)]) == 0
    return (folder / report.NAME).read_text(encoding="utf-8")


def page(**records):
    """The page of columns by name, each a mapping of kinds to results."""
    found = [
        columns.Column(name, {kind: columns.Record(f"{name}/{kind}.json", kind, each) for kind, each in own.items()})
        for name, own in records.items()
    ]
    return report_page.page(found, ())


def tables(made, words):
    """The tables whose caption begins with ``words``: row -> column -> (what is shown, all digits)."""
    found = []
    for text in re.findall(r"<table.*?</table>", made, re.S):
        tree = ElementTree.fromstring(text)
        if not tree.get("aria-label").startswith(words):
            continue
        heads, *rows = map(list, tree.iter("tr"))
        names = ["".join(head.itertext()) for head in heads[1:]]
        found.append({})
        for name, *cells in rows:
            exact = [next((span.get("title") for span in cell.iter("span")), None) for cell in cells]
            shown = ["".join(cell.itertext()) for cell in cells]
            found[-1]["".join(name.itertext())] = dict(zip(names, zip(shown, exact, strict=True), strict=True))
    return found


def table(made, words):
    (found,) = tables(made, words)
    return found


def shown(row):
    return {name: cell for name, (cell, _) in row.items()}


def warnings(made):
    return re.findall(r'<p class="warning"><strong>Careful:</strong> (.*?)</p>', made)


@pytest.fixture
def everything(tmp_path):
    """A run's folder with every evaluation."""
    return examples.save(
        tmp_path / "whole",
        run_result=examples.run(),
        perplexity=examples.perplexity(),
        passkey=examples.passkey(),
        harness=examples.harness(),
    )


def kinds(*arguments):
    return {column.name: sorted(column.records) for column in columns.collect([str(each) for each in arguments])[0]}


def test_a_run_and_its_evaluations_are_one_column(everything):
    assert kinds(everything) == {"whole": ["harness", "passkey", "perplexity", "run"]}


def test_a_folder_of_runs_gives_a_column_each(tmp_path):
    for name in ("b", "a"):
        examples.save(tmp_path / name, run_result=examples.run(), perplexity=examples.perplexity())
    assert kinds(tmp_path) == {"a": ["perplexity", "run"], "b": ["perplexity", "run"]}


def test_an_evaluation_of_a_checkpoint_is_a_column_of_its_own(everything):
    results.save(examples.perplexity(2.0), everything / "evaluation" / "checkpoint-8" / "perplexity.json")
    assert kinds(everything) == {
        "whole": ["harness", "passkey", "perplexity", "run"],
        "whole/checkpoint-8": ["perplexity"],
    }


def test_single_files_and_results_of_older_versions_are_read():
    files = examples.STORED / "tape.json", f"control={examples.STORED / 'tuning_inspect_24_steps.json'}"
    assert kinds(*files) == {"tape": ["run"], "control": ["run"]}


def test_columns_with_one_name_are_refused(tmp_path):
    for parent in ("one", "two"):
        examples.save(tmp_path / parent / "run", run_result=examples.run())
    with pytest.raises(columns.UserError, match="run"):
        kinds(tmp_path / "one" / "run", tmp_path / "two" / "run")
    assert set(kinds(tmp_path / "one" / "run", f"mine={tmp_path / 'two' / 'run'}")) == {"run", "mine"}


def test_what_cannot_be_used_is_named_with_its_reason(tmp_path, capsys):
    """Other JSON files of a run are neither shown nor named."""
    examples.save(tmp_path / "run", run_result=examples.run())
    below = tmp_path / "run" / "evaluation"
    below.mkdir()
    (below / "passkey.json").write_text("[1, 2", encoding="utf-8")
    (tmp_path / "run" / "results" / "passkey.json").write_text("[[1, 2]]", encoding="utf-8")
    results.save(examples.result(figures={"other": 1}), below / "coverage.json")
    results.save(examples.result(evaluation="harness", figures={"tasks": {}}, finished=None), below / "harness.json")
    made = written(tmp_path, tmp_path / "run")
    printed = capsys.readouterr().out
    files = {"passkey.json", "coverage.json", "harness.json"}
    assert {name.rpartition("/")[2] for name in table(made, "Files that could not be used")} == files
    assert all(f"not used: {below / name}" in printed for name in files) and "results/passkey.json" not in printed


def test_all_mistakes_are_one_message_and_nothing_is_written(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "taken").write_text("a file")
    arguments = [str(tmp_path / "nowhere"), str(tmp_path / "empty"), "--output", str(tmp_path / "taken")]
    assert report.main(arguments) == 2
    assert "3 problems" in capsys.readouterr().err
    assert (tmp_path / "taken").read_text() == "a file"


def test_the_page_needs_nothing_else_and_has_the_same_bytes(everything, tmp_path):
    made = written(tmp_path, everything, examples.STORED / "tape.json")
    assert made == written(tmp_path, everything, examples.STORED / "tape.json")
    assert [path.name for path in (tmp_path / "page").iterdir()] == ["report.html"]
    assert "default-src 'none'" in made
    assert not re.findall(r"<(?:script|link|iframe|img)\b|@import|(?:src|href)=\"(?!#)|url\((?!#)|\bon\w+=", made)
    assert re.findall(r'href="#(section-\d)"', made) == re.findall(r'<section id="([^"]*)"', made)
    ids = re.findall(r'\bid="([^"]*)"', made)
    assert len(ids) == len(set(ids))


def test_texts_of_files_never_become_markup():
    bad = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&lt;"
    run = examples.run(model=bad, bad=bad)
    run.figures["loss_by_position"] = {bad: {bad: {"span": 8, "starts": [0], "nll": [1.0], "counts": [8]}}}
    records = {"run": run, "perplexity": examples.perplexity(source=bad, convention=bad)}
    records |= {"passkey": examples.passkey(form=bad), "harness": examples.harness()}
    for kind, name in (("harness", "tasks"),):
        records[kind].figures[name][bad] = {**next(iter(records[kind].figures[name].values())), "metric": bad}
    found = [columns.Column(bad, {kind: columns.Record(bad, kind, each) for kind, each in records.items()})]
    made = report_page.page(found, [(bad, bad)], bad)
    assert not re.findall(r"<(?:script|img)", made, re.I)
    assert made.count("&lt;script&gt;alert(1)") == 37 and "&amp;lt;" in made
    assert list(table(made, "Training loss")["first step"]) == [bad]


SECTIONS = {
    "run": ["Training loss", "Loss by position"],
    "perplexity": ["Perplexity by length"],
    "passkey": ["Passkeys found"],
    "harness": ["MMLU, ARC and other tasks"],
}


@pytest.mark.parametrize("kind", SECTIONS)
def test_each_kind_of_result_makes_a_page(kind):
    made = page(a={kind: getattr(examples, kind)()})
    assert re.findall(r"<h2>(.*?)</h2>", made) == [*SECTIONS[kind], "What was run"]


def test_losses_are_those_stored_with_the_variants_that_a_run_scored():
    tape = results.load(examples.STORED / "tape.json")
    for made in (page(demo={"run": tape}), page(demo={"run": tape}, again={"run": tape})):
        rows = table(made, "Loss by position (nats per token)")
        for name, documents in tape.figures["loss_by_position"].items():
            (stored,) = documents.values()
            label = "demo" if name == list(tape.figures["loss_by_position"])[-1] else f"demo: {name}"
            spans = [row[label] for start, row in rows.items() if start != "mean"]
            assert [exact for _, exact in spans] == [repr(nll) for nll in stored["nll"]]
            assert [text for text, _ in spans] == [f"{nll:.3f}" for nll in stored["nll"]]
    assert {"again", "again: untouched"} <= rows["mean"].keys()
    steps = table(made, "Training loss")
    logged = tape.figures["train_loss"]
    assert steps["first step"]["demo"][1] == repr(logged[0]["loss"])
    assert steps["last step"]["demo"][1] == repr(logged[-1]["loss"])


def test_losses_on_other_documents_share_no_table():
    runs = {}
    for name in "ab":
        runs[name] = {"run": examples.run()}
        variants = runs[name]["run"].figures["loss_by_position"]
        (each,) = variants["tape, trained"].values()
        variants["tape, trained"] = dict.fromkeys(("1.py", "2.py", "3.py", f"{name}.py", "z.py"), each)
    assert [list(each["mean"]) for each in tables(page(**runs), "Loss by position")] == [["a"], ["b"]]


def test_perplexities_are_those_stored():
    one, other = examples.perplexity(), examples.perplexity(0.9)
    for each in one.figures["perplexity"]:
        each["standard_error"] = 0.01
    made = page(a={"perplexity": one}, b={"perplexity": other})
    rows = table(made, "Perplexity")
    assert shown(rows["1k"]) == {"a": "9.500 ± 0.095", "b": "8.550"}
    exact = [row["b"][1] for row in rows.values()]
    assert exact == [repr(each["perplexity"]) for each in other.figures["perplexity"]]
    assert made.count("<b>") == len(rows), "the lowest of each row"


@pytest.mark.parametrize(
    "option", [{"bos": True}, {"join": 1000}, {"drop_last": True}, {"max_tokens": 64}, "new_tokens", "data"]
)
def test_perplexities_that_were_scored_otherwise_share_no_table(option):
    own = {"convention": "new_tokens"} if option == "new_tokens" else {"print_": "c" * 64} if option == "data" else {}
    other = examples.perplexity(**own)
    other.config.update(option if isinstance(option, dict) else {})
    made = page(a={"perplexity": examples.perplexity()}, b={"perplexity": other})
    assert sorted(list(each["1k"]) for each in tables(made, "Perplexity")) == [["a"], ["b"]]


def test_a_perplexity_that_is_no_number_is_shown_and_not_the_lowest():
    broken = examples.perplexity()
    broken.figures["perplexity"][0] |= {"nll": math.nan, "perplexity": math.nan, "standard_error": math.nan}
    made = page(a={"perplexity": examples.perplexity()}, b={"perplexity": broken})
    assert shown(table(made, "Perplexity")["1k"]) == {"a": "9.500", "b": "nan"}


def test_accuracies_and_what_the_run_scored_itself_are_shown():
    made, run = examples.perplexity(), examples.run(eval_data=["stdlib"])
    made.figures["perplexity"][0]["accuracy"] = 0.52448
    run.figures["perplexity"] = {"256": {"length": 256, "nll": 5.5, "targets": 65280, "perplexity": 244.7}}
    text = page(a={"perplexity": made, "run": run})
    assert shown(table(text, "Most likely token right, %")["1k"]) == {"a": "52.45"}
    assert {"256": {"a": ("244.7", "244.7")}} in tables(text, "Perplexity")


def test_passkeys_are_counts_by_length():
    fewer = examples.passkey(lambda length, depth: 0 if length > 8000 else 3, trials=4)
    fewer.figures["cells"] = [cell for cell in fewer.figures["cells"] if cell["depth"] != 0.5 or cell["length"] > 1024]
    made = page(a={"passkey": examples.passkey()}, b={"passkey": fewer})
    assert shown(table(made, "Passkeys found, %")["1k"]) == {"a": "100 (25/25, n = 25)", "b": "75 (12/16, n = 16)"}
    assert any("equally many samples (n): 1k" in text for text in warnings(made))


def test_passkeys_without_depths_are_shares():
    cells = [{"length": n, "depth": None, "trials": 20, "correct": 19} for n in (1000, 8000)]
    figures, config = {"form": "longlora", "cells": cells}, {"protocol": "published"}
    made = page(a={"passkey": examples.result(evaluation="passkey", figures=figures, config=config)})
    assert table(made, "Passkeys found, %")["8,000"] == {"a": ("95 (19/20)", "95.0")}


def test_tasks_of_other_shots_share_no_row_and_a_missing_number_is_a_dash():
    one, other = examples.harness(), examples.harness(0.45, shots=5)
    one.figures["tasks"]["niah"] = {"metric": None, "value": None, "standard_error": None, "shots": 0, "samples": 3}
    one.figures["cut"] = {"requests": 7, "tokens": 1234}
    made = page(a={"harness": one}, b={"harness": other})
    rows = table(made, "Tasks of lm-eval")
    assert shown(rows["mmlu_humanities, acc, 0 shots"]) == {"a": "39.12 ± 0.69", "b": "–"}
    assert shown(rows["mmlu_humanities, acc, 5 shots"]) == {"a": "–", "b": "45.00 ± 0.69"}
    assert shown(rows["niah, no number, 0 shots"]) == {"a": "–", "b": "–"}
    assert "a: 7 requests were cut, by 1,234 tokens." in warnings(made)


def test_facts_have_their_units_and_settings_are_shown_where_they_differ():
    gpus = [{"name": "NVIDIA X", "memory_bytes": 1}] * 2
    run = examples.run(warmup_steps=4)
    other = examples.result(figures=run.figures, config=run.config, hardware={**examples.MACHINE, "gpus": gpus})
    made = page(a={"run": examples.run(warmup_steps=2)}, b={"run": other})
    rows = {name: [*shown(row).values()] for name, row in table(made, "Results of run").items()}
    assert rows["warmup_steps"] == ["2", "4"] and "span" not in rows
    assert rows["method"] == ["tape", "tape"] and rows["learning_rate"] == ["0.001", "0.001"]
    assert rows["peak_memory_bytes"] == ["3.00 GiB", "3.00 GiB"] and rows["seconds"] == ["0:10:00", "0:10:00"]
    assert rows["processor"] == ["a CPU", "2 x NVIDIA X"] and rows["file"] == ["a/run.json", "b/run.json"]
    assert rows["data stdlib"] == ["a" * 12, "–"] and rows["commit"] == ["abcdef012345"] * 2
    assert rows["tokens"] == ["24,576", "24,576"] and rows["skipped_steps"] == ["–", "–"]


def test_evaluations_that_differ_are_a_warning_and_other_data_are_not():
    model = {**examples.MODEL, "tokenizer": "0" * 64}
    one, other = examples.perplexity(), examples.perplexity(targets=500, model=model, seed=1)
    third = examples.perplexity(source="stdlib")
    made = page(a={"perplexity": one}, b={"perplexity": other}, c={"perplexity": third})
    assert "perplexity: not evaluated alike, so numbers may not compare: seed, tokenizer." in warnings(made)
    assert shown(table(made, "Perplexity, ± standard error over documents: bin:")["1k"]) == {
        "a": "9.500 (n = 1,000,000)",
        "b": "9.500 (n = 500)",
    }


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (39.123, 0.69, "39.12 ± 0.69"),
        (45.31, 1.46, "45.3 ± 1.5"),
        (1234.5, 37.0, "1,234 ± 37"),
        (50.0, None, "50.00"),
        (50.0, math.nan, "50.00"),
        (50.0, 0.0, "50.00 ± 0.00"),
        (None, 0.1, "–"),
        (math.nan, 0.1, "nan"),
        (math.inf, None, "inf"),
    ],
)
def test_digits_are_those_that_the_standard_error_supports(value, error, text):
    assert re.sub("<.*?>", "", report_page.number(value, error, 2)) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7.99884, "7.999"),
        (95.754, "95.75"),
        (1234.5678, "1,235"),
        (0.0123449, "0.01234"),
        (2.5e9, "2.5e+09"),
        (0.0, "0"),
    ],
)
def test_four_significant_digits(value, text):
    assert re.sub("<.*?>", "", report_page.number(value)) == text


def line_of(points, **axes):
    """The line that a chart draws: its commands, and where they lead."""
    drawn = report_page.chart("t", "x", "y", {"a": points}, **axes)
    assert "nan" not in drawn and report_page.INK not in drawn
    (path,) = re.findall(
        rf'<path d="([^"]*)"[^>]*stroke: {report_page.COLOURS[0]}; stroke-width: 1.5; stroke-linecap', drawn
    )
    steps = re.findall(r"([ML]) ([\d.]+) ([\d.]+)", path)
    return "".join(step for step, *_ in steps), [(float(x), float(y)) for _, x, y in steps]


def test_a_line_has_a_gap_where_a_number_is_not_finite():
    assert line_of({1: 1.0, 2: math.nan, 3: 3.0, 4: math.inf, 5: 4.0, 6: 4.5})[0] == "MMML"


def test_points_are_where_their_numbers_are():
    """2, 4 and 8 are equally far apart on a logarithmic axis; up is more."""
    _, ((x0, y0), (x1, y1), (x2, y2)) = line_of({2: 10.0, 4: 20.0, 8: 30.0}, log=True)
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2) and x0 < x1
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2) and y0 > y1
