"""What a report's sections say: the right numbers in the right columns, and what does not compare."""

import math
import re

import pytest

from evaluation import report
from evaluation.pages import columns, numbers, svg
from evaluation.pages.parts import Chart, Folded, Grid, Line, Note, Table
from tests.evaluation import report_examples as examples


def page(*named, unused=()):
    """The page of columns, each ``(name, {kind: result})``."""
    found = [
        columns.Column(
            name, {kind: columns.Record(f"{name}/{kind}.json", kind, each) for kind, each in records.items()}
        )
        for name, records in named
    ]
    return report.build(found, unused, "Title")


def flat(parts):
    """Parts in order, those of grids too."""
    for part in parts:
        yield from flat(part.parts) if hasattr(part, "parts") else [part]


def section(built, title):
    (found,) = [each for each in built.sections if each.title == title]
    return list(flat(found.parts))


def table(built, title, words):
    """The one table of a section whose caption has ``words``: row -> head -> cell."""
    (found,) = [part for part in section(built, title) if isinstance(part, Table) and words in part.caption]
    heads = [f"{head.text} ({head.published})" if head.published else head.text for head in found.heads]
    return {name: dict(zip(heads[1:], cells, strict=True)) for name, cells in found.rows}


def loud(built, title):
    return " ".join(part.text for part in section(built, title) if isinstance(part, Note) and part.loud)


@pytest.mark.parametrize(
    ("value", "error", "scale", "text", "detail"),
    [
        (0.39123, 0.0069, 100, "39.12", "± 0.69"),
        (0.4531, 0.0146, 100, "45.3", "± 1.5"),
        (12.34567, 0.8123, 1, "12.35", "± 0.81"),
        (1234.5, 37.0, 1, "1,234", "± 37"),
        (0.5, None, 100, "50.00", ""),
        (0.5, 0.0, 100, "50.00", "± 0.00"),
        (None, 0.1, 1, "–", ""),
        (math.nan, 0.1, 1, "NaN", ""),
    ],
)
def test_digits_are_those_that_the_standard_error_supports(value, error, scale, text, detail):
    cell = numbers.measured(value, error, 2, scale=scale)
    assert (cell.text, cell.detail) == (text, detail)


@pytest.mark.parametrize(
    ("value", "text"),
    [(7.99884, "7.999"), (95.754, "95.75"), (1234.5678, "1,235"), (0.0123449, "0.01234"), (math.inf, "∞"), (0.0, "0")],
)
def test_four_significant_digits(value, text):
    assert numbers.significant(value) == text


def test_only_settings_that_differ_are_listed_beside_the_main_ones():
    built = page(("a", {"run": examples.run(warmup_steps=2)}), ("b", {"run": examples.run(warmup_steps=4)}))
    assert {"model", "method", "steps", "learning rate", "tokens trained"} <= set(table(built, "What was run", "main"))
    others = table(built, "What was run", "differs")
    assert {name: [cell.text for cell in row.values()] for name, row in others.items()} == {"warmup_steps": ["2", "4"]}


def test_one_run_alone_has_the_sections_that_it_has_results_for():
    titles = [each.title for each in page(("a", {"run": examples.run()})).sections]
    assert titles == ["What was run", "Training loss", "Loss by position", "Cost", "Where the numbers come from"]


def test_losses_by_position_with_what_the_run_scored_beside_its_model():
    stored = columns.collect([str(examples.STORED / "demo.json")])[0][0].result("run")
    rows = table(page(("demo", {"run": stored})), "Loss by position", "nats")
    assert {name: cell.text for name, cell in rows["from 14k"].items()} == {
        "demo": "1.609",
        "demo: untouched": "7.077",
        "demo: yarn x2, untrained": "1.609",
        "demo: tape, trained, updates off": "1.580",
    }
    assert [name for name, cell in rows["from 14k"].items() if cell.best] == ["demo: tape, trained, updates off"]
    assert {name: cell.text for name, cell in rows["mean"].items()}["demo"] == "1.804"


