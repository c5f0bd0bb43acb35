"""Time TAPE's parts, layers and models next to RoPE's and to every other way to compute the same.

    python -m benchmarks                                    every group on the GPU, or on the CPU where there is none
    python -m benchmarks attention decode --device cuda     two groups
    python -m benchmarks recipe --shapes N16                shapes whose label this regular expression finds
    python -m benchmarks --list                             groups, shapes and implementations; nothing is run
    python -m benchmarks choose --results FOLDER            take in what a campaign measured
    python -m benchmarks campaign --part 1                  everything that a GPU should answer, in stages
    python -m benchmarks ruler MODEL                        CPU time of RULER's questions, next to lm-eval's
    python -m benchmarks merge                              memory and CPU time of merging, next to peft's
    python -m benchmarks start                              files that a run opens before its first step
    python -m benchmarks steps                              CPU time of a small model's step, next to transformers'
    python -m benchmarks collect                            wheels for a machine without a network

Every implementation is checked against fp64 before it is timed; a wrong one gets no time. Those of one shape run in
turn, in one process. Each group writes ``GROUP_DEVICE.jsonl``, a line at once for each row, and after every shape a
``.md`` to the folder ``--out``; where that is a ``.jsonl``, all groups add their lines to it.

Exit codes: 0 done; 1 an implementation of ours is wrong; 2 invalid options, nothing was started.
"""

import argparse
import dataclasses
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from benchmarks import campaign, choose, merge_cost, ruler_cost, small_steps, start_cost, table
from benchmarks.benchmark_case import REFUSED, TIMED, WRONG, Setting, run
from benchmarks.groups import GROUPS, REPEATS, Group
from benchmarks.shapes import Shape
from tape_ds import storage
from tape_ds.arguments import Parser, below_one
from tape_ds.attention import ENVIRONMENT
from tape_ds.errors import Problem, check_folder, command, did_you_mean, raise_if_any
from tape_ds.kernels import jit

DTYPES = ("float32", "float16", "bfloat16")
COMMANDS = {
    "choose": choose.main,
    "campaign": campaign.main,
    "collect": campaign.collect,
    "ruler": ruler_cost.main,
    "merge": merge_cost.main,
    "start": start_cost.main,
    "steps": small_steps.main,
}
# prefixes of this project's implementations
OURS = ("ours", "attend")


@command
def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in COMMANDS:
        return COMMANDS[argv[0]](argv[1:])
    options = parse(argv)
    check_options(options)
    setting = Setting(torch.device(options.device), getattr(torch, options.dtype))
    if options.list:
        for name in options.groups:
            print_group(name, options, setting)
        return 0

    origin = table.provenance(setting)
    device = "cpu" if origin["chip"] == "cpu" else origin["device"]
    failed = []
    for name in options.groups:
        path = options.out
        shared = path.suffix == ".jsonl"
        # rows of an earlier version would stay in a file of this group alone
        if not shared:
            path = options.out / f"{table.stem(name, device)}.jsonl"
            path.unlink(missing_ok=True)
        rows = {}
        for shape in chosen_shapes(GROUPS[name], options):
            for row in measure(name, shape, setting, options.repeats, origin, options.only):
                table.append(dataclasses.asdict(row), path)
                rows[row.shape, row.encoding, row.implementation] = row
            if not shared:
                storage.write_text(path.with_suffix(".md"), table.markdown(list(rows.values())))
        if rows:
            print(table.markdown(list(rows.values())), flush=True)
            counted = Counter(row.status for row in rows.values())
            counts = [f"{counted[status]} {status}" for status in (TIMED, WRONG, REFUSED)]
            print(f"{name}: {', '.join(counts)}")
        for row in rows.values():
            # another library's wrong numbers are not mended here
            if row.status == WRONG and row.implementation.startswith(OURS):
                failed.append(row)
    for row in failed:
        where = f"{row.group} {row.shape}, {row.encoding}, {row.implementation}"
        print(f"WRONG: {where}: {row.reason}", file=sys.stderr)
    return int(bool(failed))


