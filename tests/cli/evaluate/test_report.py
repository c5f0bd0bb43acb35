"""``tape-ds evaluate report``: which results it finds, and the figures on its page."""

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
        columns.Column(
            name,
            {kind: columns.Record(f"{name}/{kind}.json", kind, each) for kind, each in own.items()},
        )
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
            exact = [
                next((span.get("title") for span in cell.iter("span")), None) for cell in cells
            ]
            shown = ["".join(cell.itertext()) for cell in cells]
            found[-1]["".join(name.itertext())] = dict(
                zip(names, zip(shown, exact, strict=True), strict=True)
            )
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
    return {
        column.name: sorted(column.records)
        for column in columns.collect([str(each) for each in arguments])[0]
    }


def test_a_run_and_its_evaluations_are_one_column_and_a_checkpoint_another(everything):
    results.save(
        examples.perplexity(2.0), everything / "evaluation" / "checkpoint-8" / "perplexity.json"
    )
    assert kinds(everything) == {
        "whole": ["harness", "passkey", "perplexity", "run"],
        "whole/checkpoint-8": ["perplexity"],
    }


def test_columns_with_one_name_are_refused(tmp_path):
    for parent in ("one", "two"):
        examples.save(tmp_path / parent / "run", run_result=examples.run())
    with pytest.raises(columns.UserError, match="run"):
        kinds(tmp_path / "one" / "run", tmp_path / "two" / "run")
    assert set(kinds(tmp_path / "one" / "run", f"mine={tmp_path / 'two' / 'run'}")) == {
        "run",
        "mine",
    }


def test_folders_without_results_are_refused(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "taken").touch()
    assert (
        report.main([f"{tmp_path}/nowhere", f"{tmp_path}/empty", "--output", f"{tmp_path}/taken"])
        == 2
    )
    assert "3 problems" in capsys.readouterr().err


def test_files_that_cannot_be_used_are_listed(tmp_path):
    """Other JSON files of a run are not."""
    examples.save(tmp_path / "run", run_result=examples.run())
    below = tmp_path / "run" / "evaluation"
    below.mkdir()
    (below / "passkey.json").write_text("[1, 2", encoding="utf-8")
    (tmp_path / "run" / "results" / "passkey.json").write_text("[[1, 2]]", encoding="utf-8")
    results.save(examples.result(figures={"other": 1}), below / "coverage.json")
    results.save(
        examples.result(evaluation="harness", figures={"tasks": {}}, finished=None),
        below / "harness.json",
    )
    listed = table(written(tmp_path, tmp_path / "run"), "Files that could not be used")
    assert {name.rpartition("/")[2] for name in listed} == {
        "passkey.json",
        "coverage.json",
        "harness.json",
    }


def test_the_page_loads_nothing_and_has_the_same_bytes(everything, tmp_path):
    made = written(tmp_path, everything, examples.STORED / "tape.json")
    assert made == written(tmp_path, everything, examples.STORED / "tape.json")
    assert [path.name for path in (tmp_path / "page").iterdir()] == ["report.html"]
    assert "default-src 'none'" in made
    assert not re.findall(
        r"<(?:script|link|iframe|img)\b|@import|(?:src|href)=\"(?!#)|url\((?!#)|\bon\w+=", made
    )
    assert re.findall(r'href="#(section-\d)"', made) == re.findall(r'<section id="([^"]*)"', made)
    ids = re.findall(r'\bid="([^"]*)"', made)
    assert len(ids) == len(set(ids))


def test_only_a_page_of_this_command_is_replaced(everything, tmp_path, capsys):
    mine = tmp_path / "report.html"
    mine.write_text("<p>my own</p>")
    assert report.main([str(everything), "--output", str(tmp_path)]) == 2
    assert "report.html in it is not a page of this command" in capsys.readouterr().err
    assert mine.read_text() == "<p>my own</p>"
    mine.unlink()
    mine.symlink_to("a disk that is not mounted")
    assert report.main([str(everything), "--output", str(tmp_path)]) == 2 and mine.is_symlink()
    mine.unlink()
    assert [report.main([str(everything), "--output", str(tmp_path)]) for _ in range(2)] == [0, 0]


