"""The recipe of the extension launcher: its own contradictions, its defaults, and the shipped ones."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tape_ds.config import files
from tape_ds.config.extension import MethodSection, check_against_model, load
from tape_ds.methods import METHODS
from tape_ds.training import model_config
from tests.config.helpers import check_malformed, has_bitsandbytes, problems_of, write

RECIPES = files.recipes_of("extend_llama")

# (what to change, expected field, part of the value shown, part of the remedy)
POSITIONS = ("train_position", "True", "method: tape, tape+lora")
WEIGHTED = [{"source": "stdlib:ast.py", "weight": 1}, {"source": "stdlib:ssl.py", "weight": 2}]
MALFORMED = {
    "no such folder": ({"model": "./nowhere"}, "model", "./nowhere", "hub id"),
    "close to smollm2": ({"model": "smolm2"}, "model", "smolm2", "did you mean 'smollm2'"),
    "no such gguf": ({"model": "a.gguf"}, "model", "a.gguf", "GGUF"),
    "shorter than native": ({"target_length": 4096}, "target_length", "4096", "8192 or more"),
    "factor too small": ({"target_length": 32768}, "rope_parameters.factor", "2.0", "4 or more"),
    "unknown rope type": ({"rope_parameters": {"rope_type": "yran"}}, "rope_parameters.rope_type", "yran", "yarn"),
    "factor of no type": ({"rope_parameters": {"factor": 2}}, "rope_parameters", "factor", "rope_type"),
    "unknown encoding": ({"position_encoding": "tapes"}, "position_encoding", "tapes", "tape"),
    "unknown option": ({"position_options": {"rnak": 4}}, "position_options.rnak", "4", "rank"),
    "options of another method's encoding": (
        {"method": "lora", "position_options": {"rank": 4}},
        "position_options.rank",
        "4",
        "position_options: {}",
    ),
    "unknown state dtype": ({"state_dtype": "fp32"}, "state_dtype", "fp32", "float32"),
    "unknown backend": ({"attention_backend": "flash9"}, "attention_backend", "flash9", "flash"),
    "window beyond target": ({"window": 99999}, "window", "99999", "16384 or less"),
    "pointless pose": ({"window": 16384}, "window", "16384", "pose_chunks: 1"),
    "window below chunks": ({"window": 3, "pose_chunks": 4}, "window", "3", "a token or more"),
    "pose without position ids": (
        {
            "position_encoding": "bipe_rope",
            "position_options": {"separators": [4]},
            "method": "lora",
            "train_position": False,
        },
        "pose_chunks",
        "2",
        "another encoding",
    ),
    "no chunks": ({"pose_chunks": 0}, "pose_chunks", "0", "1 or more"),
    "unknown data spec": ({"train_data": ["sdtlib"]}, "train_data", "sdtlib", "stdlib"),
    "no such text": ({"train_data": ["text:none/*.txt"]}, "train_data", "text:none/*.txt", "check the path"),
    "no data": ({"train_data": []}, "train_data", "[]", "stdlib"),
    "a mapping that is no list": ({"train_data": {"source": "stdlib", "weight": 1}}, "train_data", "source", "a list"),
    "a weight for held-out text": (
        {"eval_data": [{"source": "stdlib", "weight": 1}]},
        "eval_data",
        "weight",
        "each item a text",
    ),
    "max_documents with weights": (
        {"train_data": WEIGHTED, "max_documents": 100},
        "max_documents",
        "100",
        "hub:NAME:SPLIT[:N]",
    ),
    "epochs with weights": (
        {"train_data": WEIGHTED, "max_steps": -1, "num_train_epochs": 2.0},
        "max_steps",
        "-1",
        "give the number of steps",
    ),
    "same document": (
        {"train_data": ["stdlib:ast.py"], "eval_data": ["stdlib:ast.py"]},
        "eval_data",
        "stdlib:ast.py",
        "other documents",
    ),
    "span beyond length": ({"eval_length": 512, "eval_span": 1024}, "eval_span", "1024", "one stretch"),
    "passkeys of no length": ({"passkey_lengths": [0, 4096]}, "passkey_lengths", "0", "1 or more"),
    "passkeys twice": ({"passkey_lengths": [4096, 4096]}, "passkey_lengths", "4096", "once"),
    "no passkey": ({"passkey_lengths": [4096], "passkey_trials": 0}, "passkey_trials", "0", "1 or more"),
    "unknown passkeys": ({"passkey_form": "pos"}, "passkey_form", "pos", "pose"),
    "unknown method": ({"method": "lorra"}, "method", "lorra", "did you mean 'lora'"),
    "tape without tape": ({"position_encoding": "rope"}, "method", "tape", "position_encoding: tape"),
    "position updates without any": (
        {"position_encoding": "rope", "train_position": True},
        "train_position",
        "rope",
        "position_encoding: tape",
    ),
    "tape with everything off": (
        {"position_options": {"attention_update": "off", "feed_forward": False}},
        "method",
        "with these options",
        "an update on",
    ),
    "nothing trained": ({"train_position": False, "train_norms": False}, "method", "tape", "train_norms"),
    "sequences longer than native": (
        {"method": "drope", "rope_parameters": {}, "pose_chunks": 1, "window": 9000},
        "window",
        "9000",
        "give 8192, or less",
    ),
    "no RoPE to scale": ({"method": "drope", "pose_chunks": 1}, "rope_parameters", "yarn", "rope_parameters: {}"),
    "no positions to skip": ({"method": "drope", "rope_parameters": {}}, "pose_chunks", "2", "pose_chunks: 1"),
    "dropped but there": (
        {"method": "drope", "rope_parameters": {}, "pose_chunks": 1, "position_encoding": "rope"},
        "position_encoding",
        "rope",
        "method: full",
    ),
    "an option of another encoding": (
        {"method": "drope", "rope_parameters": {}, "pose_chunks": 1, "position_options": {"rank": 4}},
        "position_options.rank",
        "4",
        "position_options: {}",
    ),
    "a weight of nothing": ({"distill_weight": 0.3}, "distill_weight", "0.3", "distill: true"),
    "no weight": ({"distill": True, "deepspeed": "zero2", "distill_weight": 0}, "distill_weight", "0", "above 0"),
    "distilled and sharded": ({"distill": True}, "distill", "ZeRO-3", "distill: false"),
    "distilled but not trained": (
        {"method": "yarn", "distill": True},
        "distill",
        "'yarn' trains nothing",
        "distill: false",
    ),
    "distilled and compiled": (
        {"distill": True, "deepspeed": "zero2", "torch_compile": True},
        "distill",
        "torch_compile",
        "distill: false",
    ),
    "full but not": ({"method": "full", "train_norms": False}, "train_norms", "False", "remove it"),
    "no rank": ({"method": "lora", "lora_r": 0}, "lora_r", "0", "1 or more"),
    "unknown target": ({"method": "lora", "lora_targets": ["q_prj"]}, "lora_targets", "q_prj", "q_proj"),
    "position as target": ({"method": "lora", "lora_targets": ["gate"]}, "lora_targets", "gate", "gate_proj"),
    "adapters of tape": ({"lora_r": 8}, "lora_r", "8", "tape+lora"),
    "positions of lora": ({"method": "lora", "position_encoding": "tape", "train_position": True}, *POSITIONS),
    "tape+lora without tape": (
        {"method": "tape+lora", "position_encoding": "rope"},
        "method",
        "tape+lora",
        "position_encoding: tape",
    ),
    "two scalings at once": (
        {"method": "theta", "rope_parameters": {"rope_type": "yarn"}},
        "rope_parameters.rope_type",
        "yarn",
        "rope_parameters: {}",
    ),
    "linear by yarn": (
        {"method": "linear", "rope_parameters": {"rope_type": "yarn", "factor": 2}},
        "rope_parameters.rope_type",
        "yarn",
        "another method",
    ),
    "linear theta of lora": ({"method": "lora", "theta_linear": True}, "theta_linear", "True", "method: theta"),
    "groups of lora": ({"method": "lora", "group_tokens": 256}, "group_tokens", "256", "method: longlora"),
    "odd group": ({"method": "longlora", "group_tokens": 255}, "group_tokens", "255", "an even number"),
    "group beyond window": ({"method": "longlora", "group_tokens": 1024}, "group_tokens", "1024", "a quarter"),
    "groups of biased scores": (
        {"method": "longlora", "position_encoding": "alibi"},
        "position_encoding",
        "alibi",
        "position_encoding: rope",
    ),
    "4 bits here": ({"method": "lora", "load_in_4bit": True}, "load_in_4bit", "True", "load_in_4bit: false"),
    "4 bits of tape": ({"load_in_4bit": True}, "load_in_4bit", "True", "tape+lora"),
    "norms of yarn": ({"method": "yarn", "train_norms": True}, "train_norms", "True", "train_norms: false"),
    "positions of the control": ({"method": "norms", "train_position": True}, *POSITIONS),
    "nothing to resume": (
        {"method": "yarn", "output_dir": ".", "resume_from_checkpoint": True},
        "resume_from_checkpoint",
        "True",
        "remove it",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_recipe_names_field_value_and_remedy(name):
    check_malformed(*MALFORMED[name])


def test_4_bits_are_planned_where_bitsandbytes_is_not_installed():
    """The dry run says so below its plan; planning was refused."""
    words = ["--recipe", write(method="lora", load_in_4bit=True, deepspeed="zero1")]
    found, _ = problems_of(*words)
    assert "bitsandbytes is not installed" in found["load_in_4bit"].wrong
    assert load(words, elsewhere=True).method.load_in_4bit and load([*words, "--dry_run"]).elsewhere


@pytest.mark.parametrize("name", RECIPES)
def test_the_shipped_recipes_load(name, monkeypatch):
    has_bitsandbytes(monkeypatch)
    recipe = load(["--recipe", name], world_size=2)
    assert recipe.name == name and (recipe.deepspeed is not None) == recipe.trains
    assert recipe.trainer.kwargs["output_dir"] == f"runs/{name}"


def test_the_paper_s_recipe():
    recipe = load(["--recipe", "llama2_7b_8k"], world_size=8)
    kwargs = recipe.trainer.kwargs
    assert (recipe.global_batch_size, recipe.accumulation(), kwargs["max_steps"]) == (64, 8, 1000)
    assert (kwargs["learning_rate"], kwargs["warmup_steps"]) == (2e-5, 50)
    assert kwargs["lr_scheduler_type"] == "constant_with_warmup"
    assert recipe.model.rope_parameters == {"rope_type": "linear", "factor": 2.0}
    assert (recipe.method.train_position, recipe.method.train_norms, recipe.method.train_embeddings) == (True,) * 3
    assert recipe.open == {"deepspeed", "activation_checkpointing", "per_device_train_batch_size"}
    shipped = load(["--recipe", "llama2_7b_8k_as_shipped"], world_size=8).method
    assert (shipped.train_position, shipped.train_norms, shipped.train_embeddings) == (False, True, True)


@pytest.mark.parametrize("method", ["lora", "longlora", "theta", "full"])
def test_the_paper_s_rivals_differ_in_the_method_alone(method):
    """As its code set them: LoRA of rank 8 beside embeddings and norms, groups of a quarter, two scalings at once."""
    ours, theirs = (load(["--recipe", f"llama2_7b_8k{end}"], world_size=8) for end in ("", f"_{method}"))
    own = {"position_encoding", "position_options", "rope_parameters", "output_dir"}
    own |= set(MethodSection.flat_fields())
    one, other = ({name: value for name, value in each.as_dict().items() if name not in own} for each in (ours, theirs))
    assert one == other
    assert theirs.model.position_encoding == "rope" and theirs.rope_parameters["rope_type"] == "linear"
    settings = theirs.method
    assert settings.train_norms and settings.train_embeddings and not settings.lora_dropout
    assert (settings.lora_r, settings.lora_alpha, settings.lora_targets[0]) == (8, 16, "q_proj")
    assert settings.group_tokens == (2048 if method == "longlora" else None)
    assert theirs.rope_parameters.get("rope_theta") == (1e6 if method == "theta" else None)


def test_lengths_may_be_written_as_the_evaluation_takes_them():
    """32k was no whole number here; other numbers stay what they are."""
    words = ["--target_length", "32k", "--rope_parameters.factor", "null", "--passkey_lengths", "8k,10000", "32K"]
    recipe = load(["--recipe", write(window="1k"), *words])
    assert (recipe.model.target_length, recipe.data.window) == (32768, 1024)
    assert recipe.evaluation.passkey_lengths == [8192, 10000, 32768]
    for name, value in {"target_length": "32kk", "max_steps": "1k"}.items():
        found, _ = problems_of("--recipe", write(), f"--{name}", value)
        assert "a whole number" in found[name].remedy


def test_demo_is_the_default_and_nothing_is_written(tmp_path):
    recipe = load([])
    assert recipe.name == "demo" and recipe.model.model == "smollm2"
    assert list(tmp_path.iterdir()) == []


def test_defaults_that_follow_from_other_fields():
    recipe = load(["--recipe", write(without=("window", "pose_chunks"))])
    assert recipe.data.window == recipe.evaluation.eval_length == 16384
    assert (recipe.data.min_document_tokens, recipe.evaluation.eval_span) == (1, 2048)
    assert recipe.method.train_position and not recipe.method.train_embeddings
    full = load(["--recipe", write(method="full", position_encoding="rope")]).method
    assert full.train_position and full.train_norms and full.train_embeddings
    lora = load(["--recipe", write(method="lora", position_encoding="rope")]).method
    assert not lora.train_position and lora.lora_targets == ["q_proj", "k_proj", "v_proj", "o_proj"]


@pytest.mark.parametrize(
    ("method", "encoding", "position", "embeddings", "rope_parameters"),
    [
        ("tape", "tape", True, False, {}),
        ("tape+lora", "tape", True, True, {}),
        ("lora", "rope", False, True, {}),
        ("longlora", "rope", False, True, {}),
        ("norms", "rope", False, False, {}),
        ("full", "rope", True, True, {}),
        ("theta", "rope", False, True, {"rope_type": "default", "rope_theta": 1e6}),
        ("ntk", "rope", False, False, {"rope_type": "ntk"}),
    ],
)
def test_a_method_brings_its_defaults(method, encoding, position, embeddings, rope_parameters):
    recipe = load(["--recipe", write(method=method, rope_parameters={})])
    assert recipe.model.position_encoding == encoding and recipe.rope_parameters == rope_parameters
    assert (recipe.method.train_position, recipe.method.train_embeddings) == (position, embeddings)
    assert recipe.method.group_tokens == (256 if method == "longlora" else None)
    assert recipe.trains == (method != "ntk") == (recipe.deepspeed is not None)


def test_what_is_so_anyway_may_be_said():
    """A base's setting is taken back so; it was a problem whose remedy (remove it) the command line cannot follow."""
    idle = {"load_in_4bit": False, "theta_linear": False, "group_tokens": None}
    recipe = load(["--recipe", write(**idle, method="norms")])
    assert not idle.keys() & recipe.as_dict().keys()
    base = write(method="longlora", group_tokens=128)
    assert load(["--recipe", base, "--method", "lora", "--group_tokens", "null"]).method.group_tokens is None


