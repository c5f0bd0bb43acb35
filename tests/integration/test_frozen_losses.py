"""What runs learn is what they learnt when it was frozen, however they share the work and wherever they stop.

Each run of the matrix (launchers, ways to share work) is started once; what it scores, saves and prints is tested here
as well.
"""

import functools

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import tape_ds
from tape_ds import results
from tape_ds.checkpoint import trained
from tape_ds.cli import consolidate, merge
from tests.integration import freeze_losses
from tests.integration.conftest import forked
from tests.integration.freeze_losses import LAUNCHERS, NAMES, SAVED, SHARING

EXTENDED = "extend_llama-zero3"
SHARED = {"extend_llama-tensor", "extend_llama-sequence"}
DAILY = {EXTENDED, "extend_llama-tensor", "pretrain_c4-zero1"}
"""Sequence parallelism is compared with one process daily in tests/distributed."""
SCORED = {
    "extend_llama": {
        "eval_data": "text:{material}/held_out.txt",
        "eval_length": 128,
        "eval_span": 32,
        "passkey_lengths": 500,
        "passkey_trials": 3,  # more than ranks: the last round repeats one
    },
    "pretrain_c4": {"eval_data": "text:{material}/short.txt"},
    "finetune_scrolls": {"eval_examples": 9},
    "train_generated": {},
}
"""Fields that have a launcher's runs scored, which changes nothing that they learn."""
SCORES = ("loss_by_position", "perplexity", "answer_loss", "exact_match")
MACHINE, FROZEN = freeze_losses.load()
EXACT = freeze_losses.machine() == MACHINE


def some(names, daily):
    """Cases for all, marked slow but for the daily ones."""
    return [pytest.param(name, marks=[] if name in daily else [pytest.mark.slow]) for name in names]


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    """What all runs share, and a held-out text that is scored soon."""
    folder = freeze_losses.make_material(tmp_path_factory.mktemp("material"))
    lines = (folder / "held_out.txt").read_text().splitlines(keepends=True)
    (folder / "short.txt").write_text("".join(lines[:150]))
    return folder


@pytest.fixture(scope="module")
def uninterrupted(material, tmp_path_factory):
    """By name, a run's folder and what it found; what it printed is in ``printed.txt`` there."""

    @functools.cache
    def run(name):
        output = tmp_path_factory.mktemp(name)

        def start(*words, processes):
            ended = forked(*words, processes=processes)
            (output / "printed.txt").write_text(ended.output)
            return ended

        launcher = name.rpartition("-")[0]
        return output, freeze_losses.run(name, material, output, start, **SCORED[launcher])

    return run


@pytest.mark.parametrize("name", some(NAMES, DAILY))
def test_losses_and_weights_are_the_frozen_ones(uninterrupted, name):
    """To the last digit where torch and the CPU are those they were frozen on."""
    assert freeze_losses.differences(uninterrupted(name)[1], FROZEN[name], EXACT) == []


@pytest.mark.parametrize("name", some(NAMES, {EXTENDED, "pretrain_c4-zero1"}))
def test_resumed_equals_uninterrupted_to_the_last_digit(uninterrupted, material, tmp_path, name):
    """From the checkpoint half way, in another folder."""
    output, whole = uninterrupted(name)
    start = output / f"checkpoint-{SAVED}"
    rest = freeze_losses.run(name, material, tmp_path, forked, resume_from_checkpoint=start)
    assert (
        rest["losses"] == whole["losses"][SAVED:]
        and rest["grad_norms"] == whole["grad_norms"][SAVED:]
    )
    assert rest["sha256"] == whole["sha256"]


@pytest.mark.slow
@pytest.mark.parametrize("sharing", ["null", "zero1", "zero2"])
@pytest.mark.parametrize("launcher", ["extend_llama", "pretrain_c4"])
def test_compiled_blocks_learn_the_same(material, tmp_path, launcher, sharing):
    """With LoRA, recomputed blocks and position updates of their own rate; a stream and all weights."""
    printed = []

    def start(*words, processes):
        ended = forked(*words, processes=processes)
        printed.append(ended.output)
        return ended

    asked = {"torch_compile": "true", "torch_compile_backend": "aot_eager"}
    name = f"{launcher}-{sharing}"
    found = freeze_losses.run(name, material, tmp_path, start, **asked)
    assert freeze_losses.differences(found, FROZEN[name], exact=False) == []
    assert "compiled: 3 blocks\n" in printed[0]