def print_group(name: str, options: argparse.Namespace, setting: Setting) -> None:
    print(f"{name}: {GROUPS[name].about}")
    shapes = GROUPS[name].shapes(options.device, options.toys)
    for shape in shapes:
        print(f"  shape {shape.label}")
    if not shapes:
        print(f"  nothing on {options.device}")
        return
    for entry in GROUPS[name].case(shapes[0], setting).entries:
        print(f"  implementation {entry.encoding}: {entry.implementation}")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("groups", nargs="*", help=f"{', '.join(GROUPS)}; default: all")
    parser.add_argument("--device", help="cpu or cuda; default: cuda where there is one")
    parser.add_argument(
        "--dtype", help=f"{', '.join(DTYPES)}; default: bfloat16 on cuda, float32 on cpu"
    )
    parser.add_argument(
        "--shapes", default="", metavar="REGEX", help="only shapes whose label it finds"
    )
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="only implementations whose name it finds"
    )
    parser.add_argument(
        "--repeats", type=int, help="samples of each implementation; default: the group's own"
    )
    parser.add_argument(
        "--out", type=Path, default=choose.RESULTS, help="folder of the tables, or a .jsonl"
    )
    parser.add_argument(
        "--toys", action="store_true", help="one tiny shape of each group: its times mean nothing"
    )
    parser.add_argument("--list", action="store_true", help="print what would be run")
    options = parser.parse_args(argv)
    if not options.device:
        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    if not options.dtype:
        options.dtype = "bfloat16" if options.device == "cuda" else "float32"
    options.groups = list(dict.fromkeys(options.groups)) or list(GROUPS)
    return options


def check_options(options: argparse.Namespace) -> None:
    folder = options.out.parent if options.out.suffix else options.out
    problems = below_one(options, "repeats") + check_folder("--out", folder)
    named = [
        ("groups", options.groups, [*GROUPS, *COMMANDS]),
        ("--device", [options.device], ["cpu", "cuda"]),
        ("--dtype", [options.dtype], [*DTYPES]),
    ]
    for field, given, names in named:
        for name in given:
            if name not in names:
                problems.append(Problem(field, name, "unknown", did_you_mean(name, names)))
    if options.device == "cuda" and not torch.cuda.is_available():
        problems.append(Problem("--device", "cuda", "torch sees no CUDA device", "give cpu"))
    if os.environ.get(ENVIRONMENT):
        wrong = "would replace the backends that are compared"
        problems.append(Problem(ENVIRONMENT, os.environ[ENVIRONMENT], wrong, "unset it"))
    if jit.INTERPRETED and options.device == "cuda":
        wrong = "Triton interprets its kernels: their times mean nothing"
        interpreted = os.environ.get("TRITON_INTERPRET")
        problems.append(Problem("TRITON_INTERPRET", interpreted, wrong, "unset it"))
    if options.toys and options.out.resolve() == choose.RESULTS:
        wrong = "is the folder of results, and toys give none"
        problems.append(Problem("--out", str(options.out), wrong, "name another folder"))
    if not problems and not any(chosen_shapes(GROUPS[name], options) for name in options.groups):
        remedy = "see python -m benchmarks --list"
        reason = f"no shape of these groups on {options.device}"
        problems.append(Problem("--shapes", options.shapes, reason, remedy))
    raise_if_any(problems)


def chosen_shapes(group: Group, options: argparse.Namespace) -> list[Shape]:
    shapes = group.shapes(options.device, options.toys)
    # a toy is of no shape that a pattern names
    if options.toys:
        return shapes
    return [shape for shape in shapes if re.search(options.shapes, shape.label)]


def measure(
    name: str,
    shape: Shape,
    setting: Setting,
    repeats: int | None,
    origin: dict[str, str],
    implementations: str = "",
) -> Iterator[table.BenchmarkRow]:
    """Run one group at one shape; of its implementations those in whose name ``implementations`` is found."""
    group = GROUPS[name]
    repeats = repeats or group.repeats or REPEATS[setting.device.type, group.single]
    print(f"{name}, {shape.label}", file=sys.stderr, flush=True)
    # after 8 shapes a compiled function would run uncompiled
    torch.compiler.reset()
    case = group.case(shape, setting)
    entries = [entry for entry in case.entries if re.search(implementations, entry.implementation)]
    case = case._replace(entries=entries)
    warm_up = min(3, repeats // 10)
    for finding in run(case, setting, repeats, head_start=group.single, warm_up=warm_up):
        yield table.row_of(name, shape.label, setting, finding, origin)


if __name__ == "__main__":
    sys.exit(main())