def test_theta_may_interpolate_too_as_the_published_code_did():
    recipe = load(["--recipe", write(method="theta", theta_linear=True, rope_parameters={"rope_theta": 5e5})])
    assert recipe.rope_parameters == {"rope_type": "linear", "rope_theta": 5e5}


@pytest.mark.parametrize("name", [*RECIPES, *METHODS])
def test_a_recipe_written_out_loads_to_itself(name, monkeypatch):
    has_bitsandbytes(monkeypatch)
    argv = ["--recipe", "demo", "--method", name] if name in METHODS else ["--recipe", name]
    if name in METHODS and (METHODS[name].rope_parameters or METHODS[name].drops_rope):
        argv += ["--rope_parameters", "{}"]
    if name in METHODS and METHODS[name].drops_rope:
        argv += ["--pose_chunks", "1"]
    if name in METHODS and METHODS[name].trains == "everything":  # the demo's own method leaves the embeddings
        argv += ["--train_embeddings", "true"]
    recipe = load(argv, world_size=2)
    Path("again.yaml").write_text(recipe.to_yaml())
    assert load(["--recipe", "again.yaml"], world_size=2).to_yaml() == Path("again.yaml").read_text()


def test_the_length_is_checked_in_a_local_folder_and_again_by_the_launcher():
    Path("model").mkdir()
    Path("model/config.json").write_text('{"max_position_embeddings": 32768}')
    found, _ = problems_of("--recipe", write(model="model"))
    assert "32768" in found["target_length"].wrong
    recipe = load(["--recipe", write(model="owner/name")])
    assert check_against_model(recipe, {"max_position_embeddings": 8192}) == []
    short = check_against_model(recipe, {"max_position_embeddings": 4096})
    assert [problem.field for problem in short] == ["rope_parameters.factor"]
    assert check_against_model(recipe, {})[0].field == "model"


