"""Recipes of an extension: defaults that follow, and what is checked against the base model."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import Gemma2Config, Gemma2ForCausalLM, GPTNeoXConfig, GPTNeoXForCausalLM

from tape_ds.config.extension import check_against_model
from tape_ds.data.pose import Pose
from tape_ds.targets.extension import position_options
from tape_ds.targets.find import known_target
from tests.config.helpers import problems_of, write
from tests.config.loads import extension as load
from tests.data.conftest import build_tokenizer


def test_4_bits_are_planned_where_bitsandbytes_is_not_installed():
    """The dry run shows it below its plan; planning was refused."""
    words = ["--recipe", write(method="lora", load_in_4bit=True, deepspeed="zero1")]
    found, _ = problems_of(*words)
    assert "bitsandbytes is not installed" in found["load_in_4bit"].wrong
    assert load(words, elsewhere=True).method.load_in_4bit and load([*words, "--dry_run"]).elsewhere


def test_lengths_may_be_written_as_the_evaluation_takes_them():
    """32k was no whole number here; other numbers stay what they are."""
    words = [
        "--target_length",
        "32k",
        "--rope_parameters.factor",
        "null",
        "--passkey_lengths",
        "8k,10000",
        "32K",
    ]
    recipe = load(["--recipe", write(window="1k"), *words])
    assert (recipe.model.target_length, recipe.data.window) == (32768, 1024)
    assert recipe.evaluation.passkey_lengths == [8192, 10000, 32768]
    for name, value in {"target_length": "32kk", "max_steps": "1k"}.items():
        found, _ = problems_of("--recipe", write(), f"--{name}", value)
        assert "a whole number" in found[name].remedy


def test_defaults_that_follow_from_other_fields():
    recipe = load(["--recipe", write(without=("window", "pose_chunks"))])
    assert recipe.data.window == recipe.evaluation.eval_length == 16384
    assert (recipe.data.min_document_tokens, recipe.evaluation.eval_span) == (1, 2048)
    assert set(problems_of("--eval_span", "1")[0]) == {"eval_span"}, "the first token is no target"
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


def test_a_default_may_be_given():
    """A base's setting is taken back so; it was a problem whose remedy (remove it) the command line cannot follow."""
    idle = {"load_in_4bit": False, "theta_linear": False, "group_tokens": None}
    recipe = load(["--recipe", write(**idle, method="norms")])
    assert not idle.keys() & recipe.as_dict().keys()
    base = write(method="longlora", group_tokens=128)
    assert (
        load(["--recipe", base, "--method", "lora", "--group_tokens", "null"]).method.group_tokens
        is None
    )


def test_theta_may_interpolate_too_as_the_published_code_did():
    recipe = load(
        ["--recipe", write(method="theta", theta_linear=True, rope_parameters={"rope_theta": 5e5})]
    )
    assert recipe.rope_parameters == {"rope_type": "linear", "rope_theta": 5e5}


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


def test_a_factor_is_checked_without_the_model_if_the_original_length_is_given():
    """A hub model that is not read yet: 2 x 4,096 tokens passed for 16,384."""
    rope = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 4096}
    found, _ = problems_of("--recipe", write(model="owner/name", rope_parameters=rope))
    assert "4 or more (16,384 / 4,096)" in found["rope_parameters.factor"].remedy
    load(["--recipe", write(model="owner/name", rope_parameters=rope | {"factor": 4.0})])


def test_a_recipe_asks_for_no_factor_below_1():
    """A published model may have one."""
    found, _ = problems_of(
        "--recipe", write(model="owner/name", rope_parameters={"rope_type": "yarn", "factor": 0.5})
    )
    assert found["rope_parameters.factor"].remedy == "give a number of at least 1, or leave it out"
    load(["--recipe", write(model="owner/name", rope_parameters={"rope_type": "yarn"})])


def test_a_factor_counts_from_the_angles_that_the_model_has():
    """Of a model extended from 4k to 8k: two times more is four times what it had before."""
    own = {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 2.0,
        "original_max_position_embeddings": 4096,
    }
    extended = {"max_position_embeddings": 8192, "rope_parameters": own}
    for factor, fields in {2.0: ["rope_parameters.factor"], 4.0: []}.items():
        recipe = load(
            [
                "--recipe",
                write(model="owner/name", rope_parameters={"rope_type": "yarn", "factor": factor}),
            ]
        )
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
            # its trained updates would have no place
            refused = encoding == "tape" and named == "rope"
            assert bool(check_against_model(given, own)) == refused


