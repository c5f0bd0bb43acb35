"""Every remedy that names a field, an option or a value is followed: the same problem must not come back.

Several were dead ends: a window was asked for under ``rope_type: auto``, and refused there; ``lora_r: 8`` "where a base
has it" was refused as any other; ``give 18 to 4,096`` was read as two numbers where it was pasted; ``deepspeed: zero1``
changed nothing for a method that takes no steps; and a family that has no TAPE asked again and again for a method that
was chosen already.
"""

import ast
import itertools
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tape_ds.config import files, trainer
from tape_ds.config.kinds import KINDS
from tape_ds.config.loading import load as load_recipe
from tape_ds.errors import UserError
from tape_ds.installation import ROOT
from tape_ds.targets.base import find_base
from tape_ds.targets.find import known_target
from tape_ds.training.dry_run import describe
from tests.config.helpers import has_bitsandbytes
from tests.config.test_frozen import FROZEN, lines, load
from tests.data.conftest import build_tokenizer
from tests.remedies import follow, ways

MOST = 3
"""Ways of one problem that are followed: a list of twenty names is one way, twenty times."""
NOWHERE = Path("/nowhere")
"""A folder without files, for mistakes of a command line."""
EXTENSION = KINDS["extend_llama"]
README = ["--recipe", "llama3_8b_32k_lora_80gb"]
"""README's command."""


def problems_of(check, *arguments):
    try:
        check(*arguments)
    except UserError as error:
        return error.problems
    return []


def dead_ends(check, argv, fields, followed, folder=NOWHERE):
    """Return every remedy after which the same problem comes back.

    ``check`` takes a command line, ``folder`` has its files, and ``followed`` gets what was tried: the same field,
    words and way once.
    """
    found = []
    before = {
        path: path.read_text() for path in folder.rglob("*.*") if path.suffix in (".yaml", ".json")
    }
    for problem in problems_of(check, argv):
        for way in ways(problem, fields)[:MOST]:
            words = re.sub(r"\d+|'[^']*'|/\S+", "", f"{problem.field} {problem.wrong}")
            tried = (words, *((step.field, step.value is None) for step in way))
            if tried in followed:
                continue
            followed.add(tried)
            again = problems_of(check, follow(way, argv, folder))
            if any((each.field, each.wrong) == (problem.field, problem.wrong) for each in again):
                found.append(f"{argv}: {problem}; followed: {way}")
            for path, text in before.items():
                path.write_text(text)
    return found


@pytest.mark.parametrize("name", sorted({case["test"] for case in lines("malformed.jsonl")}))
def test_a_remedy_for_a_recipe_works(name, tmp_path, monkeypatch):
    found, followed = [], set()
    for number, case in enumerate(
        each for each in lines("malformed.jsonl") if each["test"] == name
    ):
        here = tmp_path / str(number)
        here.mkdir()
        for file, text in case.get("files", {}).items():
            (here / file).parent.mkdir(parents=True, exist_ok=True)
            (here / file).write_text(
                text.replace("{here}", str(here)).replace("{assets}", str(FROZEN.parent))
            )
        argv = [word.replace("{here}", str(here)) for word in case["argv"]]
        with monkeypatch.context() as patch:
            patch.chdir(here)
            for variable, value in case.get("env", {}).items():
                patch.setenv(variable, value)
            fields = KINDS[case["launcher"]].fields()
            found += dead_ends(
                lambda words, case=case: load(case | {"argv": words}), argv, fields, followed, here
            )
    assert found == [], "\n".join(found)
    assert followed


WRONG = {"many": 60, "-1": 30, "0.5": 20, "[]": 60, "{}": 60}
"""Value that most fields do not take -> remedies that it brings, at least."""


@pytest.mark.parametrize(
    ("launcher", "name"), [(each, name) for each in KINDS for name in files.recipes_of(each)]
)
def test_a_remedy_works_under_every_shipped_recipe(launcher, name, monkeypatch):
    """Every field is wrong at once; then the first remedy of each is followed, all together."""
    has_bitsandbytes(monkeypatch)
    kind = KINDS[launcher]
    fields = kind.fields()

    def check(words):
        load_recipe(words, kind=kind)

    for value, least in WRONG.items():
        argv = ["--recipe", name, *(word for field in fields for word in (f"--{field}", value))]
        followed = []
        for problem in problems_of(check, argv):
            found = ways(problem, fields)
            if found and not any(step.is_for_a_file for step in found[0]):
                followed.append(problem)
                argv = follow(found[0], argv, NOWHERE)
        assert len(followed) >= least, value
        again = {(each.field, each.wrong) for each in problems_of(check, argv)}
        assert [str(each) for each in followed if (each.field, each.wrong) in again] == [], value


SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 300,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
_WINDOWS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16}
_LINEAR = {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}
_SCALED = {"rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
_YARN = {**_SCALED, "rope_type": "yarn", "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
_LLAMA3 = {**_SCALED, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj"
_ATTENTION = "q_proj k_proj v_proj o_proj"
_NO_GATE = "q_proj k_proj v_proj o_proj up_proj down_proj"
FAMILIES = {
    "llama": ("llama", {}, _LLAMA),
    "qwen3": ("qwen3", {}, _LLAMA),
    "gpt_neox": (
        "gpt_neox",
        {"hidden_size": 64, "head_dim": 16},
        "query_key_value dense dense_h_to_4h dense_4h_to_h",
    ),
    "phi3": (
        "phi3",
        {"original_max_position_embeddings": 64},
        "qkv_proj o_proj gate_up_proj down_proj",
    ),
    "mixtral": ("mixtral", {"num_local_experts": 4}, _ATTENTION),
    "qwen3_moe": ("qwen3_moe", {"num_experts": 4, **_EXPERTS}, _ATTENTION),
    "gpt_oss": (
        "gpt_oss",
        {"num_local_experts": 4, **_WINDOWS, "rope_parameters": _YARN},
        _ATTENTION,
    ),
    "nemotron": ("nemotron", {}, _NO_GATE),
    "arcee": ("arcee", {}, _NO_GATE),
    "apertus": ("apertus", {"rope_parameters": _LLAMA3}, _NO_GATE),
    "gemma3_text": ("gemma3_text", _WINDOWS, _LLAMA),
    "linear without a window": ("llama", _LINEAR, _LLAMA),
    "Gemma 3's, linear without a window": (
        "gemma3_text",
        {
            **_WINDOWS,
            "rope_parameters": {
                "full_attention": _LINEAR["rope_parameters"],
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
        _LLAMA,
    ),
}
"""Name -> its model type, fields beside the sizes, and the linear maps of its blocks: experts are no linear maps, and
routers are left out."""


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A folder with a tiny model of a family, made once."""
    folder = tmp_path_factory.mktemp("bases")
    made = {}

    def make(family):
        if family not in made:
            kind, fields, _ = FAMILIES[family]
            torch.manual_seed(0)
            config = AutoConfig.for_model(kind, **SIZES | fields)
            made[family] = str(folder / str(len(made)))
            AutoModelForCausalLM.from_config(config).save_pretrained(made[family])
            build_tokenizer().save_pretrained(made[family])
        return made[family]

    return make


SHORT = [
    "--target_length",
    "256",
    "--window",
    "32",
    "--min_document_tokens",
    "16",
    "--passkey_lengths",
    "[]",
]
SHORT += [
    "--eval_data",
    "[]",
    "--eval_length",
    "256",
    "--eval_span",
    "64",
    "--train_data",
    "stdlib",
]


def dry_run(words):
    """What a dry run checks, weights aside."""
    recipe = load_recipe([*words, "--dry_run"], kind=EXTENSION)
    describe(recipe)


@pytest.mark.parametrize("family", FAMILIES)
def test_readme_s_command_takes_every_family(family, base):
    """Of Pythia, Phi-3, Mixtral and six others it had up to seven problems, one for each of a Llama's linear maps."""
    words = [*README, "--model", base(family), *SHORT]
    window = (
        ["--rope_parameters.original_max_position_embeddings", "64"] if "linear" in family else []
    )
    opened = find_base(base(family))
    for given, maps in ([], FAMILIES[family][2].split()), (["--lora_targets", "null"], None):
        recipe = load_recipe([*words, *window, *given], kind=EXTENSION)
        describe(recipe)
        chosen = known_target(recipe).recipe.method.lora_targets
        expected = maps or [
            name for name, of_attention in opened.linear_maps.items() if of_attention
        ]
        assert sorted(chosen) == sorted(expected)


MISTAKES = [
    *(
        [f"--method {name}"]
        for name in ("tape", "tape+lora", "longlora", "yarn", "ntk", "dynamic", "linear")
    ),
    *([f"--method {name}"] for name in ("theta", "drope", "norms", "full --train_router")),
    *([f"--lora_targets {names}"] for names in ("q_proj,zz", "qkv", "gate")),
    *(["--lora_r 4 --method norms"], ["--distill"], ["--target_length 32"], ["--window 1024"]),
    *(
        [f"--rope_parameters.rope_type {name}"]
        for name in ("auto", "yarn", "dynamic", "llama3", "yran")
    ),
    *([f"--rope_parameters.factor {value}"] for value in ("1.5", "0", "x")),
    *([f"--rope_parameters.original_max_position_embeddings {value}"] for value in ("4096", "x")),
    ["--rope_parameters.beta_fast 3"],
    *([f"--position_encoding {name}"] for name in ("tape", "alibi", "yarn", "pope")),
    *(["--position_options.rank 4"], ["--state_dtype float32"], ["--liger on"], ["--mlp_tiles 2"]),
    *(["--attention_backend triton"], ["--sequence_parallel_size 2"], ["--tensor_parallel_size 2"]),
    *(
        ["--checkpoint_layers selective"],
        ["--pose_chunks 50"],
        ["--packing single"],
        ["--global_batch_size 7"],
    ),
    *(
        ["--target_weights exact"],
        ["--target_weights longce"],
        ["--exact_tail 9"],
        ["--average_last 99"],
    ),
    *(
        ["--target_weights exact --distill"],
        ["--target_weights exact --method longlora"],
        ["--upsample.1k 1"],
    ),
    *(["--bf16 true --fp16 true"], ["--group_tokens 7"], ["--position_learning_rate 10x"]),
]
GRID = list(zip(itertools.cycle(FAMILIES), files.recipes_of("extend_llama"), strict=False))
"""Every shipped recipe with some family, every family with some recipes."""


@pytest.mark.parametrize(("family", "recipe"), GRID)
def test_a_remedy_works_for_every_family(family, recipe, base, monkeypatch):
    has_bitsandbytes(monkeypatch)
    found, followed = [], set()
    for (mistake,) in [[""], *MISTAKES]:
        words = ["--recipe", recipe, "--model", base(family), *SHORT, *mistake.split()]
        found += dead_ends(dry_run, words, EXTENSION.fields(), followed)
    assert found == [], "\n".join(found)
    assert len(followed) > 20


def test_a_window_that_config_json_leaves_open_is_given_in_one_step(base):
    """deepseek-coder, or Gemma 3's text model: the remedy was refused, since rope_type auto took only a factor."""
    words = [*README, "--model", base("linear without a window"), *SHORT]
    (problem,) = problems_of(dry_run, words)
    assert problem.field == "rope_parameters.original_max_position_embeddings"
    for window, factor in (("16", 16.0), ("64", 4.0)):
        assert f"give {window} if " in problem.remedy
        recipe = load_recipe([*words, f"--{problem.field}", window], kind=EXTENSION)
        describe(recipe)
        config = known_target(recipe).config
        assert (config.rope_parameters["rope_type"], config.rope_parameters["factor"]) == (
            "linear",
            factor,
        )


def test_a_list_that_fits_no_module_names_the_family_s_own(base):
    words = [*README, "--model", base("gpt_neox"), *SHORT, "--lora_targets", "q_proj,gate_proj"]
    (problem,) = problems_of(dry_run, words)
    assert (problem.field, problem.value) == ("lora_targets", ["q_proj", "gate_proj"])
    assert "lora_targets: null (those of attention: query_key_value, dense)" in problem.remedy
    assert (
        "lora_targets: all-linear (query_key_value, dense, dense_h_to_4h, dense_4h_to_h)"
        in problem.remedy
    )


def texts_of_remedies():
    """(place, text) of every piece of text that a remedy is made of: the fourth argument of a problem, and what is
    assigned to a name for it."""
    for path in sorted((ROOT / "tape_ds").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found = None
            if (
                isinstance(node, ast.Call)
                and getattr(node.func, "id", "") == "Problem"
                and len(node.args) == 4
            ):
                found = node.args[3]
            elif isinstance(node, ast.Assign | ast.AugAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = {
                    each.id
                    for target in targets
                    for each in ast.walk(target)
                    if isinstance(each, ast.Name)
                }
                found = node.value if "remedy" in names else None
            for each in ast.walk(found) if found is not None else ():
                if isinstance(each, ast.Constant) and isinstance(each.value, str):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", each.value


OF_OTHERS = {"num_accelerators", "nnodes", "metadata", "no", "field"}
"""Options of DeepSpeed's launcher, torchrun, lm-eval and pip (--no-deps), and the word for any field."""
OF_A_MODEL = {
    *(
        "max_sequence_length",
        "max_position_embeddings",
        "sliding_window",
        "use_sliding_window",
        "mlp_bias",
    ),
    "add_bos_token",
}
"""Keys of a model's ``config.json`` and ``tokenizer_config.json``."""


def test_every_option_and_field_that_a_remedy_names_exists():
    """In some program of the project; that it is the right one, and helps, is what following it shows."""
    fields = {field for kind in KINDS.values() for field in kind.fields()} | {
        "recipe",
        "base",
        *trainer.ALIASES,
    }
    code = "\n".join(
        path.read_text() for room in ("tape_ds", "tools") for path in (ROOT / room).rglob("*.py")
    )
    options = fields | set(re.findall(r'"--(\w+)"', code)) | OF_OTHERS
    seen, unknown = 0, []
    for place, text in texts_of_remedies():
        flags = re.findall(r"--(\w+)", text)
        said = re.findall(r"(?<![\w.'\"/-])([a-z]+(?:_[a-z0-9]+)+)(?:\.\w+)*: \S", text)
        seen += len(flags) + len(said)
        unknown += [
            (place, flag) for flag in flags if not {flag, flag.removeprefix("no_")} & options
        ]
        unknown += [(place, name) for name in said if name not in fields | OF_A_MODEL]
    assert unknown == []
    assert seen > 60