def test_what_several_runs_scored_alike_is_shown_once():
    stored = columns.collect([str(examples.STORED / "demo.json")])[0][0].result("run")
    rows = table(page(("a", {"run": stored}), ("b", {"run": stored})), "Loss by position", "nats")
    assert list(rows["mean"]) == ["a", "b", "a: untouched", "a: yarn x2, untrained", "a: tape, trained, updates off"]


def test_perplexity_stands_beside_the_published_value_of_its_length():
    built = page(("mine", {"perplexity": examples.perplexity()}))
    rows = table(built, "Perplexity by length", "pg19")
    published = "published, Llama2-7B, 4,096 to 8,192 tokens (Table 2)"
    assert rows["8k"]["mine"].text == "8.000"
    assert rows["8k"][f"TAPE ({published})"].text == "7.063"
    assert rows["16k"][f"TAPE ({published})"].text == "–"
    assert loud(built, "Perplexity by length") == ""


@pytest.mark.parametrize("convention", ["new_tokens", "blocks"])
def test_published_numbers_of_another_convention_are_left_out_and_that_is_said(convention):
    built = page(("mine", {"perplexity": examples.perplexity(convention=convention)}))
    assert list(table(built, "Perplexity by length", "pg19")["8k"]) == ["mine"]
    notes = [part.text for part in section(built, "Perplexity by length") if isinstance(part, Note)]
    assert any("Table 2" in note and "another convention, all_tokens" in note for note in notes)


def test_published_numbers_scored_with_other_options_are_said():
    made = examples.perplexity()
    made.config["bos"] = True
    said = loud(page(("mine", {"perplexity": made})), "Perplexity by length")
    assert "Table 2 was scored with stride 256, the runs with stride 256, --bos" in said


@pytest.mark.parametrize("option", [{"bos": True}, {"join": 1000}, {"drop_last": True}, {"max_tokens": 64}])
def test_perplexities_scored_with_other_options_share_no_table(option):
    other = examples.perplexity(source="stdlib")
    other.config.update(option)
    built = page(("a", {"perplexity": examples.perplexity(source="stdlib")}), ("b", {"perplexity": other}))
    found = [part for part in section(built, "Perplexity by length") if isinstance(part, Table)]
    assert [[head.text for head in part.heads if head.run is not None] for part in found] == [["a"], ["b"]]
    assert f"--{next(iter(option))}" in found[1].caption


def test_accuracies_are_shown_where_they_are_stored():
    made = examples.perplexity(source="stdlib")
    assert not any(isinstance(part, Folded) for part in page(("a", {"perplexity": made})).sections[-3].parts)
    made.figures["perplexity"][0]["accuracy"] = 0.52448
    rows = table(page(("a", {"perplexity": made})), "Perplexity by length", "token right")
    assert (rows["1k"]["a"].text, rows["2k"]["a"].text) == ("52.45", "–")


def test_a_perplexity_that_is_no_number_is_shown():
    """A broken model's loss is stored as a word and comes back as NaN; it is neither hidden nor the lowest."""
    broken = examples.perplexity(source="stdlib")
    broken.figures["perplexity"][0] |= {"nll": math.nan, "perplexity": math.nan, "standard_error": math.nan}
    built = page(("a", {"perplexity": examples.perplexity(source="stdlib")}), ("b", {"perplexity": broken}))
    row = table(built, "Perplexity by length", "stdlib")["1k"]
    assert row["b"].text == "NaN" and not row["b"].best


def test_a_run_that_made_no_step_has_no_settings_of_steps():
    untrained = examples.run()
    untrained.figures.update(steps=0, tokens=0, train_loss=[])
    rows = table(page(("a", {"run": examples.run()}), ("b", {"run": untrained})), "What was run", "main")
    assert (rows["steps"]["a"].text, rows["steps"]["b"].text, rows["learning rate"]["b"].text) == ("3", "–", "–")