def test_theta_has_to_be_larger_than_it_was():
    """Qwen2's is 1e6: the method would train on the angles that end where the model does."""
    recipe = load(["--recipe", write(model="owner/name", method="theta", rope_parameters={})])
    for theta, fields in {1e5: [], 1e6: ["rope_parameters.rope_theta"]}.items():
        own = {"rope_type": "default", "rope_theta": theta}
        native = {"max_position_embeddings": 8192, "rope_parameters": own}
        assert [problem.field for problem in check_against_model(recipe, native)] == fields


def test_drope_trains_sequences_of_the_native_length():
    """The target is only for use; for a model that is not read yet the window has to be given."""
    fields = {"method": "drope", "rope_parameters": {}, "pose_chunks": 1}
    recipe = load(["--recipe", write(**fields, without=("window",))])
    assert (recipe.window, recipe.model.target_length, recipe.evaluation.eval_length) == (
        8192,
        16384,
        16384,
    )
    assert (recipe.model.position_encoding, recipe.position_options) == (
        "nope",
        {"score_scale": 0.103},
    )
    assert load(["--recipe", write(**fields, packing="single")]).data.min_document_tokens == 1024
    changed = load(["--recipe", write(**fields, position_options={"score_scale": 0.412})])
    assert changed.position_options == {"score_scale": 0.412}
    longer = load(["--recipe", write(**fields, position_options={"text_length": 32768})])
    assert longer.position_options == {"score_scale": 0.103, "text_length": 32768}
    nowhere = SimpleNamespace(max_position_embeddings=8192)
    for options, whole in (
        ({}, {"score_scale": 0.103, "trained_length": 8192}),
        *[({"score_scale": None},) * 2],
    ):
        found = position_options(
            load(["--recipe", write(**fields, position_options=options)]), nowhere
        )
        assert found == whole
    unread = load(["--recipe", write(**fields, without=("window",), model="owner/name")])
    (problem,) = check_against_model(unread, {"max_position_embeddings": 4096})
    assert (problem.field, problem.value) == (
        "window",
        16384,
    ) and "give 4096, or less" in problem.remedy
    nowhere = {"max_position_embeddings": 8192, "position_encoding": "nope"}
    (problem,) = check_against_model(recipe, nowhere)
    assert problem.field == "method" and "no plain RoPE to drop" in problem.wrong


@pytest.mark.parametrize("shared", ["sequence_parallel_size", "tensor_parallel_size"])
def test_a_teacher_is_whole_in_every_process(shared):
    recipe = write(distill=True, deepspeed="zero2", train_norms=True, **{shared: 2})
    found, message = problems_of("--recipe", recipe, world_size=2)
    assert "processes that share" in found["distill"].wrong, message


def test_a_recipe_without_distillation_stores_none_of_its_fields():
    """So a checkpoint from before there was distillation is of the same run."""
    assert not {"distill", "distill_weight"} & load(["--recipe", write()]).as_dict().keys()
    assert (
        not {"distill", "distill_weight"}
        & load(["--recipe", write(distill=False)]).as_dict().keys()
    )
    said = load(["--recipe", write(distill=True, deepspeed="zero2")]).as_dict()
    assert (said["distill"], said["distill_weight"]) == (True, 0.5)


def test_options_of_pose_reach_its_draw():
    options = {"pose_reach": 5, "pose_content": "aligned", "pose_chunks": 3}
    recipe = load(["--recipe", write(**options)])
    assert recipe.data.pose == Pose(chunks=3, reach=5, content="aligned")
    recipe = load(["--recipe", write(pose_chunks=3, pose_skips="sorted")])
    assert recipe.data.pose == Pose(chunks=3, skips="sorted")


@pytest.mark.parametrize(
    ("fields", "least"),
    [
        ({}, 1024),
        ({"pose_chunks": 1}, 1),
        ({"pose_chunks": 1, "packing": "single"}, 1024),
        ({"pose_chunks": 1, "packing": "whole"}, 1),
    ],
)
def test_documents_too_short_for_a_sequence_are_left_out_where_they_cannot_fill_it(fields, least):
    assert load(["--recipe", write(**fields)]).data.min_document_tokens == least
    assert load(["--recipe", write(**fields, min_document_tokens=7)]).data.min_document_tokens == 7


