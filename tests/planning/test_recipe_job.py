"""Recipes as questions to the planner: what is trained, in which dtype, sharded how; and what the launch gets."""

import contextlib
import json
from dataclasses import replace

import pytest
from transformers import AutoConfig

from tape_ds.checkpoint import Manifest
from tape_ds.cli import plan
from tape_ds.config import kinds
from tape_ds.config.extension import ExtensionRecipe
from tape_ds.config.files import shipped
from tape_ds.distributed.rank_sync import RankSync
from tape_ds.errors import UserError
from tape_ds.installation import ROOT
from tape_ds.models.loading import model_folder
from tape_ds.planning import hardware, memory, recipe_job, search, shape
from tape_ds.planning.prediction import Plan
from tape_ds.targets.find import planned_target
from tape_ds.training.runs import assembly
from tests.config import loads
from tests.config.helpers import has_bitsandbytes

A100 = hardware.find("a100-80")
PLANNED = {"extend_llama": loads.extension, "pretrain_c4": loads.pretraining}


def asked(*argv, world=8, gpu=A100, load=loads.extension):
    recipe = load(list(argv), world_size=world)
    return recipe_job.job_of(recipe, planned_target(recipe).config, world, gpu)


def test_a_job_is_read_from_the_recipe():
    job = asked("--recipe", "llama2_7b_8k")
    layout = job.layout
    assert (job.length, job.global_batch, job.steps, job.element) == (8192, 64, 1000, 2)
    assert (layout.world, layout.zero, layout.micro_batch, layout.checkpoint_layers) == (8, 3, 1, 1)
    assert (job.parameters, job.trained_parameters) == (6_754_954_240, 147_876_864)
    assert layout.engine.reduce_bucket == 4096**2 and layout.engine.persistence == 40_960


@pytest.mark.parametrize(
    ("words", "trained"),
    [
        (
            "lora --train_embeddings false --lora_targets q_proj",
            {"norms": True, "adapters": (("q_proj", 8),)},
        ),
        ("norms", {"norms": True}),
        ("yarn", {}),
    ],
)
def test_the_method_decides_what_is_trained(words, trained):
    assert asked("--method", *words.split(), world=1).trained == shape.TrainedShape(**trained)


@pytest.mark.parametrize(
    ("given", "outputs"),
    [("null", [192, 64]), ("all-linear", [192, 64, 128, 64])],
    ids=["null", "all-linear"],
)
def test_adapters_of_another_family_are_counted_by_its_own_maps(given, outputs, tmp_path):
    """Those of a Pythia were looked for under a Llama's names, and a plan had none."""
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
    }
    AutoConfig.for_model("gpt_neox", **sizes, max_position_embeddings=512).save_pretrained(tmp_path)
    words = [
        "--recipe",
        "llama3_8b_32k_lora_80gb",
        "--train_norms",
        "false",
        "--lora_targets",
        given,
    ]
    recipe = loads.extension(words, elsewhere=True)
    job = recipe_job.job_of(
        recipe, planned_target(recipe, str(tmp_path / "config.json")).config, 1, A100
    )
    inputs = [64, 64, 64, 128][: len(outputs)]
    assert job.trained_parameters == 2 * recipe.method.lora_r * (sum(inputs) + sum(outputs))


@pytest.mark.parametrize(
    "name", [name for name in shipped() if kinds.of(name, ExtensionRecipe).LAUNCHER in PLANNED]
)
def test_every_shipped_recipe_can_be_planned_without_its_model(name, monkeypatch):
    """Hub models by their published sizes; the network is never asked."""
    resolve = model_folder.resolve
    monkeypatch.setattr(
        model_folder,
        "resolve",
        lambda model: pytest.fail(model) if "/" in model else resolve(model),
    )
    has_bitsandbytes(monkeypatch)
    # the base of others names none
    encoding = ["--position_encoding", "tape"] if name == "c4_155m" else []
    load = PLANNED[kinds.of(name, ExtensionRecipe).LAUNCHER]
    assert memory.estimate(asked("--recipe", name, *encoding, world=1, load=load)).peak.total > 1e8


