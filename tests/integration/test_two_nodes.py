"""Two machines for real on one: two launchers with ``--no_ssh``, two torchruns, ssh to two of its addresses."""

import contextlib
import getpass
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tape_ds import checkpoint, run_folder
from tape_ds.resilience import run_lock
from tests.processes import ROOT, Launch, free_port

PRETRAIN = "launchers/pretrain_c4.py"
NODES = "tests/integration/workers/nodes.py"
"""Begins as the launchers do, and can break down."""
SECONDS = 240
"""Longer than any job of these tests takes, on a busy machine as well."""
ADDRESSES = ("127.0.0.2", "127.0.0.3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``text.txt``, and ``hosts`` with two machines of one rank each."""
    made = tmp_path_factory.mktemp("nodes")
    lines = (f"def function_{i}(value):\n    return value + {i}\n" for i in range(1200))
    (made / "text.txt").write_text("\n".join(lines))
    (made / "hosts").write_text("".join(f"{address} slots=1\n" for address in ADDRESSES))
    return made


def flags(folder: Path, output: Path, **changes: object) -> list[str]:
    """A model of two small layers."""
    fixed = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": 330,
        "position_encoding": "rope",
        "train_data": f"text:{folder}/text.txt",
        "eval_data": "[]",
        "data_cache": folder / "cache",
        "window": 32,
        "global_batch_size": 4,
        "per_device_train_batch_size": 1,
        "max_steps": 4,
        "save_steps": 2,
        "logging_steps": 1,
        "bf16": "false",
        "deepspeed": "zero1",
        "output_dir": output,
    }
    return [part for name, value in (fixed | changes).items() for part in (f"--{name}", str(value))]


def runner(folder: Path, node: int, port: int) -> list[str]:
    """DeepSpeed's launcher for one machine."""
    own = [
        "--no_ssh",
        "--node_rank",
        str(node),
        "--master_addr",
        "127.0.0.1",
        "--master_port",
        str(port),
    ]
    return [
        sys.executable,
        "-m",
        "deepspeed.launcher.runner",
        "--hostfile",
        str(folder / "hosts"),
        *own,
    ]


def torchrun(folder: Path, node: int, port: int) -> list[str]:
    """torchrun for one machine."""
    program = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes",
        "2",
        "--nproc_per_node",
        "1",
    ]
    return [
        *program,
        "--node_rank",
        str(node),
        "--master_addr",
        "127.0.0.1",
        "--master_port",
        str(port),
    ]


def both(
    tmp_path: Path,
    folder: Path,
    words: Sequence[Sequence[str]],
    start=runner,
    environments: Sequence[dict[str, str]] = ({}, {}),
) -> tuple[list[int], list[str]]:
    """Exit code, and what was printed, of each machine's launcher."""
    port = free_port()
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(
                Launch(
                    [*start(folder, node, port), *own], tmp_path / f"node{node}.log", environment
                )
            )
            for node, (own, environment) in enumerate(zip(words, environments, strict=True))
        ]
        return [each.wait(SECONDS) for each in started], [each.printed for each in started]


def test_two_machines_train_together(tmp_path, folder):
    words = [PRETRAIN, *flags(folder, tmp_path / "run")]
    codes, printed = both(tmp_path, folder, [words, words])
    assert codes == [0, 0], printed
    assert (
        run_folder.read_marker(tmp_path / "run" / run_folder.FINISHED)["step"] == 4
        and "2 processes" in printed[0]
    )
    assert [each.name for each in checkpoint.committed(tmp_path / "run")] == [
        "checkpoint-2",
        "checkpoint-4",
    ]


@pytest.mark.slow
def test_a_machine_that_differs_is_named_and_both_end(tmp_path, folder):
    """Another recipe and another version of the code on the second one."""
    for name in ("tape_ds", "launchers", "ds_configs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tape_ds" / "training" / "metrics.py").open("a").write("# another version\n")
    words = [PRETRAIN, *flags(folder, tmp_path / "run")]
    other = [str(tmp_path / PRETRAIN), *flags(folder, tmp_path / "run", learning_rate=0.5)]
    codes, printed = both(
        tmp_path, folder, [words, other], environments=[{}, {"PYTHONPATH": str(tmp_path)}]
    )
    assert codes == [2, 2], printed
    assert "code on node_rank 1" in printed[0] and "tape_ds/training/metrics.py" in printed[0]
    assert "learning_rate on node_rank 1" in printed[0] and "= '0.5'" in printed[0]
    assert "the run does not start; see the first machine's output" in printed[1]
    assert "Traceback" not in "".join(printed) and not (tmp_path / "run").exists()


