"""Where things lie, in a checkout and in a wheel, and that no script runs another checkout's package."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import setuptools

from tape_ds import installation
from tape_ds.installation import ROOT, root_of

CHECKOUT = Path(__file__).resolve().parents[1]


def test_in_a_checkout_everything_starts_from_its_top():
    assert ROOT == installation.work() == CHECKOUT
    assert root_of(CHECKOUT / "tools" / "experiment" / "__main__.py") == CHECKOUT


def test_an_installed_package_writes_nothing_beside_itself(monkeypatch, tmp_path):
    monkeypatch.setattr(installation, "ROOT", tmp_path / "site-packages" / "tape_ds" / "shipped")
    monkeypatch.chdir(tmp_path)
    assert installation.work() == tmp_path


def test_a_command_finds_modules_and_programs(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/mine")
    found = installation.environment()
    assert found["PYTHONPATH"] == f"{ROOT}:/mine"
    assert found["PATH"].split(":")[0] == str(Path(sys.executable).parent)


def test_a_wheel_holds_the_template_of_the_report(monkeypatch):
    given = {}
    monkeypatch.setattr(setuptools, "setup", lambda **words: given.update(words))
    monkeypatch.chdir(CHECKOUT)
    runpy.run_path("setup.py")
    name = "tape_ds.shipped.evaluation.pages"
    assert name in given["packages"] and given["package_data"][name] == ["*"]


SCRIPTS = [
    script.name
    for script in sorted((CHECKOUT / "tools").glob("*.py"))
    if f"python tools/{script.name}" in script.read_text()
]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_tool_runs_as_its_docstring_says_from_anywhere(name, tmp_path):
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    script = str(CHECKOUT / "tools" / name)
    asked = subprocess.run(
        [sys.executable, script, "--help"], cwd=tmp_path, env=variables, capture_output=True, text=True
    )
    assert asked.returncode == 0, asked.stderr[-2000:]
    assert asked.stdout.startswith(f"usage: {name}")


@pytest.fixture
def another(tmp_path):
    """A second checkout, with a launcher that says so when it runs."""
    for name, text in (("tape_ds/__init__.py", ""), ("launchers/my.py", "import tape_ds\nprint('ran', tape_ds)\n")):
        file = tmp_path / "second" / name
        file.parent.mkdir(parents=True)
        file.write_text(text)
    return tmp_path / "second"


@pytest.mark.parametrize(
    ("script", "root"),
    [
        ("second/launchers/my.py", "second"),
        ("second/tools/deep/below/it.py", "second"),
        ("wheel/tape_ds/shipped/evaluation/__main__.py", "wheel/tape_ds/shipped"),
        ("second/.venv/bin/pytest", None),
        ("second/tape_ds/my.py", None),
        ("mine/tools/my.py", None),
    ],
)
def test_what_a_script_belongs_to(another, tmp_path, script, root):
    package = tmp_path / "wheel" / "tape_ds" / "__init__.py"
    package.parent.mkdir(parents=True)
    package.touch()
    assert root_of(tmp_path / script) == (root and tmp_path / root)


def start(script, **environment):
    """A script of the second checkout, where Python finds this one's package."""
    own = {**os.environ, "PYTHONPATH": str(CHECKOUT), **environment}
    return subprocess.run([sys.executable, str(script)], env=own, capture_output=True, text=True)


def test_a_script_of_another_checkout_is_ended_before_it_has_run(another):
    ended = start(another / "launchers" / "my.py")
    assert ended.returncode == 2 and "ran" not in ended.stdout and "Traceback" not in ended.stderr
    assert f"tape_ds = '{CHECKOUT / 'tape_ds'}': not the package that {another}/launchers/my.py" in ended.stderr
    assert f"PYTHONPATH={another} python" in ended.stderr


def test_the_remedy_helps(another):
    ended = start(another / "launchers" / "my.py", PYTHONPATH=str(another))
    assert ended.returncode == 0 and str(another / "tape_ds") in ended.stdout, ended.stderr