def test_disks_zero_plus_plus_and_pieces_are_read_from_the_recipe():
    own = {"stage": 3, "zero_hpz_partition_size": 4, "zero_quantized_weights": True}
    own |= {"offload_param": {"device": "nvme"}, "offload_optimizer": {"device": "cpu"}}
    recipe = replace(
        loads.extension(["--recipe", "llama2_7b_8k"], 8), deepspeed={"zero_optimization": own}
    )
    layout = recipe_job.job_of(recipe, planned_target(recipe).config, 8, A100).layout
    assert (layout.offload_weights, layout.offload_optimizer) == ("nvme", "cpu")
    assert layout.engine.secondary == 4 and layout.engine.reduce_bucket == 500_000_000
    layout = asked(
        "--recipe", "llama2_7b_8k", "--tensor_parallel_size", "4", "--deepspeed", "zero2"
    ).layout
    assert (layout.tensor, layout.data, layout.shards()) == (4, 2, 2)


OPEN = {
    "deepspeed": "auto",
    "activation_checkpointing": "auto",
    "per_device_train_batch_size": "auto",
}


def settled(*words, gpu="a100-80", world=8, name="llama2_7b_8k"):
    """A recipe as a GPU takes it; None: no GPU."""
    recipe = loads.extension(["--recipe", name, *words], world_size=world)
    found = None if gpu is None else hardware.find(gpu)
    return recipe_job.settle(recipe, planned_target(recipe).config, found)


def layout_of(recipe):
    stage = recipe.deepspeed["zero_optimization"]["stage"]
    return (
        stage,
        recipe.trainer.recomputes,
        recipe.trainer.micro_batch,
    )


def test_the_flags_of_a_choice_repeat_it():
    """The recipe that is stored with the run, accumulation included, is the same."""
    chosen = settled("--global_batch_size", "128", gpu="h200")
    flags = chosen.layout_choice.partition(" (")[0].split()
    again = loads.extension(
        ["--recipe", "llama2_7b_8k", "--global_batch_size", "128", *flags], world_size=8
    )
    assert layout_of(chosen) == (1, False, 2) and not chosen.open and not again.open
    assert (
        again.as_dict() == chosen.as_dict() and again.accumulation() == chosen.accumulation() == 8
    )


@pytest.mark.parametrize(
    ("gpu", "name", "reason"),
    [
        (None, "llama2_7b_8k", "no GPU that the planner knows"),
        ("rtx4090", "llama2_7b_8k", "no layout leaves 12.5% of rtx4090 free"),
        ("h200", "gptj_6b_pose_ntk_16k", "activations are not known"),
    ],
)
def test_where_nothing_can_be_chosen_the_cautious_values_are_taken(gpu, name, reason):
    words = [word for field, value in OPEN.items() for word in (f"--{field}", value)]
    found = settled(*words, gpu=gpu, name=name, world=1)
    assert layout_of(found) == (3, True, 1) and reason in found.layout_choice


def test_fields_that_are_given_stay():
    found = settled("--deepspeed", "zero3", "--checkpoint_layers", "selective", gpu="a100-40")
    assert layout_of(found) == (3, True, 2) and found.memory.checkpoint_layers == "selective"
    assert "--deepspeed" not in found.layout_choice
    assert layout_of(settled("--checkpoint_offload", "true"))[1] is True, (
        "else there would be no inputs to offload"
    )


def test_a_default_batch_does_not_change_with_the_choice():
    words = [word for field, value in OPEN.items() for word in (f"--{field}", value)]
    recipe = loads.pretraining(
        ["--recipe", "c4_155m", "--position_encoding", "tape", *words], world_size=8
    )
    one = replace(recipe, global_batch_size=8)  # what is derived where it is not given
    assert recipe_job.settle(one, planned_target(one).config, A100).trainer.micro_batch == 1


def checkpoint_of(folder, **identity):
    own = {f"recipe.{name}": value for name, value in identity.items()}
    folder.mkdir(parents=True)
    Manifest(step=5, processes=8, stage=2, files={}, identity=own).write(folder)


