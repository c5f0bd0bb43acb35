"""Hostfiles as people write them: read as DeepSpeed reads them, or refused by line before it starts."""

import os
import re
import time

import pytest
from deepspeed.launcher import runner

from tape_ds import exit_codes
from tape_ds.cli import program
from tape_ds.distributed import hostfile
from tape_ds.errors import UserError

SSH = """#!/bin/sh
# stands in for ssh: the machine is the last word but one
for word; do before=$machine; machine=$word; done
case $before in
    slow*) sleep 60;;
    latin*) printf 'caf\\351: closed\\n' >&2; exit 255;;
    *@off*|off*) echo "ssh: connect to host $before port 22: No route to host" >&2; exit 255;;
    *) echo "$before $*" >> "$ASKED"; echo "$before";;
esac
"""


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Writes a hostfile, the folder's only one; ssh and pdsh are stand-ins."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("ssh", SSH), ("pdsh", "#!/bin/sh\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    monkeypatch.setattr(hostfile, "SECONDS", 2.0)
    monkeypatch.chdir(tmp_path)

    def write(text):
        (tmp_path / "hosts").write_bytes(text if isinstance(text, bytes) else text.encode())
        return ["--hostfile", "hosts"]

    return write


RIGHT = [
    "node1 slots=8\nnode2 slots=4\n",
    "\n# mine\n  node1   slots=8  \n\n10.0.0.2\tslots=1 # the other\n",
    "node1 slots=8 max_slots=16\r\nme@10.0.0.2 slots=8\r\n",
    "node-1.cluster.local slots=2",
    "fe80::1%eth0 slots=2",
]
WRONG = {
    "gpu54\ngpu56\n": ["line 1 is 'gpu54'", "line 2 is 'gpu56'"],
    "10.0.0.1 slots=8\n10.0.0.2 lots=8\n": ["line 2 is '10.0.0.2 lots=8'"],
    "n1 slots=2\nn1 slots=2\n": ["line 2: n1 is in line 1 already"],
    "": ["no line names a machine"],
    "# node1 slots=8\n": ["no line names a machine"],
    "node1:8\n": ["line 1 is 'node1:8'"],
    "node1 cpu=2\n": ["line 1 is 'node1 cpu=2'"],
    "node1 slots = 8\n": ["line 1 is 'node1 slots = 8'"],
    "slots=8\n": ["line 1 is 'slots=8'"],
    "slots=8 node1\n": ["line 1 is 'slots=8 node1'"],
}
OURS = {
    "node1 slots=0\n": ["line 1 is 'node1 slots=0': no number of processes"],
    "node1 slots=8x\n": ["line 1 is 'node1 slots=8x': no number of processes"],
    "\ufeffnode1 slots=8\n": ["a byte order mark"],
    "node1, slots=8\n": ["line 1: 'node1,' is no name of a machine"],
    "-oProxyCommand=x slots=8\n": ["line 1: '-oProxyCommand=x' is no name of a machine"],
    "-n1 slots=8\nme@-n1 slots=8\n": [
        "line 1: '-n1' is no name of a machine",
        "line 2: 'me@-n1' is no name",
    ],
    "10.0.0.1:22 slots=8\nn1: slots=8\n": [
        "line 1: '10.0.0.1:22' is no name",
        "line 2: 'n1:' is no name of a machine",
    ],
    "n1 slots=99999999\n": ["line 1 is 'n1 slots=99999999': no number of processes"],
    f"n1 slots={'9' * 5000}\n": ["line 1 is 'n1 slots=999"],
}


@pytest.mark.parametrize("text", RIGHT)
def test_what_deepspeed_reads_is_taken(written, text):
    options = written(text)
    assert hostfile.check(options) == []
    pool = runner._parse_hostfile(text.splitlines())
    assert hostfile.machines(options) == {host: list(range(slots)) for host, slots in pool.items()}


@pytest.mark.parametrize(("text", "found"), [*WRONG.items(), *OURS.items()])
def test_what_is_malformed_is_refused_by_line(written, text, found):
    """DeepSpeed ended with a traceback, or asked a machine that has no such name."""
    options = written(text)
    problems = hostfile.check(options)
    assert len(problems) == len(found)
    for problem, beginning in zip(problems, found, strict=True):
        assert beginning in problem.wrong and problem.field == "--hostfile"
    if text in WRONG:
        with pytest.raises(ValueError, match="Hostfile"):
            runner._parse_hostfile(text.splitlines())
    assert program.main(["extend", *options, "--recipe", "x"]) == 2