def test_a_factor_is_checked_without_the_model_where_the_recipe_says_what_it_counts_from():
    """A hub model that nobody has read yet: 2 x 4,096 tokens passed for 16,384."""
    rope = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 4096}
    found, _ = problems_of("--recipe", write(model="owner/name", rope_parameters=rope))
    assert "4 or more (16,384 / 4,096)" in found["rope_parameters.factor"].remedy
    load(["--recipe", write(model="owner/name", rope_parameters=rope | {"factor": 4.0})])


def test_a_start_beyond_the_model_is_refused():
    rope = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 9000}
    found, _ = problems_of("--recipe", write(rope_parameters=rope))
    assert set(found) == {"rope_parameters.original_max_position_embeddings"}


def test_a_factor_counts_from_the_angles_that_the_model_has():
    """Of a model extended from 4k to 8k: two times more is four times what it had before."""
    own = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 4096}
    extended = {"max_position_embeddings": 8192, "rope_parameters": own}
    for factor, fields in {2.0: ["rope_parameters.factor"], 4.0: []}.items():
        recipe = load(["--recipe", write(model="owner/name", rope_parameters={"rope_type": "yarn", "factor": factor})])
        assert [problem.field for problem in check_against_model(recipe, extended)] == fields


def test_the_encoding_of_a_base_is_not_lost_by_a_method_that_leaves_it_unnamed():
    """LoRA on a model with TAPE was planned as RoPE, and ended as the weights were loaded; ALiBi was lost silently."""
    for encoding in ("tape", "alibi"):
        own = {"max_position_embeddings": 8192, "position_encoding": encoding, "model_type": "tape"}
        fields = {"model": "owner/name", "method": "lora", "rope_parameters": {"rope_type": "auto"}}
        (problem,) = check_against_model(load(["--recipe", write(**fields)]), own)
        assert (problem.field, problem.value) == ("position_encoding", "rope")
        assert f"position_encoding: {encoding}" in problem.remedy
        for named in (encoding, "rope"):
            given = load(["--recipe", write(**fields, position_encoding=named, pose_chunks=1)])
            refused = encoding == "tape" and named == "rope"  # its trained updates would have no place
            assert bool(check_against_model(given, own)) == refused