@pytest.mark.parametrize("resume", ["auto", "path"])
def test_a_resumed_run_keeps_the_layout_of_its_checkpoint(resume, tmp_path):
    """Whatever would be chosen now; flags change it."""
    checkpoint_of(
        tmp_path / "checkpoint-5", activation_checkpointing=True, checkpoint_layers="selective"
    )
    where = str(tmp_path / "checkpoint-5") if resume == "path" else resume
    words = ["--output_dir", str(tmp_path), "--resume", where]
    kept = settled(*words)
    assert layout_of(kept) == (2, True, 1) and kept.memory.checkpoint_layers == "selective"
    assert "as checkpoint-5 was trained" in kept.layout_choice
    assert layout_of(
        settled(*words, "--deepspeed", "zero1", "--activation_checkpointing", "false")
    ) == (1, False, 1)


def test_a_checkpoint_s_micro_batch_that_does_not_divide_is_refused(tmp_path):
    checkpoint_of(tmp_path / "checkpoint-5", per_device_train_batch_size=3)
    with pytest.raises(UserError, match="global_batch_size"):
        settled("--output_dir", str(tmp_path), "--resume", "auto")


@pytest.mark.parametrize("more, refused", [([], True), (["--force"], False)])
def test_a_run_stops_before_it_loads_what_cannot_fit(more, refused, monkeypatch):
    """Unless it is forced to start."""
    monkeypatch.setattr(hardware, "gpu_at_hand", lambda: hardware.find("rtx4090"))
    recipe = loads.extension(["--recipe", "llama2_7b_8k", *more], world_size=1)
    with (
        pytest.raises(UserError, match="GiB would be needed")
        if refused
        else contextlib.nullcontext()
    ):
        assembly.require_room(recipe, planned_target(recipe).config, RankSync())


@pytest.mark.parametrize(
    ("recipe", "gpus", "gpu"), [("llama2_7b_8k", 1, "a100-40"), ("llama3_8b_32k", 8, "h100-80")]
)
def test_the_flags_of_a_search_make_the_plan_that_it_found(recipe, gpus, gpu):
    job = asked("--recipe", recipe, world=gpus, gpu=hardware.find(gpu))
    best = search.search(job)[0].job
    flags = best.layout.command_line(job.layout).split()
    assert asked("--recipe", recipe, *flags, world=gpus, gpu=hardware.find(gpu)) == best


MEASURED = [
    row
    for row in map(
        json.loads, (ROOT / "benchmarks/results/recipe_nvidia_h200.jsonl").read_text().splitlines()
    )
    if row["encoding"] == "tape"
]


@pytest.mark.parametrize(
    "row", MEASURED, ids=lambda row: f"{row['shape'].split()[-1]} {row['implementation']}"
)
def test_a_step_of_an_h200_is_near_and_the_page_s(row):
    backend, _, kept = row["implementation"].removeprefix("attend ").partition(", ")
    fields = f"--deepspeed null --per_device_train_batch_size 1 --attention_backend {backend}"
    words = [*fields.split(), "--activation_checkpointing", "false" if kept else "true"]
    recipe = plan.load("llama2_7b_8k", words, 1)
    job = recipe_job.job_of(recipe, planned_target(recipe).config, 1, hardware.find("h200"))
    predicted = Plan(
        replace(job, documents=int(row["shape"].rpartition("N")[2]))
    ).step.tokens_per_second
    measured = 8192 / row["total_p50"] * 1e3
    assert predicted / measured == pytest.approx(1, abs=0.07)
    page = (ROOT / "docs/results/planner.md").read_text(encoding="utf-8")
    assert f"| {measured:,.0f} | {predicted:,.0f} | {predicted / measured - 1:+.1%} |" in page


@pytest.mark.parametrize("gpu, calls", [("h200", 1), ("h100-80", 1), ("a100-80", 2)])
def test_auto_is_planned_as_the_stored_measurements_choose(gpu, calls):
    """The fused kernel for packed sequences on Hopper; elsewhere, where nothing is measured, two calls."""
    assert asked("--recipe", "llama2_7b_8k", gpu=hardware.find(gpu)).attention_calls == calls
