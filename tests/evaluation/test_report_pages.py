"""What a report's sections say: the right numbers in the right columns, and what does not compare."""

import math
import re

import pytest

from evaluation import report
from evaluation.pages import charts, columns, numbers
from evaluation.pages.parts import Best, Chart, Line, Note, PageTable
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


def section(built, title):
    (found,) = [each for each in built.sections if each.title == title]
    return found.parts


def table(built, title, words):
    """The one table of a section whose caption has ``words``: row -> head -> cell."""
    (found,) = [part for part in section(built, title) if isinstance(part, PageTable) and words in part.caption]
    heads = [head.text for head in found.heads]
    return {name: dict(zip(heads[1:], cells, strict=True)) for name, cells in found.rows}


def loud(built, title):
    return " ".join(part.text for part in section(built, title) if isinstance(part, Note) and part.loud)


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (39.123, 0.69, "39.12 ± 0.69"),
        (45.31, 1.46, "45.3 ± 1.5"),
        (12.34567, 0.8123, "12.35 ± 0.81"),
        (1234.5, 37.0, "1,234 ± 37"),
        (50.0, None, "50.00"),
        (50.0, math.nan, "50.00"),
        (50.0, 0.0, "50.00 ± 0.00"),
        (None, 0.1, "–"),
        (math.nan, 0.1, "NaN"),
    ],
)
def test_digits_are_those_that_the_standard_error_supports(value, error, text):
    assert numbers.measured(value, error, 2) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(7.99884, "7.999"), (95.754, "95.75"), (1234.5678, "1,235"), (0.0123449, "0.01234"), (math.inf, "∞"), (0.0, "0")],
)
def test_four_significant_digits(value, text):
    assert numbers.significant(value) == text


def test_only_settings_that_differ_are_listed_beside_the_main_ones():
    built = page(("a", {"run": examples.run(warmup_steps=2)}), ("b", {"run": examples.run(warmup_steps=4)}))
    assert {"model", "method", "max steps", "learning rate", "tokens trained"} <= set(
        table(built, "What was run", "main")
    )
    others = table(built, "What was run", "differs")
    assert {name: list(row.values()) for name, row in others.items()} == {"warmup steps": ["2", "4"]}


def test_one_run_alone_has_the_sections_that_it_has_results_for():
    titles = [each.title for each in page(("a", {"run": examples.run()})).sections]
    assert titles == ["What was run", "Training loss", "Loss by position", "Cost", "Where the numbers come from"]


def test_losses_by_position_with_what_the_run_scored_beside_its_model():
    stored = columns.collect([str(examples.STORED / "tape.json")])[0][0].records["run"].result
    rows = table(page(("demo", {"run": stored})), "Loss by position", "nats")
    assert dict(rows["from 14k"].items()) == {
        "demo": "1.609",
        "demo: untouched": "7.077",
        "demo: yarn x2, untrained": "1.609",
        "demo: tape, trained, updates off": "1.580",
    }
    assert [name for name, cell in rows["from 14k"].items() if isinstance(cell, Best)] == [
        "demo: tape, trained, updates off"
    ]
    assert dict(rows["mean"].items())["demo"] == "1.804"


def test_what_several_runs_scored_alike_is_shown_once():
    stored = columns.collect([str(examples.STORED / "tape.json")])[0][0].records["run"].result
    rows = table(page(("a", {"run": stored}), ("b", {"run": stored})), "Loss by position", "nats")
    assert list(rows["mean"]) == ["a", "b", "a: untouched", "a: yarn x2, untrained", "a: tape, trained, updates off"]


@pytest.mark.parametrize("option", [{"bos": True}, {"join": 1000}, {"drop_last": True}, {"max_tokens": 64}])
def test_perplexities_scored_with_other_options_share_no_table(option):
    other = examples.perplexity(source="stdlib")
    other.config.update(option)
    built = page(("a", {"perplexity": examples.perplexity(source="stdlib")}), ("b", {"perplexity": other}))
    found = [part for part in section(built, "Perplexity by length") if isinstance(part, PageTable)]
    assert [[head.text for head in part.heads if head.run is not None] for part in found] == [["a"], ["b"]]
    assert f"--{next(iter(option))}" in found[1].caption


def test_accuracies_are_shown_where_they_are_stored():
    made = examples.perplexity(source="stdlib")
    assert not [
        part
        for part in section(page(("a", {"perplexity": made})), "Perplexity by length")
        if getattr(part, "folded", False)
    ]
    made.figures["perplexity"][0]["accuracy"] = 0.52448
    rows = table(page(("a", {"perplexity": made})), "Perplexity by length", "token right")
    assert rows == {"1k": {"a": "52.45"}}


