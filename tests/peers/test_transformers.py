"""transformers' own model tests, of the installed version, pass on our models.

They come out of its source package, which pip downloads once. That package holds ``tests/test_*.py`` and no folder
beside them: the tests of models and of training are there, those of generation and of export are not.
"""

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from xml.etree import ElementTree

import pytest
import transformers

ROOT = Path(__file__).resolve().parents[2]
NAME = f"transformers-{transformers.__version__}"
PARAMETERIZED = "parameterized==0.9.0"
"""What the tests import beside what is installed here."""
MISSING = {
    "exporters/test_export.py": "ExportTesterMixin",
    "generation/test_utils.py": "GenerationTesterMixin",
}
"""What they import from folders that the source package leaves out: empty here."""

_WEIGHTS = "asks for attention weights of sdpa, which has none: ours refuses, and names the remedy"
_WINDOW = "leaves another window in the angles: in a TapeConfig that is the one dynamic scaling counts from"
_NO_ANGLES = "this encoding has no angles to scale"
SCALED = "test_model_rope_scaling_from_config"
NOT_APPLICABLE = {
    "tape": {
        "test_capture_outputs_decorator": _WEIGHTS,
        "test_model_outputs_equivalence": _WEIGHTS,
        f"{SCALED}_1_dynamic": _WINDOW,
    }
}
NOT_APPLICABLE["rope"] = NOT_APPLICABLE["tape"]
NOT_APPLICABLE["alibi"] = {
    **NOT_APPLICABLE["tape"],
    **{f"{SCALED}_{kind}": _NO_ANGLES for kind in ("0_linear", "1_dynamic", "2_yarn")},
}


def pip(*arguments: str) -> None:
    """Skip the test where pip gets nothing: there may be no network."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        pytest.skip(f"pip {arguments[0]} failed: {done.stderr.strip().splitlines()[-1]}")


@pytest.fixture(scope="module")
def sources() -> Path:
    """The folder that holds the tests, and what they import."""
    folder = ROOT / ".cache" / "peers" / NAME
    if (folder / "ready").exists():
        return folder
    pip(
        "download",
        "--no-deps",
        "--no-binary",
        ":all:",
        NAME.replace("-", "=="),
        "--dest",
        str(folder),
    )
    pip("install", "--no-deps", "--upgrade", "--target", str(folder), PARAMETERIZED)
    with tarfile.open(folder / f"{NAME}.tar.gz") as archive:
        found = [each for each in archive if re.fullmatch(rf"{NAME}/tests/test_\w+\.py", each.name)]
        for member in found:
            member.name = f"transformers_tests/{Path(member.name).name}"
        archive.extractall(folder, found, filter="data")
    if not (folder / "transformers_tests/test_modeling_common.py").exists():
        pytest.skip(f"the source package of {NAME} holds no model tests")
    for path, name in MISSING.items():
        stub = folder / "transformers_tests" / path
        stub.parent.mkdir(exist_ok=True)
        stub.write_text(f"class {name}:\n    pass\n")
    (folder / "ready").touch()
    return folder


def outcomes(report: Path) -> tuple[dict[str, str], int]:
    """Tests that failed, subtests among them, with the first line of what they said; and how many there were."""
    failed, cases = {}, ElementTree.parse(report).getroot().findall(".//testcase")
    for case in cases:
        for found in (*case.findall("failure"), *case.findall("error")):
            name = re.match(r"\w*", case.attrib["name"])[0]
            failed.setdefault(name, found.attrib["message"].partition("\n")[0])
    return failed, len(cases)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", NOT_APPLICABLE)
def test_their_model_tests(sources, tmp_path, encoding):
    """What does not apply has its reason above, and fails; everything else passes or says why it is skipped."""
    report = tmp_path / "report.xml"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-ra",
        "--import-mode=importlib",
        "-p",
        "no:cacheprovider",
    ]
    # our markers are not theirs, and strict; some of their tests would start a process each
    command += ["-o", "addopts=", "-W", "ignore", f"--junitxml={report}"]
    command += [f"{ROOT / 'tests/peers/cases.py'}::{encoding.title()}"]
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{sources}",
        "_INSIDE_SUB_PROCESS": "1",
    }
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800
    )
    print(done.stdout[-6000:])
    assert report.exists(), done.stderr[-2000:]
    failed, count = outcomes(report)
    assert count > 100, "most of the suite was not collected"
    unexpected = {
        name: said for name, said in failed.items() if name not in NOT_APPLICABLE[encoding]
    }
    assert not unexpected
    assert failed.keys() == NOT_APPLICABLE[encoding].keys(), (
        "a test of the list passes now: take it out"
    )