def test_nothing_is_published_for_other_texts():
    built = page(("mine", {"perplexity": examples.perplexity(source="stdlib")}))
    assert list(table(built, "Perplexity by length", "stdlib")["1k"]) == ["mine"]


def test_perplexities_scored_by_other_conventions_or_on_other_data_share_no_table():
    built = page(
        ("a", {"perplexity": examples.perplexity()}),
        ("b", {"perplexity": examples.perplexity(convention="new_tokens")}),
        ("c", {"perplexity": examples.perplexity(print_="c" * 64)}),
    )
    found = [part for part in section(built, "Perplexity by length") if isinstance(part, Table)]
    assert [[head.text for head in part.heads if head.run is not None] for part in found] == [["a"], ["c"], ["b"]]
    assert "data bin:pg19/test.bin" in loud(built, "What was run")


def test_other_numbers_of_targets_and_other_tokenizers_are_said():
    other = {**examples.MODEL, "tokenizer": "0" * 64}
    built = page(
        ("a", {"perplexity": examples.perplexity()}),
        ("b", {"perplexity": examples.perplexity(0.9, targets=500, model=other)}),
    )
    cells = table(built, "Perplexity by length", "pg19")["1k"]
    assert (cells["a"].detail, cells["b"].detail) == ("n = 1,000,000", "n = 500")
    assert cells["b"].best and not cells["a"].best
    said = loud(built, "Perplexity by length")
    assert "not scored on equally many tokens" in said and "different tokenizers" in said


def test_a_standard_error_of_the_loss_becomes_one_of_perplexity():
    made = examples.perplexity()
    for entry in made.figures["perplexity"]:
        entry["standard_error"] = 0.01
    cell = table(page(("a", {"perplexity": made})), "Perplexity by length", "pg19")["1k"]["a"]
    assert (cell.text, cell.detail) == ("9.500", "± 0.095")


def test_a_pretraining_run_shows_the_perplexity_it_scored_itself():
    made = examples.run(eval_data=["stdlib"])
    made.figures["perplexity"] = {
        "256": {"length": 256, "nll": 5.5, "targets": 65280, "blocks": 256, "perplexity": 244.7},
    }
    rows = table(page(("tiny", {"run": made})), "Perplexity by length", "by the run itself")
    assert rows["256"]["tiny"].text == "244.7"


def test_heat_maps_share_their_axes_and_leave_out_what_was_not_asked():
    fewer = examples.passkey(lambda length, depth: 0 if length > 8000 else 3, trials=4)
    fewer.figures["cells"] = [cell for cell in fewer.figures["cells"] if cell["depth"] != 0.5]
    built = page(("a", {"passkey": examples.passkey()}), ("b", {"passkey": fewer}))
    maps = [part for part in section(built, "Passkeys found") if isinstance(part, Table) and part.dense]
    assert [part.caption for part in maps] == ["a", "b"]
    rows = {part.caption: {name: [cell.text for cell in cells] for name, cells in part.rows} for part in maps}
    assert list(rows["a"]) == list(rows["b"]) == ["0 %", "25 %", "50 %", "75 %", "100 %"]
    assert rows["a"]["50 %"] == ["5/5"] * 5 and rows["b"]["50 %"] == ["–"] * 5
    assert rows["b"]["100 %"] == ["3/4", "3/4", "3/4", "0/4", "0/4"]
    totals = table(built, "Passkeys found", "all depths")
    assert (totals["1k"]["b"].text, totals["1k"]["b"].detail) == ("75", "12/16")
    assert "not asked equally often" in loud(built, "Passkeys found")
    assert "trials" in loud(built, "What was run")


