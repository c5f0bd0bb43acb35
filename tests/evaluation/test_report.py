"""The report command: what it finds, what it refuses, and what it leaves on the disk."""

import json
import re
from pathlib import Path

import pytest

from evaluation import report
from evaluation.pages import columns, render
from tape_ds import results
from tests.evaluation import report_examples as examples


def page_of(tmp_path, *arguments):
    """The two files of a report on ``arguments``."""
    folder = tmp_path / "page"
    assert report.main([*map(str, arguments), "--output", str(folder)]) == 0
    return (folder / report.HTML).read_text(encoding="utf-8"), (folder / report.MARKDOWN).read_text(encoding="utf-8")


def kinds(found):
    return {column.name: sorted(column.records) for column in found}


@pytest.fixture
def everything(tmp_path):
    """A run's folder with every evaluation below it."""
    return examples.save(
        tmp_path / "whole",
        run_result=examples.run(),
        perplexity=examples.perplexity(),
        passkey=examples.passkey(),
        scrolls=examples.scrolls(),
        harness=examples.harness(),
    )


def test_a_run_and_its_evaluations_are_one_column(everything):
    found, unused = columns.collect([str(everything)])
    assert kinds(found) == {"whole": ["harness", "passkey", "perplexity", "run", "scrolls"]}
    assert unused == []


def test_a_folder_of_runs_gives_a_column_each(tmp_path):
    for name in ("b", "a"):
        examples.save(tmp_path / name, run_result=examples.run(), perplexity=examples.perplexity())
    found, _ = columns.collect([str(tmp_path)])
    assert kinds(found) == {"a": ["perplexity", "run"], "b": ["perplexity", "run"]}


def test_an_evaluation_of_a_checkpoint_is_a_column_beside_its_run(everything):
    results.save(examples.perplexity(2.0), everything / "evaluation" / "checkpoint-8" / "perplexity.json")
    found, _ = columns.collect([str(everything)])
    assert kinds(found) == {
        "whole": ["harness", "passkey", "perplexity", "run", "scrolls"],
        "whole: checkpoint-8": ["perplexity"],
    }
    own = found[0].records["perplexity"].result
    assert own.figures["perplexity"][0]["perplexity"] == 9.5  # and not the checkpoint's


def test_columns_take_the_name_that_is_given_or_one_that_differs(tmp_path):
    for parent in ("one", "two"):
        examples.save(tmp_path / parent / "run", run_result=examples.run())
    found, _ = columns.collect([str(tmp_path / "one" / "run"), f"mine={tmp_path / 'two' / 'run'}"])
    assert [column.name for column in found] == ["run", "mine"]
    found, _ = columns.collect([str(tmp_path / "one" / "run"), str(tmp_path / "two" / "run" / "results")])
    assert [column.name for column in found] == ["run", "run (2)"]


def test_single_files_and_results_of_older_versions_are_read():
    found, _ = columns.collect(
        [str(examples.STORED / "tape.json"), f"control={examples.STORED / 'tuning_inspect_24_steps.json'}"]
    )
    assert kinds(found) == {"tape": ["run"], "control": ["run"]}


def test_what_cannot_be_used_is_named_with_its_reason(tmp_path, capsys):
    """Runs keep JSON of their own beside results: that is no result and no news. A broken result is."""
    examples.save(tmp_path / "run", run_result=examples.run())
    below = tmp_path / "run" / "evaluation"
    below.mkdir()
    (below / "passkey.json").write_text("[1, 2", encoding="utf-8")
    (tmp_path / "run" / "results" / "passkey.json").write_text("[[1, 2]]", encoding="utf-8")
    results.save(examples.result(figures={"other": 1}), below / "coverage.json")
    results.save(examples.result(evaluation="scrolls", figures={"datasets": {}}, finished=None), below / "scrolls.json")
    html, markdown = page_of(tmp_path, tmp_path / "run")
    said = capsys.readouterr().out
    for name, reason in (
        ("passkey.json", "is not JSON"),
        ("coverage.json", "neither a run's nor an evaluation's"),
        ("scrolls.json", "the run has not ended"),
    ):
        assert re.search(rf"not used: {below / name}: .*{reason}", said)
        assert reason in markdown and reason.replace("'", "&#39;") in html
    assert "results/passkey.json" not in said