def test_a_perplexity_that_is_no_number_is_shown():
    """A broken model's loss is stored as a word and comes back as NaN; it is neither hidden nor the lowest."""
    broken = examples.perplexity(source="stdlib")
    broken.figures["perplexity"][0] |= {"nll": math.nan, "perplexity": math.nan, "standard_error": math.nan}
    built = page(("a", {"perplexity": examples.perplexity(source="stdlib")}), ("b", {"perplexity": broken}))
    row = table(built, "Perplexity by length", "stdlib")["1k"]
    assert row["b"] == "NaN" and not isinstance(row["b"], Best)


def test_a_length_that_was_scored_twice_is_shown_once():
    made = examples.perplexity(source="stdlib")
    made.figures["perplexity"].append(made.figures["perplexity"][0] | {"perplexity": 5.0})
    assert table(page(("a", {"perplexity": made})), "Perplexity by length", "stdlib")["1k"]["a"] == "5.000"


def test_a_run_that_made_no_step_has_no_settings_of_steps():
    untrained = examples.run()
    untrained.figures.update(steps=0, tokens=0, train_loss=[])
    rows = table(page(("a", {"run": examples.run()}), ("b", {"run": untrained})), "What was run", "main")
    assert (rows["max steps"]["a"], rows["max steps"]["b"], rows["learning rate"]["b"]) == ("3", "–", "–")


def test_perplexities_scored_by_other_conventions_or_on_other_data_share_no_table():
    built = page(
        ("a", {"perplexity": examples.perplexity()}),
        ("b", {"perplexity": examples.perplexity(convention="new_tokens")}),
        ("c", {"perplexity": examples.perplexity(print_="c" * 64)}),
    )
    found = [part for part in section(built, "Perplexity by length") if isinstance(part, PageTable)]
    assert [[head.text for head in part.heads if head.run is not None] for part in found] == [["a"], ["c"], ["b"]]
    assert "data bin:pg19/test.bin" in loud(built, "What was run")


def test_other_numbers_of_targets_and_other_tokenizers_are_said():
    other = {**examples.MODEL, "tokenizer": "0" * 64}
    built = page(
        ("a", {"perplexity": examples.perplexity()}),
        ("b", {"perplexity": examples.perplexity(0.9, targets=500, model=other)}),
    )
    cells = table(built, "Perplexity by length", "pg19")["1k"]
    assert cells["a"].endswith("(n = 1,000,000)") and cells["b"].endswith("(n = 500)")
    assert isinstance(cells["b"], Best) and not isinstance(cells["a"], Best)
    said = loud(built, "Perplexity by length")
    assert "not scored on equally many tokens" in said and "different tokenizers" in said


def test_a_standard_error_of_the_loss_becomes_one_of_perplexity():
    made = examples.perplexity()
    for entry in made.figures["perplexity"]:
        entry["standard_error"] = 0.01
    cell = table(page(("a", {"perplexity": made})), "Perplexity by length", "pg19")["1k"]["a"]
    assert cell == "9.500 ± 0.095"


def test_a_pretraining_run_shows_the_perplexity_it_scored_itself():
    made = examples.run(eval_data=["stdlib"])
    made.figures["perplexity"] = {
        "256": {"length": 256, "nll": 5.5, "targets": 65280, "blocks": 256, "perplexity": 244.7},
    }
    rows = table(page(("tiny", {"run": made})), "Perplexity by length", "by the run itself")
    assert rows["256"]["tiny"] == "244.7"


def test_heat_maps_share_their_axes_and_leave_out_what_was_not_asked():
    fewer = examples.passkey(lambda length, depth: 0 if length > 8000 else 3, trials=4)
    fewer.figures["cells"] = [cell for cell in fewer.figures["cells"] if cell["depth"] != 0.5]
    built = page(("a", {"passkey": examples.passkey()}), ("b", {"passkey": fewer}))
    maps = [part for part in section(built, "Passkeys found") if isinstance(part, PageTable) and part.run is not None]
    assert [part.caption for part in maps] == ["a", "b"]
    rows = {part.caption: {name: list(cells) for name, cells in part.rows} for part in maps}
    assert list(rows["a"]) == list(rows["b"]) == ["0 %", "25 %", "50 %", "75 %", "100 %"]
    assert rows["a"]["50 %"] == ["5/5"] * 5 and rows["b"]["50 %"] == ["–"] * 5
    assert rows["b"]["100 %"] == ["3/4", "3/4", "3/4", "0/4", "0/4"]
    totals = table(built, "Passkeys found", "all depths")
    assert totals["1k"]["b"] == "75 (12/16)"
    assert "not asked equally often" in loud(built, "Passkeys found")
    assert "trials" in loud(built, "What was run")