@pytest.mark.slow
def test_torchrun_brings_the_machines_together_and_ends_both_when_one_breaks_down(tmp_path, folder):
    words = [NODES, *flags(folder, tmp_path / "run")]
    codes, printed = both(tmp_path / "well", folder, [words, words], torchrun)
    assert codes == [0, 0] and "together: 2 ranks" in printed[0], printed
    codes, printed = both(tmp_path / "broken", folder, [words, [*words, "--break_down"]], torchrun)
    assert codes == [1, 1], printed
    assert (
        "start on node_rank 1" in printed[0]
        and "ended with KeyError: 'a library is broken here'" in printed[0]
    )


TWO_HOSTS = """
set -e
ip link set lo up
unshare --net --mount --uts sleep infinity & other=$!
trap 'kill $other' EXIT
until [ "$(readlink /proc/$other/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done
enter="nsenter --target $other --net --mount --uts"
ip link add tds0 type veth peer name tds1 netns $other
ip addr add 10.77.0.1/24 dev tds0; ip link set tds0 up
$enter ip addr add 10.77.0.2/24 dev tds1; $enter ip link set tds1 up; $enter ip link set lo up
own() { printf "127.0.0.1 localhost\n127.0.1.1 $1\n$2\n" > "$3/$1"; echo "mount --bind $3/$1 /etc/hosts; hostname $1"; }
bash -c "$(own first '10.77.0.2 second' "$1")"
$enter bash -c "$(own second '10.77.0.1 first' "$1")"
[ $# -gt 1 ] || exit 0
common="MASTER_ADDR=first MASTER_PORT=29777 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_SIZE=1 CROSS_SIZE=2"
shift
env $common RANK=0 CROSS_RANK=0 "$@" & first=$!
code=0
$enter env $common RANK=1 CROSS_RANK=1 "$@" || code=$?
wait $first || code=$?
exit $code
"""
"""Two hosts of namespaces, each with the /etc/hosts of Debian and Ubuntu; then the command of $2..., on both."""


@pytest.mark.slow
def test_hosts_whose_own_name_is_a_loopback_address_find_each_other(tmp_path, folder):
    """Gloo connected to 127.0.1.1, and every job over such machines ended with its first group."""
    hosts = [
        "unshare",
        "--user",
        "--map-root-user",
        "--net",
        "--mount",
        "--uts",
        "bash",
        "-c",
        TWO_HOSTS,
        "hosts",
    ]
    tried = subprocess.run([*hosts, str(tmp_path)], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"this machine makes no namespaces for its users: {tried.stderr.strip()}")
    # a mount namespace begins in /
    job = [sys.executable, str(ROOT / NODES), *flags(folder, tmp_path / "run")]
    with Launch([*hosts, str(tmp_path), *job], tmp_path / "log") as started:
        assert started.wait(SECONDS) == 0, started.printed
        assert "together: 2 ranks" in started.printed


FAKE_SRUN = """#!/bin/bash
# One task a machine, all on this one; the worst exit code.
while [[ "$1" == --* ]]; do shift; done
for node in 0 1; do SLURM_NODEID=$node "$@" & started+=($!); done
worst=0
for each in "${started[@]}"; do wait "$each" || { code=$?; (( code > worst )) && worst=$code; }; done
exit $worst
"""


@pytest.mark.slow
def test_the_slurm_script_starts_a_launcher_a_machine(tmp_path, folder):
    for name, text in {
        "srun": FAKE_SRUN,
        "scontrol": f"#!/bin/sh\nprintf '{ADDRESSES[0]}\\n{ADDRESSES[1]}\\n'\n",
    }.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    submitted = tmp_path / "checkout"
    submitted.mkdir()
    for name in ("launchers", "ds_configs", ".venv"):
        (submitted / name).symlink_to(ROOT / name)
    job = {
        "SLURM_SUBMIT_DIR": str(submitted),
        "SLURM_JOB_ID": str(free_port()),
        "SLURM_JOB_NODELIST": "node[1-2]",
    }
    job |= {"SLURM_GPUS_ON_NODE": "1", "SLURM_JOB_NUM_NODES": "2", "SLURM_CPUS_ON_NODE": "2"}
    job |= {"PATH": f"{Path(sys.executable).parent}:{tmp_path}:{os.environ['PATH']}"}
    command = [
        "bash",
        "launchers/slurm.sbatch",
        "launchers/pretrain_c4.py",
        *flags(folder, tmp_path / "run"),
    ]
    with Launch(command, tmp_path / "log", job) as started:
        assert started.wait(SECONDS) == 0, started.printed
        assert "keep_alive: finished" in started.printed
        assert run_folder.read_marker(tmp_path / "run" / run_folder.FINISHED)["step"] == 4


