"""``tape-ds plan``: the layout it chooses, its exit codes, and refusals."""

import pytest

from tape_ds.cli import plan
from tape_ds.exit_codes import ExitCode


def said(capsys, *argv):
    """Exit code and what was printed."""
    code = plan.main(list(argv))
    out, err = capsys.readouterr()
    return code, out + err


def test_the_flags_of_a_chosen_layout_give_the_same_page(capsys):
    argv = ["llama2_7b_8k", "--gpus", "8", "--gpu", "a100-80"]
    code, out = said(capsys, *argv)
    flags = "--deepspeed zero1 --activation_checkpointing false --per_device_train_batch_size 1"
    first, _, page = out.partition("\n\n")
    assert code == 0 and f": {flags} (the fastest on a100-80 with 27.0 GiB to spare; " in first
    assert said(capsys, *argv, *flags.split()) == (0, page)


def test_a_search_prints_its_winner_s_flags(capsys):
    cautious = (
        "--deepspeed",
        "zero3",
        "--activation_checkpointing",
        "true",
        "--per_device_train_batch_size",
        "1",
    )
    code, out = said(capsys, "llama2_7b_8k", "--gpus", "8", "--gpu", "h200", "--search", *cautious)
    flags = "--deepspeed zero1 --per_device_train_batch_size 1 --activation_checkpointing false"
    assert code == 0 and f"its flags:\n  {flags}\n" in out


def test_a_layout_that_does_not_fit_has_its_exit_code(capsys):
    code, out = said(capsys, "c4_7b", "--gpus", "1", "--gpu", "a100-40")
    assert code == ExitCode.DOES_NOT_FIT and "IT DOES NOT FIT" in out


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--documents", "0"], "2 problems"),
        (["nonsense"], "no such recipe"),
        (["llama2_7b_8k", "--gpu", "a1000"], "unknown GPU"),
        (["llama2_7b_8k", "--gpus", "8", "--tensor_parallel_size", "3"], "does not divide"),
        (["llama2_7b_8k", "--price", "nan"], "not a price"),
        (
            [
                "llama2_7b_8k",
                *["--documents", "4", "--attend_across", "true", "--append_eos", "true"],
            ],
            "have no borders",
        ),
        (["llama2_7b_8k", "--windoww", "3"], "windoww"),
    ],
)
def test_refusals(argv, named, capsys):
    code, out = said(capsys, *argv)
    assert code == 2 and named in out