def test_published_passkeys_stand_at_their_own_lengths():
    totals = table(page(("a", {"passkey": examples.passkey()})), "Passkeys found", "all depths")
    theirs = "LongLoRA (published, Llama2-7B, 4,096 to 8,192 tokens (Figure 3))"
    assert (totals["7,990"][theirs].text, totals["7,990"]["a"].text) == ("45", "–")
    assert (totals["8k"][theirs].text, totals["8k"]["a"].text) == ("–", "100")
    other = table(page(("a", {"passkey": examples.passkey(form="pose")})), "Passkeys found", "all depths")
    assert list(other["8k"]) == ["a"]


def test_the_published_protocol_shares_rows_with_the_published_numbers():
    cells = [{"length": n, "depth": None, "trials": 20, "correct": 19} for n in (1000, 8000)]
    made = examples.result(
        evaluation="passkey", figures={"form": "longlora", "cells": cells}, config={"protocol": "published"}
    )
    built = page(("a", {"passkey": made}))
    totals = table(built, "Passkeys found", "all depths")
    theirs = "Theta Scaling (published, Llama2-7B, 4,096 to 8,192 tokens (Figure 3))"
    assert (totals["8,000"]["a"].text, totals["8,000"]["a"].detail, totals["8,000"][theirs].text) == (
        "95",
        "19/20",
        "95",
    )
    assert not [part for part in section(built, "Passkeys found") if isinstance(part, Table) and part.dense]


def test_scrolls_with_errors_counts_and_published_scores():
    built = page(("a", {"scrolls": examples.scrolls()}), ("b", {"scrolls": examples.scrolls(20.0, examples=10)}))
    rows = table(built, "SCROLLS", "validation")
    assert list(rows) == ["qasper, F1", "gov_report, ROUGE, geometric mean"]
    cells = rows["qasper, F1"]
    assert (cells["a"].text, cells["a"].detail) == ("12.35", "± 0.81 n = 200")
    assert cells["xPos (published, 155M model from scratch (Table 1))"].text == "9.02"
    assert rows["gov_report, ROUGE, geometric mean"]["NoPE (published, 155M model from scratch (Table 1))"].text == "–"
    assert "number of samples (n): qasper" in loud(built, "SCROLLS")
    assert any(
        "qasper 3 of 200 (4,567 tokens)" in part.text for part in section(built, "SCROLLS") if isinstance(part, Note)
    )


def test_harness_tasks_of_other_shots_share_no_row():
    built = page(("a", {"harness": examples.harness()}), ("b", {"harness": examples.harness(0.45, shots=5)}))
    rows = table(built, "MMLU, ARC and other tasks", "harness")
    own = rows["mmlu_humanities, acc, 0 shots"]
    assert (own["a"].text, own["a"].detail, own["b"].text) == ("39.12", "± 0.69", "–")
    other = rows["mmlu_humanities, acc, 5 shots"]
    assert other["b"].text == "45.00"
    assert {cell.text for name, cell in other.items() if "published" in name} == {"–"}  # it was made without shots
    theirs = own["LoRA (published, Llama2-7B, 4,096 to 8,192 tokens (Table 9))"]
    assert (theirs.text, theirs.detail) == ("39.09", "± 0.69")


def test_members_of_a_group_are_folded():
    (found,) = [e for e in page(("a", {"harness": examples.harness()})).sections if e.title.startswith("MMLU")]
    names = {type(part).__name__: [name for name, _ in part.rows] for part in found.parts if isinstance(part, Table)}
    assert names == {
        "Table": ["mmlu_humanities, acc, 0 shots", "arc_challenge, acc_norm, 0 shots", "arc_easy, acc, 0 shots"]
    }
    (folded,) = [part for part in found.parts if isinstance(part, Folded)]
    assert [name for name, _ in folded.parts[0].rows] == ["mmlu_philosophy, acc, 0 shots"]


def test_requests_that_were_cut_are_said():
    made = examples.harness()
    made.figures["cut"] = {"requests": 7, "tokens": 1234}
    assert "a: 7 requests were cut, by 1,234 tokens" in loud(
        page(("a", {"harness": made})), "MMLU, ARC and other tasks"
    )