def test_texts_of_files_never_become_markup():
    bad = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&lt;"
    run = examples.run(model=bad, bad=bad)
    run.figures["loss_by_position"] = {
        bad: {bad: {"span": 8, "starts": [0], "nll": [1.0], "counts": [8]}}
    }
    records = {"run": run, "perplexity": examples.perplexity(source=bad, convention=bad)}
    records |= {"passkey": examples.passkey(form=bad), "harness": examples.harness()}
    tasks = records["harness"].figures["tasks"]
    tasks[bad] = {**tasks["arc_easy"], "metric": bad}
    found = [
        columns.Column(
            bad, {kind: columns.Record(bad, kind, each) for kind, each in records.items()}
        )
    ]
    made = report_page.page(found, [(bad, bad)], bad)
    assert not re.findall(r"<(?:script|img)", made, re.I)
    assert "&lt;script&gt;alert(1)" in made and "&amp;lt;" in made
    assert list(table(made, "Training loss")["first step"]) == [bad]


def test_losses_are_those_stored():
    tape = results.load(examples.STORED / "tape.json")
    for made in (page(demo={"run": tape}), page(demo={"run": tape}, again={"run": tape})):
        rows = table(made, "Loss by position (nats per token)")
        for name, documents in tape.figures["loss_by_position"].items():
            (stored,) = documents.values()
            label = (
                "demo" if name == list(tape.figures["loss_by_position"])[-1] else f"demo: {name}"
            )
            spans = [row[label] for start, row in rows.items() if start != "mean"]
            assert [exact for _, exact in spans] == [repr(nll) for nll in stored["nll"]]
            assert [text for text, _ in spans] == [f"{nll:.3f}" for nll in stored["nll"]]
    assert {"again", "again: untouched"} <= rows["mean"].keys()
    steps = table(made, "Training loss")
    logged = tape.figures["train_loss"]
    assert steps["first step"]["demo"][1] == repr(logged[0]["loss"])
    assert steps["last step"]["demo"][1] == repr(logged[-1]["loss"])


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


@pytest.mark.parametrize("option", ["bos", "convention", "data"])
def test_perplexities_that_were_scored_otherwise_share_no_table(option):
    own = {"bos": {}, "convention": {"convention": "new_tokens"}, "data": {"print_": "c" * 64}}[
        option
    ]
    other = examples.perplexity(**own)
    if option == "bos":
        other.config["bos"] = True
    made = page(a={"perplexity": examples.perplexity()}, b={"perplexity": other})
    assert sorted(list(each["1k"]) for each in tables(made, "Perplexity")) == [["a"], ["b"]]


def test_a_perplexity_of_nan_is_not_the_lowest():
    broken = examples.perplexity()
    broken.figures["perplexity"][0] |= {
        "nll": math.nan,
        "perplexity": math.nan,
        "standard_error": math.nan,
    }
    made = page(a={"perplexity": examples.perplexity()}, b={"perplexity": broken})
    assert (
        shown(table(made, "Perplexity")["1k"]) == {"a": "9.500", "b": "nan"}
        and "<b>nan" not in made
    )


def test_accuracies_and_perplexities_of_the_run_are_shown():
    made, run = examples.perplexity(), examples.run(eval_data=["stdlib"])
    made.figures["perplexity"][0]["accuracy"] = 0.52448
    run.figures["perplexity"] = {
        "256": {"length": 256, "nll": 5.5, "targets": 65280, "perplexity": 244.7}
    }
    text = page(a={"perplexity": made, "run": run})
    assert shown(table(text, "Most likely token right, %")["1k"]) == {"a": "52.45"}
    assert {"256": {"a": ("244.7", "244.7")}} in tables(text, "Perplexity")


def test_tasks_of_other_shots_share_no_row():
    one, other = examples.harness(), examples.harness(0.45, shots=5)
    one.figures["cut"] = {"requests": 7, "tokens": 1234}
    made = page(a={"harness": one}, b={"harness": other})
    rows = table(made, "Tasks of lm-eval")
    assert shown(rows["mmlu_humanities, acc, 0 shots"]) == {"a": "39.12 ± 0.69", "b": "–"}
    assert shown(rows["mmlu_humanities, acc, 5 shots"]) == {"a": "–", "b": "45.00 ± 0.69"}
    assert "a: 7 requests were cut, by 1,234 tokens." in warnings(made)