def test_every_mistake_is_told_at_once_and_nothing_is_written(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "taken").write_text("a file")
    arguments = [str(tmp_path / "nowhere"), str(tmp_path / "empty"), "--output", str(tmp_path / "taken")]
    assert report.main(arguments) == 2
    said = capsys.readouterr().err
    assert "3 problems" in said
    assert "no such file or folder" in said and "no stored result" in said and "is a file" in said
    assert (tmp_path / "taken").read_text() == "a file"


def test_the_same_results_give_the_same_bytes(everything, tmp_path):
    first = page_of(tmp_path, everything, examples.STORED / "tape.json")
    second = page_of(tmp_path, everything, examples.STORED / "tape.json")
    assert first == second
    assert sorted(path.name for path in (tmp_path / "page").iterdir()) == [report.HTML, report.MARKDOWN]


def test_a_page_that_cannot_be_finished_leaves_the_old_one(everything, tmp_path, monkeypatch):
    before = page_of(tmp_path, everything)
    fill = render.fill

    def full(template, **content):
        if template == "report.md":
            raise RuntimeError("full")
        return fill(template, **content)

    monkeypatch.setattr(render, "fill", full)
    with pytest.raises(RuntimeError):
        report.main([str(everything), "--title", "New", "--output", str(tmp_path / "page")])
    files = sorted((tmp_path / "page").iterdir())
    assert [path.name for path in files] == [report.HTML, report.MARKDOWN]
    assert tuple(path.read_text(encoding="utf-8") for path in files) == before


def test_nothing_in_a_name_becomes_markup(tmp_path):
    bad = "<script>alert(1)</script>|*x*"
    config = {"model": bad, "method": '"><img src=x onerror=alert(2)>'}
    results.save(examples.run(**config), tmp_path / "run.json")
    results.save(examples.perplexity(source="text:</svg><script>"), tmp_path / "perplexity.json")
    html, markdown = page_of(tmp_path, f"{bad}={tmp_path}")
    for text in (html, markdown):
        assert "<script" not in text.lower() and "<img" not in text
    assert "&lt;script&gt;alert(1)" in html and "&lt;wbr" not in html
    assert r"&lt;script&gt;alert(1)&lt;/script&gt;\|\*x\*" in markdown
    widths = {
        len(re.findall(r"(?<!\\)\|", line)) for line in markdown.splitlines() if r"\|\*x\*" in line and line[0] == "|"
    }
    assert widths == {3, 8}  # tables of one run, and the list of files: no cell was split


def test_the_file_needs_nothing_else(everything, tmp_path):
    html, _ = page_of(tmp_path, everything)
    assert "default-src 'none'" in html
    assert not re.findall(r"<(?:script|link|iframe|img)\b|@import|url\((?!#)|https?://|\bon\w+=", html)
    assert set(re.findall(r'<a href="([^"]*)"', html)) == {
        f"#{anchor}" for anchor in re.findall(r'<section id="([^"]*)"', html)
    }


def test_headings_and_tables_are_in_order(everything, tmp_path):
    html, _ = page_of(tmp_path, everything)
    levels = [int(level) for level in re.findall(r"<h(\d)", html)]
    assert levels[0] == 1 and levels.count(1) == 1 and set(levels[1:]) == {2}
    assert all('scope="' in head for head in re.findall(r"<th\b[^>]*>", html))
    assert re.findall(r'<svg class="chart"[^>]*role="img" aria-label="[^"]+', html)
    captions = html.count("<figcaption>") + html.count("<summary>")
    assert html.count("<table") == captions - html.count('<svg class="chart"')


def test_markdown_holds_every_table(everything, tmp_path):
    html, markdown = page_of(tmp_path, everything)
    assert html.count("<table") == len(re.findall(r"^\| ---", markdown, re.M))
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    assert html.count("<tr>") == len(rows) - html.count("<table")


def test_results_read_as_they_were_stored(everything):
    """The fixtures are what the commands write: a file that results.load refuses would make these tests empty."""
    for path in Path(everything).rglob("*.json"):
        assert json.loads(path.read_text(encoding="utf-8"))["schema"] == results.SCHEMA
        results.load(path)
