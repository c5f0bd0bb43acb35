"""Whether a command line of an experiment is one that its program takes: asked of the program's own parser."""

import importlib

from benchmarks import __main__ as benchmarks
from benchmarks.groups import GROUPS
from evaluation import (
    arithmetic_options,
    harness_options,
    passkey_options,
    perplexity_options,
)
from evaluation.scrolls import compare, generate_options
from tape_ds.errors import raise_if_any
from tape_ds.training.comparison import options
from tools import plan
from tools.reproduce.estimate import STAND_IN

EVALUATIONS = {
    "arithmetic": arithmetic_options,
    "harness": harness_options,
    "passkey": passkey_options,
    "perplexity": perplexity_options,
}


def take(command):
    """Hand the command line to its program, which raises or exits where it takes it for wrong; nothing is run."""
    words = list(command)
    if words[0] == "deepspeed":
        at = next(i for i, word in enumerate(words) if word.startswith("launchers/") or word == "--module")
        words = ["python", "-m", *words[at + 1 :]] if words[at] == "--module" else words[at:]
    if words[0].startswith("launchers/"):
        of_launcher(words)
    elif words[:3] == ["python", "-m", "evaluation"]:
        of_evaluation(words[3], words[4:])
    elif words[:3] == ["python", "-m", "benchmarks"]:
        assert set(benchmarks.parse(words[3:]).groups) <= set(GROUPS)
    else:
        named = words[2] if words[1] == "-m" else words[1].removesuffix(".py").replace("/", ".")
        of_tool(importlib.import_module(named), words[3:] if words[1] == "-m" else words[2:])


def of_evaluation(name, words):
    """Its options, and what it finds wrong with them before it looks for the model."""
    if name == "scrolls":
        {"generate": generate_options, "compare": compare}[words[0]].parse(words[1:])
        return
    module = EVALUATIONS[name]
    raise_if_any(module.check(module.parse(words)))


def of_launcher(words):
    """Its recipe, loaded as the launcher loads it; a model that is yet to be trained is stood in for."""
    script, *rest = words
    at = rest.index("--recipe")
    fields = [*rest[:at], *rest[at + 2 :]]
    if "--model" in fields:
        fields[fields.index("--model") + 1] = STAND_IN
    recipe = plan.load(rest[at + 1], fields, 2)
    assert script == f"launchers/{recipe.LAUNCHER}.py"


def of_tool(module, words):
    """Its options; a comparing tool checks all of its runs as well."""
    if not module.__name__.startswith("tools.compare_"):
        module.parse(words)
        return
    own, passed_on = options.split(words)
    module.check(module.parse(own), passed_on)
