"""What the report says first: usable length, loss past the native length, and what short lengths lost."""

import re

import pytest

from tape_ds import results
from tape_ds.scoring import report_answer
from tape_ds.scoring.report_columns import RUN, Column, Record
from tests.evaluation import report_examples as examples

BASE = {**examples.MODEL, "address": "smollm2", "kind": "transformers", "native_length": 8192}
EXTENDED = {**examples.MODEL, "rope_parameters": {"original_max_position_embeddings": 8192}}


def column(name, **records):
    return Column(
        name, {kind: Record(f"{name}/{kind}.json", kind, each) for kind, each in records.items()}
    )


def demo():
    return results.load(examples.STORED / "demo.json")


def said(*columns):
    """What the cards say in words, by their names, and the remarks."""
    (text,) = report_answer.answers(columns) or [""]
    cards = re.findall(r'<h3>(.*?)</h3>\s*<p class="said">(.*?)</p>', text)
    return dict(cards), re.findall(r'<p class="remark">(.*?)</p>', text)


def rows(*columns):
    """The only card's table: row -> cells."""
    (text,) = report_answer.answers(columns)
    head, *body = (
        re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row, re.S)
        for row in re.findall(r"<tr>.*?</tr>", text, re.S)
    )
    strip = [[re.sub(r"<.*?>", "", cell).replace("&#39;", "'") for cell in row] for row in body]
    return {name: dict(zip(head[1:], cells, strict=True)) for name, *cells in strip}


def test_passkeys_and_losses_of_a_run_beside_its_base():
    """Figures of docs/results/extend_smollm2_16k.md."""
    words, remarks = said(column("demo", run=demo()))
    assert words["demo"] == (
        "Usable length by passkeys (all found): 10k, the longest asked (1 of 1 there); the untouched base: "
        "2k (1 of 1 there). Loss past 8k: 1.669 nats per token; the untouched base: 2.376. "
        "To 8k its loss is 0.024 below the base&#39;s."
    )
    assert "tape-ds evaluate ruler asks more" in remarks[0]
    found = rows(column("demo", run=demo()))
    assert list(found["Loss past 8k"]) == [
        "untouched base",
        "yarn x2, untrained",
        "tape+lora, trained",
    ]
    assert found["Loss past 8k"]["yarn x2, untrained"] == "1.717\n-0.659 from the base"
    assert found["Short lengths: loss to 8k"]["yarn x2, untrained"] == "2.071\n+0.029 from the base"
    by_loss = found["Usable length by loss (at most the base's mean to 8k, 2.042)"]
    assert [*by_loss.values()] == ["10k", "12k, the longest scored", "12k, the longest scored"]


def test_rulers_effective_length_comes_before_passkeys():
    base = column("smollm2", ruler=examples.ruler(lambda n: 5 if n == 4096 else 0, model=BASE))
    own = column("demo", run=demo(), ruler=examples.ruler(lambda n: 5 if n <= 8192 else 3))
    words, remarks = said(base, own)
    assert list(words) == ["demo"], "the base is beside it"
    assert words["demo"].startswith(
        "Usable length by RULER&#39;s rule (85.6 %): 8k (probability 100 %); "
    )
    assert "the untouched base: 4k (probability 100 %)." in words["demo"]
    assert (
        "2 of its 13 tasks, 5 questions of each at each length, essays from package:x/*.md"
        in remarks[0]
    )
    assert "Its threshold is one of all 13 tasks." in remarks[0]
    found = rows(base, own)
    assert not any("passkeys" in name for name in found)
    assert found["Usable length by its own rule (85 % of its score at 4k)"][
        "tape+lora, trained"
    ].startswith("8k ")
    assert found["RULER's mean at 16k, %"]["tape+lora, trained"].startswith(
        "60.0 (30 to 90)\n+60.0 ("
    )
    assert (
        found["RULER's mean at 4k, %"]["tape+lora, trained"]
        == "100.0 (100 to 100)\n+0.0 (+0 to +0) from the base"
    )


def test_rulers_questions_that_the_run_asked():
    run = demo()
    run.figures["ruler"] = [
        *examples.ruler_rows("untouched", lambda n: 5 if n == 4096 else 0),
        *examples.ruler_rows("yarn x2, untrained", lambda n: 0),
        *examples.ruler_rows("tape+lora, trained", lambda n: 5),
    ]
    words, remarks = said(column("demo", run=run))
    assert (
        "16k, the longest asked (probability 100 %); the untouched base: 4k (probability 100 %)."
        in words["demo"]
    )
    assert (
        "niah_multikey_2, vt of its 13 tasks, asked by the run itself, 5 questions of each"
        in remarks[0]
    )
    (row,) = (
        cells for name, cells in rows(column("demo", run=run)).items() if "RULER's rule" in name
    )
    assert row["yarn x2, untrained"] == "below 4k (probability 0 %)"


@pytest.mark.parametrize("change", [{"samples": 4}, {"seed": 1}])
def test_other_questions_are_not_put_beside(change):
    base = column("smollm2", ruler=examples.ruler(model=BASE, **change))
    own = column("demo", ruler=examples.ruler(model=EXTENDED))
    assert "untouched base" not in rows(base, own)["RULER's mean at 4k, %"]


def test_the_base_is_the_one_that_the_run_names():
    other = column("llama", ruler=examples.ruler(model={**BASE, "address": "llama"}))
    words, _ = said(other, column("demo", run=demo(), ruler=examples.ruler()))
    assert set(words) == {"llama", "demo"}
    assert "untouched base" not in words["demo"].split("Loss past")[0]


def test_differences_that_the_evaluation_took_are_shown_with_their_base():
    own = examples.ruler(lambda n: 4, model=EXTENDED)
    own.figures["differences"] = [
        {"length": 4096, "tasks": 2, "base": 0.9, "difference": -0.1, "low": -0.3, "high": 0}
    ]
    own.figures["against"] = "runs/evaluation/smollm2"
    (cell,) = rows(column("demo", ruler=own))["RULER's mean at 4k, %"].values()
    assert cell.endswith("\n-10.0 (-30 to +0) from runs/evaluation/smollm2")


def test_a_passkey_missed_at_the_shortest_length():
    run = demo()
    for row in run.figures["passkey"]:
        row["correct"] = int(row["length"] > 2048)
    found = rows(column("demo", run=run))["Usable length by passkeys (all found)"]
    assert found["tape+lora, trained"] == "below 2k (0 of 1 there)"


def test_runs_that_measured_nothing_of_it_have_no_card():
    run = examples.run()
    run.figures["loss_by_position"] = {}
    assert report_answer.answers([column("pretraining", **{RUN: run})]) == []