def test_targets_are_written_out_as_a_llama_s_unless_the_family_is_another(tmp_path):
    """So a checkpoint's recipe names what is trained, and a recipe that is printed for a Pythia loads again."""
    llama = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    base = write(method="lora", lora_targets="all-linear", train_embeddings=False)
    recipe = load(["--recipe", base])
    assert (
        recipe.method.lora_targets == ["all-linear"] and recipe.as_dict()["lora_targets"] == llama
    )
    config = GPTNeoXConfig(
        hidden_size=32, intermediate_size=48, num_attention_heads=4, num_hidden_layers=1
    )
    GPTNeoXForCausalLM(config).save_pretrained(tmp_path / "pythia")
    build_tokenizer().save_pretrained(tmp_path / "pythia")
    words = ["--model", str(tmp_path / "pythia"), "--rope_parameters", "{}"]
    assert load(["--recipe", base, *words]).as_dict()["lora_targets"] == ["all-linear"]
    assert (
        load(["--recipe", base, *words, "--lora_targets", "null"]).as_dict()["lora_targets"] is None
    )
    found, _ = problems_of("--recipe", base, "--lora_targets", "all-linear,q_proj")
    assert found["lora_targets"].remedy == "give all-linear"


def test_rope_type_auto_takes_what_config_json_leaves_open_and_nothing_else():
    window = {"rope_type": "auto", "original_max_position_embeddings": 8192}
    assert load(["--recipe", write(rope_parameters=window)]).rope_parameters == window
    found, _ = problems_of(
        "--recipe", write(rope_parameters=window | {"beta_fast": 16, "rope_theta": 1e6})
    )
    assert (
        "rope_parameters.beta_fast: null, rope_parameters.rope_theta: null"
        in found["rope_parameters"].remedy
    )


def test_a_window_that_is_no_number_is_named():
    """It was a traceback: float() of a text."""
    for words in (
        ["--method", "ntk", "--rope_parameters", "{}"],
        ["--rope_parameters.rope_type", "linear"],
    ):
        argv = [
            "--recipe",
            write(),
            *words,
            "--rope_parameters.original_max_position_embeddings",
            "long",
        ]
        found, _ = problems_of(*argv)
        assert found["rope_parameters.original_max_position_embeddings"].wrong == "not a number"


def test_a_method_chosen_above_leaves_out_its_base_s_settings_of_another():
    base = write(
        "base.yaml", method="lora", lora_targets=["q_proj", "up_proj"], train_embeddings=False
    )
    recipe = load(["--recipe", base, "--method", "full"])
    assert recipe.method.method == "full" and recipe.left_out == (
        "lora_targets",
        "train_embeddings",
    )
    assert "the base's lora_targets, train_embeddings left out" in recipe.outline()["method"]
    above = write("above.yaml", text="base: base.yaml\nmethod: norms")
    assert load(["--recipe", above]).left_out == ("lora_targets",)
    # beside or above the method they contradict it
    found, _ = problems_of("--recipe", base, "--method", "norms", "--lora_r", "4")
    assert [*found] == ["lora_r"]
    found, _ = problems_of("--recipe", write("one.yaml", method="norms", lora_r=4))
    assert [*found] == ["lora_r"]
    found, _ = problems_of("--recipe", write("list.yaml", method=["norms"]))
    assert [*found] == ["method"]


def test_lengths_of_any_decoder_are_checked_before_it_loads(tmp_path):
    layers = {
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 32,
    }
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    config = Gemma2Config(**sizes, **layers, head_dim=8, vocab_size=61, max_position_embeddings=256)
    Gemma2ForCausalLM(config).save_pretrained(tmp_path / "gemma")
    build_tokenizer().save_pretrained(tmp_path / "gemma")
    words = ["--model", str(tmp_path / "gemma"), "--target_length", "512", "--eval_length", "512"]
    good = write(
        method="lora",
        deepspeed=None,
        window=128,
        passkey_lengths=[],
        rope_parameters={"rope_type": "auto"},
    )
    assert (
        "1 of its 2 layers see no further back than 32 tokens"
        in known_target(load(["--recipe", good, *words])).outline()["model"]
    )
    found, _ = problems_of("--recipe", good, *words, "--window", "1k")
    assert found["window"].wrong == "longer than target_length = 512"
    found, _ = problems_of("--recipe", good, *words, "--target_length", "128", "--window", "64")
    assert "shorter than the 256 tokens" in found["target_length"].wrong


def test_rulers_tasks_are_lm_evals():
    """A recipe is checked without lm-eval, whose import takes seconds."""
    from tape_ds.config.ruler_scores import RULER_TASKS
    from tape_ds.scoring.ruler_generators import QA_FILES, tasks

    assert tuple(task for task in tasks() if task not in QA_FILES) == RULER_TASKS