@pytest.fixture(scope="module")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """An ssh server of its own on two addresses of this machine, the second one's logins with another
    ``TAPE_DS_ATTENTION`` where :file:`differs` is; a ``PATH`` whose ssh finds it, as ``~/.ssh/config`` would say."""
    sshd = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
    if sshd is None or shutil.which("pdsh") is None:
        pytest.skip("needs sshd and pdsh: apt install openssh-server pdsh")
    made = tmp_path_factory.mktemp("ssh")
    for name in ("host", "own"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", made / name], check=True
        )
    port, key = free_port(), (made / "host.pub").read_text().split(" ", 1)[1].strip()
    (made / "known").write_text(
        "".join(f"[{address}]:{port} ssh-ed25519 {key}\n" for address in ADDRESSES)
    )
    listen = "".join(f"ListenAddress {address}\n" for address in ADDRESSES)
    (made / "sshd_config").write_text(
        f"Port {port}\n{listen}HostKey {made}/host\nAuthorizedKeysFile {made}/own.pub\nPidFile none\nStrictModes no\n"
        f"PasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\nAllowUsers {getpass.getuser()}\n"
    )
    (made / "config").write_text(
        f"Host *\n  Port {port}\n  IdentityFile {made}/own\n  IdentitiesOnly yes\n  UserKnownHostsFile {made}/known\n"
    )
    if os.getuid() == 0:
        # where sshd shuts in the process that speaks to strangers
        Path("/run/sshd").mkdir(exist_ok=True)
    server = subprocess.Popen([sshd, "-D", "-f", made / "sshd_config", "-E", made / "log"])
    (made / "ssh").write_text(
        f'#!/bin/sh\nexec {shutil.which("ssh")} -F {shlex.quote(str(made))}/config "$@"\n'
    )
    (made / "ssh").chmod(0o755)
    probe = ["ssh", "-F", made / "config", "-o", "BatchMode=yes", ADDRESSES[1], "true"]
    try:
        for _ in range(50):
            if subprocess.run(probe, capture_output=True).returncode == 0:
                break
            time.sleep(0.2)
        else:
            pytest.skip(f"sshd lets nobody in here: {(made / 'log').read_text()[-500:]}")
        yield {"PATH": f"{made}{os.pathsep}{os.environ['PATH']}"}
    finally:
        server.terminate()
        server.wait()


def by_ssh(hosts: Path, *words: str) -> list[str]:
    """``deepspeed --hostfile ...`` as a user types it."""
    own = [
        "--hostfile",
        str(hosts),
        "--master_addr",
        "127.0.0.1",
        "--master_port",
        str(free_port()),
    ]
    return [sys.executable, "-m", "deepspeed.launcher.runner", *own, *words]


@pytest.mark.slow
def test_keep_alive_starts_again_what_ssh_had_started(tmp_path, folder, ssh):
    output = tmp_path / "run"
    words = ["launchers/pretrain_c4.py", *flags(folder, output, max_steps=60, save_steps=5)]
    command = [
        sys.executable,
        "launchers/keep_alive.py",
        "--backoff",
        "0.5",
        *by_ssh(folder / "hosts", *words),
    ]
    with Launch(command, tmp_path / "log", ssh) as started:
        try:
            wait_for(started, lambda: checkpoint.committed(output))
            os.kill(run_lock.living(output)[1].pid, signal.SIGKILL)
            assert started.wait(SECONDS) == 0, started.printed
            assert "restarting in 0.5 s from checkpoint-" in started.printed
            assert run_folder.read_marker(output / run_folder.FINISHED)["step"] == 60
        finally:
            for holder in run_lock.living(output):
                os.kill(holder.pid, signal.SIGKILL)


def wait_for(started: Launch, what) -> None:
    until = time.monotonic() + SECONDS
    while not what():
        assert not started.ended and time.monotonic() < until, started.printed[-3000:]
        time.sleep(0.1)