def test_the_published_protocol_has_no_depths():
    cells = [{"length": n, "depth": None, "trials": 20, "correct": 19} for n in (1000, 8000)]
    made = examples.result(
        evaluation="passkey", figures={"form": "longlora", "cells": cells}, config={"protocol": "published"}
    )
    built = page(("a", {"passkey": made}))
    totals = table(built, "Passkeys found", "all depths")
    assert totals["8,000"] == {"a": "95 (19/20)"}
    assert not [
        part for part in section(built, "Passkeys found") if isinstance(part, PageTable) and part.run is not None
    ]


def test_scrolls_with_errors_and_counts():
    built = page(("a", {"scrolls": examples.scrolls()}), ("b", {"scrolls": examples.scrolls(20.0, examples=10)}))
    rows = table(built, "SCROLLS", "validation")
    assert list(rows) == ["qasper, F1", "gov_report, ROUGE, geometric mean"]
    cells = rows["qasper, F1"]
    assert cells["a"] == "12.35 ± 0.81 (n = 200)"
    assert "number of samples (n): qasper" in loud(built, "SCROLLS")
    assert any(
        "qasper 3 of 200 (4,567 tokens)" in part.text for part in section(built, "SCROLLS") if isinstance(part, Note)
    )


def test_harness_tasks_of_other_shots_share_no_row():
    built = page(("a", {"harness": examples.harness()}), ("b", {"harness": examples.harness(0.45, shots=5)}))
    rows = table(built, "MMLU, ARC and other tasks", "harness")
    own = rows["mmlu_humanities, acc, 0 shots"]
    assert (own["a"], own["b"]) == ("39.12 ± 0.69", "–")
    other = rows["mmlu_humanities, acc, 5 shots"]
    assert other["b"] == "45.00 ± 0.69"


def test_members_of_a_group_are_folded():
    tables = list(section(page(("a", {"harness": examples.harness()})), "MMLU, ARC and other tasks"))
    names = {part.folded: [name for name, _ in part.rows] for part in tables if isinstance(part, PageTable)}
    assert names == {
        False: ["mmlu_humanities, acc, 0 shots", "arc_challenge, acc_norm, 0 shots", "arc_easy, acc, 0 shots"],
        True: ["mmlu_philosophy, acc, 0 shots"],
    }


def test_a_task_without_a_number_is_a_dash():
    """The page could not be made: the command stores null where a task gives no number that was asked for."""
    made = examples.harness()
    made.figures["tasks"]["niah"] = {"metric": None, "value": None, "standard_error": None, "shots": 0, "samples": 3}
    rows = table(page(("a", {"harness": made})), "MMLU, ARC and other tasks", "Tasks of the harness")
    assert rows["niah, no number, 0 shots"] == {"a": "–"}


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
    assert list(rows["peak memory"].values()) == ["3.00 GiB", "3.00 GiB"]
    assert list(rows["processor"].values()) == ["a CPU", "2 x NVIDIA X"]
    assert list(rows["time"].values()) == ["0:10:00", "0:10:00"]
    assert table(built, "Cost", "passkey")["time"]["b"] == "1:06:40"
    assert "training: not the same machine" in loud(built, "Cost")


def test_provenance_names_hash_commit_seed_and_file():
    rows = table(page(("a", {"passkey": examples.passkey(seed=7)})), "Where the numbers come from", "Stored")
    cells = dict(rows["a"].items())
    assert cells == {
        "evaluation": "passkey",
        "finished": "2026-01-02T03:14:05+00:00",
        "seed": "7",
        "commit": "abcdef012345",
        "model": "0123456789ab",
        "file": "a/passkey.json",
    }


def line_of(points, **axes):
    """The path that a chart draws through ``points``: its commands, and where they lead."""
    drawn = charts.svg(Chart("t", "x", "y", [Line("a", points, 0)], **axes))
    (path,) = re.findall(r'<path d="([^"]*)"[^>]*stroke: var\(--c0\); stroke-width: 2', drawn)
    steps = re.findall(r"([ML]) ([\d.]+) ([\d.]+)", path)
    return "".join(step for step, *_ in steps), [(float(x), float(y)) for _, x, y in steps]


def test_a_line_has_a_gap_where_a_number_is_not_finite():
    assert line_of([(1, 1.0), (2, math.nan), (3, 3.0), (4, 4.0), (5, 4.5)])[0] == "MMLL"


def test_points_lie_where_their_numbers_say():
    """On logarithmic axes 2, 4, 8 are equally far apart; up is more."""
    _, ((x0, y0), (x1, y1), (x2, y2)) = line_of([(2, 10), (4, 100), (8, 1000)], x_log=True, y_log=True)
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2) and x0 < x1
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2) and y0 > y1