def test_theta_has_to_be_larger_than_it_was():
    """Qwen2's is 1e6: the method would train on the angles that end where the model does."""
    recipe = load(["--recipe", write(model="owner/name", method="theta", rope_parameters={})])
    for theta, fields in {1e5: [], 1e6: ["rope_parameters.rope_theta"]}.items():
        own = {"rope_type": "default", "rope_theta": theta}
        native = {"max_position_embeddings": 8192, "rope_parameters": own}
        assert [problem.field for problem in check_against_model(recipe, native)] == fields


def test_a_folder_without_a_configuration():
    Path("model").mkdir()
    found, _ = problems_of("--recipe", write(model="model"))
    assert "config.json" in found["model"].wrong


def test_norms_alone_can_be_trained_under_any_encoding():
    """The control of every comparison with position updates."""
    recipe = load(["--recipe", write(position_encoding="rope", train_position=False)])
    assert (recipe.method.method, recipe.method.train_position, recipe.method.train_norms) == ("tape", False, True)


def test_the_factor_that_is_asked_for_reaches_the_target_and_may_be_left_out():
    """488.28125 rounded down would be refused again."""
    found, _ = problems_of("--recipe", write(), "--target_length", "4000000")
    assert "give 488.282 or more (4,000,000 / 8,192), or leave factor out" in found["rope_parameters.factor"].remedy
    for given in ("488.282", "null"):
        load(["--recipe", write(), "--target_length", "4000000", "--rope_parameters.factor", given])