def test_rulers_questions_are_checked():
    words = [
        "--ruler_lengths",
        "1k",
        "1k",
        "--ruler_tasks",
        "vt",
        "vt",
        "niah_multikey",
        "qa_squad",
    ]
    recipe = write("ruler.yaml")
    _, message = problems_of("--recipe", recipe, *words)
    assert "4 problems found" in message
    for wrong in (
        "ruler_lengths = [1024, 1024]: a length is repeated",
        "ruler_tasks = ['vt', 'vt', 'niah_multikey', 'qa_squad']: a task is repeated",
        "ruler_tasks = 'niah_multikey': not a task without downloads",
        "ruler_tasks = 'qa_squad': not a task without downloads",
    ):
        assert wrong in message
    asked = load(
        ["--recipe", recipe, "--ruler_lengths", "2k", "--ruler_tasks", "vt", "cwe"]
    ).outline()["RULER"]
    assert asked == "5 questions of each of vt, cwe in 2,048 tokens"


GENERATED = "generated:retrieval#tokens=512-1k&text=stdlib"


def test_generated_documents_are_mixed_by_weight():
    entries = [{"source": "stdlib", "weight": 9}, {"source": GENERATED, "weight": 1}]
    recipe = load(["--recipe", write(train_data=entries)])
    assert recipe.outline()["data"].startswith(
        f"90 % stdlib, 10 % {GENERATED}: sequences of 1,024 tokens"
    )
    assert load(["--recipe", write(train_data=[GENERATED])]).data.train_data == [GENERATED]


def test_generated_documents_need_weights_steps_and_room():
    found, _ = problems_of("--recipe", write(train_data=["stdlib", GENERATED]))
    assert found["train_data"].wrong == "it has no end, and the sources have no weights"
    found, _ = problems_of("--recipe", write(train_data=[GENERATED], max_steps=-1, max_documents=5))
    assert found["max_steps"].wrong == "generated data have no end"
    assert found["max_documents"].wrong == "generated data have no end, whatever is read"
    found, _ = problems_of("--recipe", write(train_data=[GENERATED], window=600))
    assert found["train_data"].remedy == "write tokens=512-600, or give a longer window"
    found, _ = problems_of("--recipe", write(train_data=["stdlib"], eval_data=[GENERATED]))
    assert found["eval_data"].remedy == "name it in train_data of a recipe, and text here"
    found, _ = problems_of(
        "--recipe", write(train_data=[GENERATED], pose_content="aligned", min_document_tokens=9)
    )
    assert (
        found.keys() == {"pose_content", "min_document_tokens"}
        and found["pose_content"].value == "aligned"
    )
    longlora = {"method": "longlora", "window": 16384, "pose_chunks": 1}
    found, _ = problems_of("--recipe", write(train_data=[GENERATED], **longlora))
    assert "within groups" in found["method"].wrong
    held_out = write(
        train_data=["generated:retrieval#text=stdlib:typing.py"], eval_data=["stdlib:typing.py"]
    )
    found, _ = problems_of("--recipe", held_out)
    assert "also trained on" in found["eval_data"].wrong, (
        "what the records are put into is trained on"
    )


def test_lengths_that_are_read_several_times(tmp_path):
    """As a recipe writes them, and on a command line as JSON or one by one; older checkpoints have no such field."""
    for words in (
        ["--upsample", '{"8k": 2, "16384": 4}'],
        ["--upsample.8k", "2", "--upsample.16k", "4"],
    ):
        recipe = load(["--recipe", write(), *words])
        assert recipe.data.upsample == {8192: 2, 16384: 4}
        assert "from 8,192 tokens x2; from 16,384 tokens x4" in recipe.outline()["data"]
    recipe = load(["--recipe", write(upsample={"8k": 2, 16384: 4})])
    assert recipe.as_dict()["upsample"] == {8192: 2, 16384: 4}
    again = load(["--recipe", write("again.yaml", text=recipe.to_yaml())])
    assert again.data.upsample == recipe.data.upsample
    assert "upsample" not in load(["--recipe", write()]).as_dict()


@pytest.mark.parametrize(
    ("upsample", "words"),
    [
        ({0: 2}, "a length below 1"),
        ({2048: 1}, "every document is read once"),
        ({512: 2}, "no document is shorter: min_document_tokens = 1024"),
        ({2048: 0}, "give 1 or more"),
        ({"long": 2}, "wrong type"),
    ],
)
def test_lengths_that_change_nothing_are_refused(upsample, words):
    found, message = problems_of("--recipe", write(upsample=upsample))
    assert words in str(found["upsample"]), message


def test_generated_documents_are_drawn_in_the_lengths_that_are_asked_for():
    found, _ = problems_of("--recipe", write(train_data=[GENERATED], upsample={2048: 2}))
    assert found["upsample"].wrong == "is of documents that are read, and all data are generated"