@pytest.mark.parametrize(
    "name", some([name for name in NAMES if not name.endswith("-zero3")], DAILY & SHARED)
)
def test_scores_do_not_depend_on_how_the_work_is_shared(uninterrupted, name):
    """Ranks that share sequences in training score documents of their own; pieces of a model are scored together."""
    launcher = name.rpartition("-")[0]
    mine, other = (scores(uninterrupted(each)[0]) for each in (name, f"{launcher}-zero3"))
    assert mine and mine.keys() == other.keys()
    for place, number in other.items():
        assert mine[place] == pytest.approx(number, rel=1e-4), place


def scores(output):
    """All numbers of a run's scores by their place in the stored result."""
    found = {}

    def collect(place, value):
        if isinstance(value, dict):
            value = list(value.items())
        if isinstance(value, list | tuple):
            for number, each in enumerate(value):
                collect(f"{place}.{number}", each)
        elif isinstance(value, int | float):
            found[place] = value

    figures = figures_of(output)
    for name in SCORES:
        collect(name, figures.get(name))
    return found


def figures_of(output):
    return results.load(output / "results" / "run.json").figures


def test_a_run_prints_from_one_rank_and_leaves_its_results(uninterrupted):
    output, _ = uninterrupted(EXTENDED)
    printed, figures = (output / "printed.txt").read_text(), figures_of(output)
    assert [printed.count(f"step {step:2}/10 |") for step in range(1, 11)] == [1] * 10
    assert (
        figures["steps"] == 10 and figures["tokens"] == 10 * 256 and figures["skipped_steps"] == 0
    )
    start, end = "yarn x2, untrained", "tape+lora, trained"
    assert list(figures["loss_by_position"]) == ["untouched", start, f"{end}, updates off", end]
    asked = {each["variant"]: each for each in figures["passkey"]}
    assert list(asked) == ["untouched", start, end]
    assert all(
        (each["length"], each["trials"], len(each["replies"])) == (500, 3, 3)
        for each in asked.values()
    )
    assert (output / "results" / "loss_by_position.png").read_bytes().startswith(b"\x89PNG")


def test_frozen_weights_are_in_no_checkpoint(uninterrupted, material):
    output, _ = uninterrupted(EXTENDED)
    whole = (material / "model" / "model.safetensors").stat().st_size
    engine = list((output / f"checkpoint-{SAVED}").glob(f"global_step{SAVED}/*model_states*"))
    assert engine and all(file.stat().st_size < whole for file in engine)


def test_the_result_merges_reloads_and_generates(uninterrupted, tmp_path):
    """The folder of trained weights becomes an ordinary model folder by the tool, and that generates."""
    output, _ = uninterrupted(EXTENDED)
    assert merge.main([str(output / "trained"), str(tmp_path / "whole")]) == 0
    tape_ds.register()
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "whole").eval()
    ids = AutoTokenizer.from_pretrained(tmp_path / "whole")(
        "def function_7(value):", return_tensors="pt"
    ).input_ids
    made = model.generate(ids, max_new_tokens=90, do_sample=False, eos_token_id=None)
    assert made.shape[1] == ids.shape[1] + 90 > 64
    direct = trained.load_trained(output / "trained").eval()
    with torch.no_grad():
        torch.testing.assert_close(model(made).logits, direct(made).logits, atol=2e-6, rtol=0)


@pytest.mark.parametrize(
    "name", some([name for name in NAMES if not name.endswith("-null")], DAILY)
)
def test_the_last_checkpoint_consolidates_to_what_was_trained(uninterrupted, tmp_path, name):
    """The engine's shards or pieces, put together by the tool, in fp32."""
    output, _ = uninterrupted(name)
    assert consolidate.main([str(output / f"checkpoint-{2 * SAVED}"), str(tmp_path / "whole")]) == 0
    found, expected = (
        freeze_losses.weights_in(folder) for folder in (tmp_path / "whole", output / "trained")
    )
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