@pytest.mark.parametrize("y", [[math.nan], [2.0], [0.0, 0.0], [-1e-9, 1e9]])
def test_odd_numbers_are_drawn(y):
    line = Line("a", list(enumerate(y, 1)), 3)
    for log in (False, True):
        drawn = charts.svg(Chart("t", "x", "y", [line], y_log=log))
        assert "nan" not in drawn and "inf" not in drawn.replace("nothing finite", "") and drawn.endswith("</svg>\n")


def test_a_chart_is_coloured_by_the_page_and_words_its_lengths():
    """No colour of its own: what is fixed would be unreadable in light or in dark."""
    points = [(float(1024 * 2**at), 9.0 - at) for at in range(5)]
    lines = [Line(str(run), points, run) for run in range(9)]
    drawn = charts.svg(Chart("t", "x", "y", lines, x_tokens=True, x_log=True, mark=4096))
    assert set(re.findall(r"(?:fill|stroke): (#\w+)", drawn)) == set()
    assert {f"var(--c{run})" for run in range(8)} <= set(re.findall(r"var\(--\w+\)", drawn))
    assert re.findall(r">\s*(\d+k)\s*</text>", drawn)[::-1] == ["1k", "2k", "4k", "8k", "16k"] and "native 4k" in drawn


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


def scored(spans, documents=("one.py", "two.py"), shift=0.0):
    """A run whose losses are ``spans``; on the second document higher by ``shift``."""
    made = examples.run(spans=spans)
    (stored,) = made.figures["loss_by_position"]["tape, trained"].values()
    own = {name: stored | {"nll": [x + at * shift for x in spans]} for at, name in enumerate(documents)}
    made.figures["loss_by_position"] = {"tape, trained": own}
    return made


def test_the_verdict_says_who_is_lowest_where_and_by_how_much():
    (said,) = page(
        ("a", {"perplexity": examples.perplexity()}), ("b", {"perplexity": examples.perplexity(1.25)})
    ).verdict
    assert said == "Perplexity on bin:pg19/test.bin: at 16k a is lowest, 20 % below b; a single run of each."


def test_the_verdict_of_three_names_the_last_and_looks_into_the_native_window():
    runs = {"a": (2.0, 1.9, 1.6), "b": (2.0, 1.8, 1.7), "c": (2.5, 2.5, 2.5)}
    built = page(*((name, {"run": examples.run(spans=spans)}) for name, spans in runs.items()))
    assert built.verdict == [
        "Loss by position, held out from training: typing.py, spans of 2k tokens: "
        "from 4k a is lowest, 0.100 nats per token below b and 0.900 below c, the last of 3; "
        "from 2k, in the native window, b is lowest, 0.100 nats per token below a and 0.700 below c, "
        "the last of 3; a single run of each."
    ]


def test_the_verdict_has_an_interval_over_documents_in_pairs():
    """Differences of 0.1 and 0.3: their mean 0.2, their standard error 0.1, and 12.7 of those with one degree of
    freedom."""
    runs = {"a": scored((2.0, 2.0, 2.0)), "b": scored((2.1, 2.1, 2.1), shift=0.2)}
    (said,) = page(*((name, {"run": run}) for name, run in runs.items())).verdict
    assert "0.200 nats per token below b (95 % interval over 2 documents, in pairs: −1.1 to 1.5, so chance can" in said
    assert "a single run" not in said


def test_the_verdict_has_an_interval_from_standard_errors():
    runs = [examples.perplexity(), examples.perplexity(1.25)]
    for made in runs:
        for entry in made.figures["perplexity"]:
            entry["standard_error"] = 0.01
    (said,) = page(*zip("ab", [{"perplexity": made} for made in runs], strict=True)).verdict
    # 1 - exp(-(log 1.25 ± 1.96 * 0.01 * sqrt 2))
    assert "20 % below b (95 % interval over documents, as if independent: 18 to 22 %)." in said


@pytest.mark.parametrize("other", [{"targets": 500}, {"model": {**examples.MODEL, "tokenizer": "0" * 64}}])
def test_the_verdict_compares_nothing_that_does_not_compare(other):
    runs = [examples.perplexity(), examples.perplexity(2.0, **other)]
    (said,) = page(*zip("ab", [{"perplexity": made} for made in runs], strict=True)).verdict
    assert "do not compare" in said and "below" not in said


def test_one_model_alone_has_no_verdict_and_no_comparison():
    found = [columns.Column("demo", {"run": columns.Record("demo.json", "run", examples.run())})]
    built = report.build(found, (), None)
    assert (built.title, list(built.verdict)) == ("Results of demo", [])
    assert report.build(found * 2, (), None).title == "Comparison of 2 runs"
