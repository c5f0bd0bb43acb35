"""Whatever a library raises is a message; what this project's own code raises is a bug, and passes."""

import errno
import json
import pickle

import pytest
import torch

from tape_ds import numbers
from tape_ds.errors import Problem, UserError
from tape_ds.models.files import library_errors
from tape_ds.models.files.library_errors import as_message


def read(function, **options):
    with as_message("no model could be read", "model", "a/model", "give another", **options):
        function()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda: {}["metadata"], r"\(KeyError: 'metadata'\)"),
        (
            lambda: torch.nn.Embedding(4, 2, padding_idx=9),
            r"\(AssertionError: Padding_idx must be within",
        ),
        (lambda: json.loads("["), r"\(JSONDecodeError: Expecting value"),
        (lambda: torch.zeros(2) + torch.zeros(3), r"\(The size of tensor a"),
    ],
    ids=["key", "assertion", "json", "torch"],
)
def test_any_error_of_a_library_is_a_message(function, words):
    """A padding token without a row was torch's AssertionError, an index without metadata a KeyError."""
    with pytest.raises(UserError, match=f"no model could be read {words}") as caught:
        read(function)
    (problem,) = caught.value.problems
    assert (problem.field, problem.value, problem.remedy) == ("model", "a/model", "give another")
    assert caught.value.__cause__ is not None


def own_error():
    numbers.parse_integer  # noqa: B018 - no such name: the error is raised here, in a test


def test_an_error_of_this_project_passes(monkeypatch):
    """A message in its place would hide a bug."""
    monkeypatch.setattr(library_errors, "_PACKAGE", library_errors.Path(__file__).parent)
    with pytest.raises(AttributeError):
        read(own_error)


def test_messages_are_kept():
    def refuse():
        raise UserError(Problem("model", "x", "of another family", "give a Llama"))

    with pytest.raises(UserError, match="of another family"):
        read(refuse)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("4 GiB"),
        torch.distributed.DistBackendError("a rank is gone"),
        OSError(errno.ENOSPC, "No space left on device", "x"),
    ],
)
def test_what_fails_of_the_machine_is_no_damaged_file(error):
    def fail():
        raise error

    with pytest.raises(type(error)):
        read(fail)


def test_a_pickle_and_code_have_remedies_of_their_own():
    def pickled():
        raise pickle.UnpicklingError("Weights only load failed. Re-running `torch.load` with ...")

    def coded():
        raise ValueError(
            "Please pass the argument `trust_remote_code=True` to allow custom code to be run."
        )

    with pytest.raises(
        UserError, match=r"nothing in it was run(?s:.*)remedy: give safetensors"
    ) as caught:
        read(pickled)
    assert "Re-running" not in str(caught.value)
    with pytest.raises(UserError, match=r"without running the code(?s:.*)remedy: give another"):
        read(coded)
    with pytest.raises(
        UserError, match=r"without running the code(?s:.*)remedy: .*--trust_remote_code"
    ):
        read(coded, trust_remote_code=False)


def test_credentials_in_a_library_s_words_are_not_shown(capsys, monkeypatch):
    from tape_ds.errors import command

    monkeypatch.setenv("HF_TOKEN", "canary-canary")

    def fail():
        raise ValueError("https://me:canary-canary@host/x answered 401")

    assert command(lambda: read(fail))() == 2
    shown = capsys.readouterr().err
    assert "canary" not in shown and "answered 401" in shown