def test_a_remedy_can_be_followed(written):
    for text in WRONG:
        for problem in hostfile.check(written(text)):
            if line := re.search(r"write it as '(.*)'", problem.remedy):
                assert hostfile.check(written(line[1])) == [], problem
    (problem,) = hostfile.check(written("slots=2 node1\n"))
    assert problem.remedy == "write it as 'node1 slots=2'"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--include", "n2:0,1"], {"n2": [0, 1]}),
        (["--exclude", "n1@n2:0"], {"n2": [1]}),
        (["--num_nodes", "1"], {"n1": [0, 1]}),
        (["--num_gpus=1"], {"n1": [0], "n2": [0]}),
        (
            ["--include", "n3"],
            "--include = 'n3': Hostname 'n3' not found in hostfile\n.*node1@node2:0,1, of .*: n1, n2",
        ),
        (["--include", "n1:7"], "No slot '7' specified on host 'n1'"),
        (["--include", "n1:a"], "--include = 'n1:a'"),
        (["--include", "n1", "--num_gpus", "2"], "not with a number"),
        (["--exclude", "n1@n2"], "no machine is left"),
        (["--num_nodes", "3"], "--num_nodes = 3: hosts has 2: n1, n2"),
    ],
)
def test_options_choose_as_deepspeed_does(written, words, found):
    options = written("n1 slots=2\nn2 slots=2\n") + words
    if isinstance(found, str):
        with pytest.raises(UserError, match=f"(?s){found}"):
            hostfile.machines(options)
    else:
        assert hostfile.machines(options) == found


def test_every_machine_is_asked_at_once_and_those_without_an_answer_are_named(
    written, tmp_path, capsys, monkeypatch
):
    """DeepSpeed asked the first one, and waited for more than a minute without a word."""
    options = written("n1 slots=1\nslow1 slots=1\nslow2 slots=1\nme@off slots=1\n")
    began = time.monotonic()
    with pytest.raises(UserError) as caught:
        hostfile.machines([*options, "--ssh_port", "2222"])
    assert time.monotonic() - began < 30, "one after another, or without an end"
    wrong = [problem.wrong for problem in caught.value.problems]
    assert wrong == [
        "slow1 does not answer (nothing within 2 s)",
        "slow2 does not answer (nothing within 2 s)",
        "me@off does not answer (ssh: connect to host me@off port 22: No route to host)",
    ]
    asked = "ssh -o BatchMode=yes -o ConnectTimeout=10 -p 2222 me@off hostname"
    assert asked in caught.value.problems[-1].remedy
    assert "asking 4 machines of hosts by ssh, for 2 s at most" in capsys.readouterr().err
    assert (tmp_path / "asked").read_text().startswith("n1 -o BatchMode=yes")

    assert caught.value.exit_code == 2
    monkeypatch.setenv(exit_codes.FILE, "x")  # keep_alive tries again after 1, and not after 2
    with pytest.raises(UserError) as caught:
        hostfile.machines([*written("off slots=1\n")])
    assert caught.value.exit_code == 1


def test_words_of_ssh_in_another_encoding_are_shown(written):
    """They ended the command with a UnicodeDecodeError."""
    with pytest.raises(UserError, match=r"latin1 does not answer .caf.: closed"):
        hostfile.machines(written("latin1 slots=1\n"))


@pytest.mark.parametrize("flag", ["--no_ssh", "--no_ssh_check"])
def test_nothing_is_asked_where_the_command_says_so(written, flag, capsys):
    assert hostfile.machines([*written("off slots=1\n"), flag]) == {"off": [0]}
    assert capsys.readouterr().err == ""


def test_pdsh_is_missed_before_deepspeed_misses_it(written, tmp_path):
    (tmp_path / "bin" / "pdsh").unlink()
    if hostfile.shutil.which("pdsh") is not None:
        pytest.skip("this machine has it")
    with pytest.raises(UserError, match="starts its machines with pdsh, not installed here"):
        hostfile.machines(written("n1 slots=1\nn2 slots=1\n"))
    assert hostfile.machines(written("n1 slots=1\n")) == {"n1": [0]}, (
        "DeepSpeed starts this one itself"
    )


def test_the_file_that_is_read_without_being_named(written, monkeypatch):
    assert runner.DLTS_HOSTFILE == hostfile.DEFAULT
    written("n1 slots=3\n")
    monkeypatch.setattr(hostfile, "DEFAULT", "hosts")
    assert hostfile.machines(["--num_gpus", "2"]) == {"n1": [0, 1]}
    written("n1\n")
    with pytest.raises(UserError, match="line 1 is 'n1'"):
        hostfile.machines([])
    monkeypatch.setattr(hostfile, "DEFAULT", "none")
    assert hostfile.machines([]) == {}
