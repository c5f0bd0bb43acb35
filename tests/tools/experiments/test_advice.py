"""The analysis of extension methods: what it claims of runs whose figures are known."""

from dataclasses import replace

import pytest
from scipy import stats

from tape_ds import results
from tape_ds.scoring.span_losses import SpanLosses
from tools.experiment import statistics, table
from tools.experiments import advice, advice_runs

METHODS = advice.PARTS["methods"]
SPAN, TEXTS = 2048, ("a.py", "b.json")
# loss past the native length, and right answers of 40 there, by seed
FIGURES = {
    "norms": {0: (1.60, 10), 1: (1.62, 12), 2: (1.61, 11)},
    "lora": {0: (1.50, 30), 1: (1.53, 31), 2: (1.51, 33)},
    # no other arm of its stage has seed 3
    "full": {0: (1.52, 28), 1: (1.50, 33), 2: (1.51, 30), 3: (1.4, 40)},
}


def store(folder, arm, seed, loss, right, steps=16):
    starts = tuple(range(0, 2 * METHODS.native, SPAN))
    scores = {}
    for shift, text in zip((0.0, 0.1), TEXTS, strict=True):
        nll = tuple(2.0 if start < METHODS.native else loss + shift for start in starts)
        scores[text] = SpanLosses(SPAN, starts, nll, (SPAN,) * len(starts)).to_dict()
    figures = {
        "loss_by_position": {"untouched": scores, arm: scores},
        "steps": steps,
        "tokens": 1000,
        "tokens_per_second": 100.0,
    }
    figures |= {"peak_memory_bytes": 2**30}
    run = results.collect(command=["x"], seed=seed).finish(figures)
    results.save(run, folder / f"{arm}_seed_{seed}" / "results" / "run.json")
    halves = {12288: right // 2, 16384: right - right // 2}
    rows = [
        {"length": length, "correct": correct, "trials": 20} for length, correct in halves.items()
    ]
    asked = results.collect(command=["x"]).finish({"passkeys": rows})
    results.save(asked, folder / f"{arm}_seed_{seed}" / "evaluation" / "multikey" / "passkey.json")


@pytest.fixture
def runs(tmp_path):
    store(tmp_path / "runs", "yarn", 0, 1.70, 20, steps=0)
    for arm, of_seed in FIGURES.items():
        for seed, (loss, right) in of_seed.items():
            store(tmp_path / "runs", arm, seed, loss, right)
    return tmp_path / "runs"


def test_claims_are_paired_t_tests_with_holm_over_both_figures(runs):
    arms = advice.arms_of(METHODS, advice.read_runs(runs))
    for figure, seeds in ((advice.LOSS, [0, 1, 2]), (advice.KEYS, [0, 1, 2])):
        counted = advice_runs.counted(METHODS, arms, figure)
        assert {arm: list(of_seed) for arm, of_seed in counted.items()} == {
            "yarn": [0]
        } | dict.fromkeys(FIGURES, seeds)
    claims = {
        (claim.figure, claim.arm, claim.against): claim for claim in advice.claims_of(METHODS, arms)
    }
    assert len(claims) == 10
    lora = claims[advice.LOSS, "lora", "norms"]
    assert lora.found.mean == pytest.approx(-0.29 / 3)
    expected = stats.ttest_rel([1.50, 1.53, 1.51], [1.60, 1.62, 1.61])
    assert lora.p == pytest.approx(expected.pvalue)
    assert lora.found.interval == pytest.approx(tuple(expected.confidence_interval()))
    keys = claims[advice.KEYS, "lora", "yarn"]  # yarn is one model, paired with every seed
    assert keys.differences == pytest.approx({0: 25.0, 1: 27.5, 2: 32.5})
    assert sorted(claim.p for claim in claims.values())[0] * 10 == pytest.approx(
        min(claim.p_holm for claim in claims.values())
    )
    assert "better than norms" in advice.verdict(lora) and "on each text" in advice.verdict(lora)
    assert "not told apart from lora" in advice.verdict(claims[advice.LOSS, "full", "lora"])


def test_the_page_has_every_arm_claim_and_the_picture(runs, tmp_path):
    assert advice.main(["methods", str(runs), "--output", str(tmp_path / "page")]) == 0
    page = (tmp_path / "page" / "methods.md").read_text(encoding="utf-8")
    assert page.count("not told apart") + page.count("better than") + page.count("worse than") == 10
    assert "| yarn | 1 | 1.750 | 2.000 | 1.700 | 1.800 |" in page
    assert (tmp_path / "page" / "methods.png").stat().st_size > 10_000
    assert len(results.load(tmp_path / "page" / "methods.json").figures["claims"]) == 10


def test_a_seed_that_was_not_asked_counts_for_the_loss_alone(runs):
    (runs / "lora_seed_2" / "evaluation" / "multikey" / "passkey.json").unlink()
    arms = advice.arms_of(METHODS, advice.read_runs(runs))
    seeds = {
        figure: list(advice_runs.counted(METHODS, arms, figure)["norms"])
        for figure in (advice.LOSS, advice.KEYS)
    }
    assert seeds == {advice.LOSS: [0, 1, 2], advice.KEYS: [0, 1]}
    claims = advice.claims_of(METHODS, arms)
    assert {claim.figure for claim in claims} == {advice.LOSS}  # two seeds claim nothing
    assert "| lora | 2 |" in advice.page(METHODS, "methods", arms, claims)


def test_a_part_without_questions_claims_of_the_loss_alone(runs, tmp_path):
    family = replace(advice.PARTS["family"], native=METHODS.native, target=METHODS.target)
    arms = advice.arms_of(family, advice.read_runs(runs))
    claims = advice.claims_of(family, arms)
    assert [(claim.arm, claim.against) for claim in claims] == list(advice_runs.FIRST)
    advice.draw(family, arms, tmp_path / "family.png")
    assert "key" not in advice.page(family, "family", arms, claims)


def test_a_folder_without_runs_is_refused(tmp_path, capsys):
    assert advice.main(["methods", str(tmp_path), "--output", str(tmp_path / "page")]) == 2
    assert "no finished run of this part" in capsys.readouterr().err


def test_an_unfinished_run_does_not_count_and_equal_runs_do_not_differ(runs):
    half = results.load(runs / "lora_seed_2" / "results" / "run.json")
    results.save(replace(half, finished=None), runs / "lora_seed_2" / "results" / "run.json")
    assert {run.seed for run in advice.read_runs(runs) if run.arm == "lora"} == {0, 1}
    assert [statistics.t_test([value] * 3) for value in (0.0, 0.5)] == [1.0, 0.0]


def test_rulers_tasks_are_counted_together(runs):
    """Of every result in a run's evaluation; the protocol's keys, where they were asked, come first."""
    some = ("text", "many_16k")
    for arm in (*some, "yarn"):
        for seed in (0, 1, 2)[: 1 if arm == "yarn" else 3]:
            store(runs, arm, seed, 1.5, 20, steps=int(arm != "yarn"))
            folder = runs / f"{arm}_seed_{seed}" / "evaluation"
            (folder / "multikey" / "passkey.json").unlink()
            gain = 0.0 if arm == "yarn" else 0.3 + 0.01 * seed
            for name, lengths in {"ruler_past": (12288, 16384), "ruler_within": (4096,)}.items():
                cells = [
                    {
                        "task": task,
                        "length": length,
                        "samples": 20,
                        "score": 0.1 + gain * (task == "vt"),
                    }
                    for task in ("vt", "niah_single_2")
                    for length in lengths
                ]
                results.save(
                    results.collect(command=["x"]).finish({"cells": cells}),
                    folder / name / "ruler.json",
                )
    part = advice.PARTS["retrieval"]
    assert set(some) < set(part.stages[0]) and len(part.claims) == 7
    part = replace(part, stages=(some,), claims=tuple((arm, "yarn") for arm in some))
    read = advice.read_runs(runs)
    arms = advice.arms_of(part, read)
    right, asked = arms["many_16k"][2].keys[16384]
    assert right == pytest.approx(20 * 0.1 + 20 * 0.42) and asked == 40
    claims = {(claim.figure, claim.arm): claim for claim in advice.claims_of(part, arms)}
    assert len(claims) == 4 and claims[advice.KEYS, "many_16k"].found.mean == pytest.approx(15.5)
    assert "RULER's single 2" in advice.page(part, "retrieval", arms, [*claims.values()])


@pytest.mark.parametrize("name", ["retrieval", "retrieval_small"])
def test_a_part_compares_all_trained_arms_of_its_file(name):
    part = advice.PARTS[name]
    arms = set(map(table.folder_of, table.read(name).arms))
    untrained = {arm for arm in arms if arm.startswith("yarn")}
    assert set(part.stages[0]) == arms - untrained and part.reference in untrained
    assert set(part.claims) == {(arm, part.reference) for arm in part.stages[0]}