@pytest.mark.parametrize(
    "name", some([*sorted(SHARED), "extend_llama-zero1"], {"extend_llama-tensor"})
)
def test_every_collective_has_its_tensors_where_its_backend_takes_them(
    uninterrupted, material, tmp_path, name
):
    """On accelerators that are not there: load, steps, a save, scores. Tensor parallelism summed its weights on the
    CPU, for NCCL alone."""

    def start(script, *words, processes):
        return forked(
            "tests/integration/workers/on_accelerators.py", script, *words, processes=processes
        )

    output, whole = uninterrupted(name)
    changes = SCORED["extend_llama"] | {"resume_from_checkpoint": output / f"checkpoint-{SAVED}"}
    rest = freeze_losses.run(name, material, tmp_path, start, **changes)
    assert rest["losses"] == pytest.approx(whole["losses"][SAVED:], rel=1e-5)


@pytest.mark.slow
def test_samples_are_written_by_all_ranks_together_and_change_no_loss(
    uninterrupted, material, tmp_path
):
    name, asked = (
        "train_generated-zero3",
        {"sample_prompts": '["12+7=", "3+"]', "sample_steps": 5, "sample_tokens": 4},
    )
    printed = []

    def start(*words, processes):
        ended = forked(*words, processes=processes)
        printed.append(ended.output)
        return ended

    assert freeze_losses.run(name, material, tmp_path, start, **asked) == uninterrupted(name)[1]
    assert [printed[0].count(f"sample at step {step}: '12+7='") for step in (5, 6, 10)] == [1, 0, 1]


LEFT_OPEN = {
    "deepspeed": "auto",
    "activation_checkpointing": "auto",
    "per_device_train_batch_size": "auto",
}


@pytest.mark.slow
def test_losses_do_not_depend_on_the_chosen_layout_which_a_resumed_run_keeps(material, tmp_path):
    """A plan for a GPU chooses another stage, recomputation and micro-batch than were frozen; the run that goes on
    finds no GPU, where a new choice would be another."""

    def start(script, *words, processes):
        return forked("tests/integration/workers/chosen.py", *words, processes=processes)

    def config_of(output):
        config = results.load(output / "results" / "run.json").config
        return {
            key: value
            for key, value in config.items()
            if key not in ("output_dir", "resume_from_checkpoint")
        }

    name, first, again = "extend_llama-zero1", tmp_path / "first", tmp_path / "again"
    whole = freeze_losses.run(name, material, first, start, **LEFT_OPEN)
    assert freeze_losses.differences(whole, FROZEN[name], exact=False) == []
    assert (
        config_of(first)["per_device_train_batch_size"] == 4
        and config_of(first)["global_batch_size"] == 8
    )
    changes = LEFT_OPEN | {"resume_from_checkpoint": first / f"checkpoint-{SAVED}"}
    rest = freeze_losses.run(name, material, again, forked, **changes)
    assert rest["losses"] == whole["losses"][SAVED:] and rest["sha256"] == whole["sha256"]
    assert config_of(first) == config_of(again)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_however_the_work_is_shared_one_process_learnt_the_same(launcher):
    """Of the frozen numbers themselves."""
    alone = FROZEN[f"{launcher}-null"]
    for sharing in SHARING:
        wrong = freeze_losses.differences(FROZEN[f"{launcher}-{sharing}"], alone, exact=False)
        assert wrong == [], sharing


def test_another_number_is_noticed():
    """In the last digit where that is asked for, else beyond the tolerance."""
    frozen = FROZEN["pretrain_c4-zero1"]
    slight, large = (
        {**frozen, "losses": [loss * by for loss in frozen["losses"]]}
        for by in (1 + 1e-7, 1 + 1e-5)
    )
    assert freeze_losses.differences(slight, frozen, exact=True)
    assert not freeze_losses.differences(slight, frozen, exact=False)
    assert freeze_losses.differences(large, frozen, exact=False)