def test_the_plan_says_what_factor_a_target_means():
    assert load(["--recipe", write()]).outline()["model"] == "smollm2, 8,192 -> 16,384 positions, x2"
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    shown = load(["--recipe", write(rope_parameters=rope, position_encoding="rope", train_position=False)]).outline()
    assert shown["encoding"] == "rope from unscaled RoPE, theta 100000 -> yarn x4 from 4,096, theta 100000"


def test_drope_trains_sequences_of_the_native_length():
    """The target is only for use; a model that nobody has read yet has to be given the window."""
    fields = {"method": "drope", "rope_parameters": {}, "pose_chunks": 1}
    recipe = load(["--recipe", write(**fields, without=("window",))])
    assert (recipe.window, recipe.model.target_length, recipe.evaluation.eval_length) == (8192, 16384, 16384)
    assert (recipe.model.position_encoding, recipe.position_options) == ("nope", {"score_scale": 0.103})
    assert load(["--recipe", write(**fields, packing="single")]).data.min_document_tokens == 1024
    changed = load(["--recipe", write(**fields, position_options={"score_scale": 0.412})])
    assert changed.position_options == {"score_scale": 0.412}
    longer = load(["--recipe", write(**fields, position_options={"text_length": 32768})])
    assert longer.position_options == {"score_scale": 0.103, "text_length": 32768}
    nowhere = SimpleNamespace(max_position_embeddings=8192)
    for options, whole in (({}, {"score_scale": 0.103, "trained_length": 8192}), *[({"score_scale": None},) * 2]):
        found = model_config.position_options(load(["--recipe", write(**fields, position_options=options)]), nowhere)
        assert found == whole
    unread = load(["--recipe", write(**fields, without=("window",), model="owner/name")])
    (problem,) = check_against_model(unread, {"max_position_embeddings": 4096})
    assert (problem.field, problem.value) == ("window", 16384) and "give 4096, or less" in problem.remedy
    nowhere = {"max_position_embeddings": 8192, "position_encoding": "nope"}
    (problem,) = check_against_model(recipe, nowhere)
    assert problem.field == "method" and "no plain RoPE to drop" in problem.wrong


@pytest.mark.parametrize("shared", ["sequence_parallel_size", "tensor_parallel_size"])
def test_a_teacher_is_whole_in_every_process(shared):
    recipe = write(distill=True, deepspeed="zero2", train_norms=True, **{shared: 2})
    found, message = problems_of("--recipe", recipe, world_size=2)
    assert "processes that share" in found["distill"].wrong, message


def test_what_is_not_distilled_says_nothing_of_it():
    """So a checkpoint from before there was distillation is of the same run."""
    assert not {"distill", "distill_weight"} & load(["--recipe", write()]).as_dict().keys()
    assert not {"distill", "distill_weight"} & load(["--recipe", write(distill=False)]).as_dict().keys()
    said = load(["--recipe", write(distill=True, deepspeed="zero2")]).as_dict()
    assert (said["distill"], said["distill_weight"]) == (True, 0.5)