def test_evaluations_that_differ_are_a_warning_and_other_data_are_not():
    model = {**examples.MODEL, "tokenizer": "0" * 64}
    one, other = examples.perplexity(), examples.perplexity(targets=500, model=model, seed=1)
    third = examples.perplexity(source="stdlib")
    made = page(a={"perplexity": one}, b={"perplexity": other}, c={"perplexity": third})
    assert (
        "perplexity: not evaluated alike, so numbers may not compare: seed, tokenizer."
        in warnings(made)
    )
    assert shown(table(made, "Perplexity, ± standard error over documents: bin:")["1k"]) == {
        "a": "9.500 (n = 1,000,000)",
        "b": "9.500 (n = 500)",
    }


def captions(made):
    return re.findall(r'<figure class="chart"><figcaption>(.*?)</figcaption>', made)


def test_the_page_begins_with_the_answer_and_its_pictures(everything, tmp_path):
    made = written(tmp_path, everything)
    sections = re.findall(r"<h2>(.*?)</h2>", made)
    assert sections[:2] == ["Usable length", "Pictures"] and sections[-1] == "What was run"
    assert made.index('class="pictures"') < made.index("<h2>Training loss")


def test_differences_show_what_an_exploding_base_hides():
    """The untouched base's loss rises threefold past its length; the others differ by hundredths."""
    made = page(demo={"run": results.load(examples.STORED / "tape.json")})
    text = "Loss by position, held out from training: typing.py, spans of 2,048 tokens"
    plain, less = (caption for caption in captions(made) if caption.startswith(text))
    assert plain == text
    assert (
        less
        == f"{text}: difference from demo: yarn x2, untrained (leaves the picture: demo: untouched)"
    )
    alone = page(demo={"run": examples.run()})
    assert not any("difference" in caption for caption in captions(alone)), (
        "one line differs from nothing"
    )


def test_a_name_has_one_colour_in_all_pictures():
    one, other = (
        {"run": results.load(examples.STORED / "tape.json")},
        {"perplexity": examples.perplexity(2.0)},
    )
    made = page(a=other, b={**one, "perplexity": examples.perplexity()})
    keys = re.findall(r'<span class="key" style="color: (.*?)">(.*?)</span> (.*?)</span>', made)
    looks = {}
    for colour, marker, name in keys:
        looks.setdefault(name, set()).add((colour, marker))
    assert {"a", "b", "b: untouched"} <= looks.keys() and all(
        len(each) == 1 for each in looks.values()
    )


def test_rulers_scores_are_those_stored():
    base, own = examples.ruler(lambda n: 5 if n < 16384 else 1), examples.ruler(lambda n: 4)
    run = examples.run()
    untouched, trained = (
        examples.ruler_rows("untouched", lambda n: 0),
        examples.ruler_rows("t, trained", lambda n: 3),
    )
    run.figures["ruler"] = [*untouched, *trained]
    made = page(base={"ruler": base}, own={"ruler": own, "run": run})
    means, asked_by_run = tables(made, "RULER, mean of the tasks")
    assert shown(means["4k"]) == {"base": "100.0 (100 to 100)", "own": "80.0 (50 to 100)"}
    assert {name: exact for name, (_, exact) in means["16k"].items()} == {
        "base": "20.0",
        "own": "80.0",
    }
    assert shown(asked_by_run["8k"]) == {"own: untouched": "0.0 (0 to 0)", "own": "60.0 (30 to 90)"}
    by_task, _ = tables(made, "RULER by task")
    assert list(by_task)[:2] == ["niah_multikey_2, 4k", "niah_multikey_2, 8k"]
    assert shown(by_task["vt, 16k"]) == {"base": "20.0 (4 to 62)", "own": "80.0 (38 to 96)"}
    assert (
        "RULER, mean of niah_multikey_2, vt; 5 questions of each, base form, essays from package:x/*.md"
        in captions(made)
    )


def test_rulers_questions_of_another_form_share_no_table():
    chat = examples.ruler()
    chat.config["chat"] = True
    made = page(a={"ruler": examples.ruler()}, b={"ruler": chat})
    assert [list(each["4k"]) for each in tables(made, "RULER, mean of the tasks")] == [["a"], ["b"]]
    assert "ruler: not evaluated alike, so numbers may not compare: chat." in warnings(made)


def test_a_stored_result_of_ruler_is_found(everything):
    results.save(examples.ruler(), everything / "evaluation" / "ruler.json")
    assert kinds(everything) == {"whole": ["harness", "passkey", "perplexity", "ruler", "run"]}
