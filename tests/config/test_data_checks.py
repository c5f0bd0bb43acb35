"""What an extension recipe says of its sequences: contradictions, defaults that follow, and PoSE's recipes."""

import pytest

from tape_ds.config.extension import load
from tape_ds.data.pose import Pose
from tests.config.helpers import check_malformed, in_folder, write

PACKED = {"pose_chunks": 1}

# (what to change, expected field, part of the value shown, part of the remedy)
MALFORMED = {
    "reach of nothing": ({"pose_reach": 0}, "pose_reach", "0", "1 or more, or null"),
    "reach without pose": ({**PACKED, "pose_reach": 5}, "pose_reach", "5", "pose_chunks: 2"),
    "content without pose": ({**PACKED, "pose_content": "aligned"}, "pose_content", "aligned", "pose_chunks: 2"),
    "skips without pose": ({**PACKED, "pose_skips": "sorted"}, "pose_skips", "sorted", "pose_chunks: 2"),
    "unknown content": ({"pose_content": "same"}, "pose_content", "same", "aligned"),
    "unknown skips": ({"pose_skips": "even"}, "pose_skips", "even", "sorted"),
    "unknown packing": ({**PACKED, "packing": "half"}, "packing", "half", "whole"),
    "packed pose": ({"packing": "whole"}, "packing", "whole", "pose_chunks: 1"),
    "pose across borders": ({"attend_across": True}, "attend_across", "True", "pose_chunks: 1"),
    "pose with ends": ({"append_eos": True}, "append_eos", "True", "pose_chunks: 1"),
    "across one document": (
        {**PACKED, "packing": "single", "attend_across": True},
        "attend_across",
        "True",
        "packing: cut or whole",
    ),
    "no documents": ({"max_documents": 0}, "max_documents", "0", "1 or more, or null"),
    "no tokens": ({"min_document_tokens": 0}, "min_document_tokens", "0", "1 or more"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_recipe_names_field_value_and_remedy(name):
    check_malformed(*MALFORMED[name])


def test_options_of_pose_reach_its_draw():
    options = {"pose_reach": 5, "pose_content": "aligned", "pose_chunks": 3}
    recipe = load(["--recipe", write(**options)])
    assert recipe.data.pose == Pose(chunks=3, reach=5, content="aligned")
    recipe = load(["--recipe", write(pose_chunks=3, pose_skips="sorted")])
    assert recipe.data.pose == Pose(chunks=3, skips="sorted")


@pytest.mark.parametrize(
    ("fields", "least"),
    [({}, 1024), (PACKED, 1), ({**PACKED, "packing": "single"}, 1024), ({**PACKED, "packing": "whole"}, 1)],
)
def test_documents_too_short_for_a_sequence_are_left_out_where_they_cannot_fill_it(fields, least):
    assert load(["--recipe", write(**fields)]).data.min_document_tokens == least
    assert load(["--recipe", write(**fields, min_document_tokens=7)]).data.min_document_tokens == 7


def test_the_plan_says_how_sequences_are_packed():
    recipe = load(["--recipe", write(**PACKED, packing="whole", attend_across=True)])
    assert "sequences of 1,024 tokens (packed documents, whole, attending across)" in recipe.outline()["data"]
    assert "PoSE, 2 chunks of one document; documents below 1,024 left out" in load([]).outline()["data"]


POSE = in_folder("pose")

# window and target of the checkpoints that PoSE's authors published, and of their GPT-J runs
PUBLISHED = {
    **{f"llama_7b_pose_{name}_16k": (2048, 16384) for name in ("linear", "ntk", "yarn")},
    **{f"llama_7b_pose_{name}_96k": (2048, 98304) for name in ("linear", "yarn")},
    "llama_7b_pose_yarn_128k": (2048, 131072),
    **{f"llama2_7b_pose_{name}_16k": (4096, 16384) for name in ("linear", "ntk", "yarn")},
    **{f"baichuan2_7b_pose_{name}_16k": (4096, 16384) for name in ("linear", "ntk", "yarn")},
    **{f"gptj_6b_pose_{name}_16k": (2048, 16384) for name in ("linear", "ntk", "yarn")},
}


def test_a_recipe_for_every_published_one():
    assert sorted(PUBLISHED) == POSE


@pytest.mark.parametrize("name", POSE)
def test_pose_in_its_paper_s_settings(name):
    window, target = PUBLISHED[name]
    recipe = load(["--recipe", name], world_size=8)
    kwargs = recipe.trainer.kwargs
    assert (recipe.data.window, recipe.model.target_length) == (window, target)
    assert recipe.data.pose == Pose(chunks=2, reach=5)
    assert (recipe.data.min_document_tokens, recipe.data.max_documents) == (window, 100_000)
    assert (recipe.method.method, recipe.model.position_encoding) == ("full", "rope")
    assert (recipe.global_batch_size, recipe.accumulation()) == (64, window // 2048)
    assert (kwargs["max_steps"], kwargs["learning_rate"], kwargs["warmup_steps"]) == (1000, 2e-5, 10)
    assert kwargs["lr_scheduler_type"] == "linear" and kwargs["fp16"] and kwargs["activation_checkpointing"]
    rope = recipe.model.rope_parameters
    assert rope["factor"] == target / window
    assert rope.get("original_max_position_embeddings", window) == window
    type_of = {"linear": "linear", "ntk": "ntk", "yarn": "yarn" if name.startswith("gptj") else "yarn_revised"}
    assert rope["rope_type"] == type_of[name.split("_")[3]]
