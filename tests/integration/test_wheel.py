"""A wheel where there is what it declares to need and nothing else, used from a folder that holds nothing."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile

import pytest

from tests.integration import clean_environment
from tests.integration.conftest import TEXT
from tests.processes import ROOT, free_port

pytestmark = pytest.mark.slow

LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "*.egg-info", "tests")
SMALL = (
    *(
        "--hidden_size",
        "32",
        "--intermediate_size",
        "64",
        "--num_hidden_layers",
        "2",
        "--num_attention_heads",
        "2",
    ),
    *(
        "--vocab_size",
        "320",
        "--window",
        "64",
        "--eval_tokens",
        "1024",
        "--max_steps",
        "2",
        "--warmup_steps",
        "1",
    ),
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built of a copy: setuptools leaves a folder ``build``, and takes what lies in it."""
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "source").mkdir()
    for each in ROOT.iterdir():
        if (
            each.is_dir()
            and each.name != "runs"
            and each.name not in LEFT_OUT(str(ROOT), [each.name])
        ):
            shutil.copytree(each, folder / "source" / each.name, ignore=LEFT_OUT)
        elif each.is_file():
            shutil.copy(each, folder / "source")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", str(folder), str(folder / "source")], check=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """The environment's folder of programs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    folder = tmp_path_factory.mktemp("environment")
    python = clean_environment.build(folder, project["dependencies"])
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-deps",
        str(wheel),
    ]
    subprocess.run(install, check=True)
    return python.parent


@pytest.fixture
def user(environment, tmp_path):
    """Start ``tape-ds`` as somebody who has no checkout; returns what it prints."""
    own = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }

    def start(*words, code=0):
        done = subprocess.run(
            [environment / "tape-ds", *words],
            cwd=tmp_path,
            env=own,
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == code, done.stdout[-2000:] + done.stderr[-4000:]
        assert str(ROOT) not in done.stdout + done.stderr, "something of the checkout"
        return done.stdout

    return start


def test_the_wheel_has_every_file_of_the_package_and_one_top_level_name(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.split("/")[0].split("-")[0] for name in names} == {"tape_ds"}
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    listed = [name for name in listed if (ROOT / name).exists()]
    wanted = {name for name in listed if name.startswith("tape_ds/")}
    wanted |= {
        f"tape_ds/{name}"
        for name in listed
        if name.startswith("ds_configs/") and name.endswith(".json")
    }
    recipes = {
        name.removeprefix("launchers/") for name in listed if name.startswith("launchers/recipes/")
    }
    wanted |= {f"tape_ds/{name}" for name in recipes}
    assert len(recipes) > 20 and wanted <= names


def test_commands_that_only_look(user):
    assert "evaluate" in user("--help")
    assert [line.split("/site-packages/")[1] for line in user("--folder").splitlines()] == [
        "tape_ds/recipes",
        "tape_ds/ds_configs",
    ]
    assert "max_steps: 400" in user("pretrain", "--print_config")
    assert "--target_length" in user("extend", "--help") and "llama3_8b_32k_qlora_24gb" in user(
        "extend", "--list"
    )
    assert "6.755 B" in user("plan", "llama2_7b_8k", "--gpus", "8", "--gpu", "a100-80")
    user("extned", code=2)


def test_a_model_is_trained_and_scored(user, tmp_path):
    """Scored by two processes, so through DeepSpeed's launcher: modules are found there, too."""
    for name in ("mine", "held"):
        (tmp_path / f"{name}.txt").write_text(f"# {name}\n{TEXT}")
    data = ("--train_data", '["text:mine.txt"]', "--eval_data", '["text:held.txt"]')
    user("pretrain", *SMALL, *data, "--output_dir", "run")
    assert (tmp_path / "run" / "results" / "run.json").is_file()
    words = ("run", "--data", "text:held.txt", "--lengths", "64", "128")
    user(
        "evaluate",
        "perplexity",
        *words,
        "--num_accelerators",
        "2",
        "--master_port",
        str(free_port()),
    )
    assert (tmp_path / "run" / "evaluation" / "perplexity.json").is_file()