def test_cost_says_units_and_machines_that_differ():
    other = {**examples.MACHINE, "gpus": [{"name": "NVIDIA X", "memory_bytes": 1}] * 2}
    faster = examples.result(figures=examples.run().figures, hardware=other)
    built = page(("a", {"run": examples.run()}), ("b", {"run": faster, "passkey": examples.passkey()}))
    rows = table(built, "Cost", "training")
    assert [cell.text for cell in rows["peak memory"].values()] == ["3.00 GiB", "3.00 GiB"]
    assert [cell.text for cell in rows["processor"].values()] == ["a CPU", "2 x NVIDIA X"]
    assert [cell.text for cell in rows["time"].values()] == ["0:10:00", "0:10:00"]
    assert table(built, "Cost", "passkey")["time"]["b"].text == "1:06:40"
    assert "training: not the same machine" in loud(built, "Cost")


def test_provenance_names_hash_commit_seed_and_file():
    rows = table(page(("a", {"passkey": examples.passkey(seed=7)})), "Where the numbers come from", "Stored")
    cells = {name: cell.text for name, cell in rows["a"].items()}
    assert cells == {
        "evaluation": "passkey",
        "finished": "2026-01-02T03:14:05+00:00",
        "seed": "7",
        "commit": "abcdef012345",
        "model": "0123456789ab",
        "file": "a/passkey.json",
    }


def lines_of(drawn):
    return re.findall(r'<path class="line" d="([^"]*)"', drawn)


def test_a_line_has_a_gap_where_a_number_is_not_finite():
    points = [(1, 1.0), (2, math.nan), (3, 3.0), (4, 4.0)]
    (path,) = lines_of(svg.chart(Chart("t", "x", "y", [Line("a", points, 0)], "alt")))
    assert re.sub(r"[\d. -]+", "", path) == "MML"


def test_points_lie_where_their_numbers_say():
    """On logarithmic axes 2, 4, 8 are equally far apart; up is more."""
    drawn = svg.chart(
        Chart("t", "x", "y", [Line("a", [(2, 10), (4, 100), (8, 1000)], 0)], "alt", x_log=True, y_log=True)
    )
    found = [tuple(map(float, pair.split())) for pair in re.split("[ML]", lines_of(drawn)[0])[1:]]
    (x0, y0), (x1, y1), (x2, y2) = found
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2) and x0 < x1
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2) and y0 > y1


@pytest.mark.parametrize("y", [[math.nan], [2.0], [0.0, 0.0], [-1e-9, 1e9]])
def test_odd_numbers_are_drawn(y):
    line = Line("a", list(enumerate(y, 1)), 3)
    for log in (False, True):
        drawn = svg.chart(Chart("t", "x", "y", [line], "alt", y_log=log))
        assert "nan" not in drawn and "inf" not in drawn.replace("nothing finite", "") and drawn.endswith("</svg>")


def test_runs_that_were_not_trained_alike_are_said():
    alike = page(("a", {"run": examples.run()}), ("b", {"run": examples.run(learning_rate=1.0)}))
    assert loud(alike, "Training loss") == ""
    other = page(("a", {"run": examples.run()}), ("b", {"run": examples.run([3.0, 2.0], model="other")}))
    said = loud(other, "Training loss")
    assert "same number of tokens" in said and "same model" in said


def test_long_curves_are_averaged():
    losses = [float(step % 2) for step in range(2400)]
    built = page(("a", {"run": examples.run(losses)}))
    (chart,) = [part for part in section(built, "Training loss") if isinstance(part, Chart)]
    assert len(chart.lines[0].points) == 120 and {y for _, y in chart.lines[0].points} == {0.5}
    assert isinstance(next(each for each in built.sections if each.title == "Training loss").parts[0], Grid)
