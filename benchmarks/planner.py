"""The planner's prediction beside what the recipe's benchmark measured: seconds of a step and bytes, for each length.

    python -m benchmarks.planner --results benchmarks/results

The benchmark is one GPU without DeepSpeed: its buckets, and what the planner keeps in reserve, are left out. No GPU is
needed: the stored rows name it.
"""

import contextlib
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks import table
from benchmarks.benchmark_case import BASELINE, TIMED
from benchmarks.shapes import document_lengths, parse
from tape_ds import storage
from tape_ds.arguments import Parser
from tape_ds.errors import Problem, UserError, command
from tape_ds.markdown_table import markdown_table
from tape_ds.model.attention import backends
from tape_ds.planning import hardware
from tape_ds.planning.job import Job
from tape_ds.planning.plan import Plan
from tools.plan import ask
from tools.plan import parse as parse_options

NATIVE_TOKENS = 4_096
TOY_GPU = "h200"
"""A CPU has no plan; a rehearsal asks for this one's."""
HEADER = ("shape", "s, planned", "s, measured", "ratio", "GB, planned", "GB, measured", "ratio")


@command
def main() -> int:
    """Plan each row of every stored table of the recipe, and write both side by side."""
    parser = Parser(prog="python -m benchmarks.planner", description=__doc__)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--toys", action="store_true")
    options, _ = parser.parse_known_args()
    paths = sorted(options.results.glob("recipe_*.csv"))
    if not paths:
        raise UserError(Problem("results", str(options.results), "holds no recipe", "run python -m benchmarks recipe"))
    for path in paths:
        measured = [row for row in table.read(path) if row.status == TIMED and row.encoding != BASELINE]
        lines = []
        for row in measured:
            gpu = hardware.find(TOY_GPU) if options.toys else hardware.of_device(row.device, 0)
            if gpu is None:
                wrong = "is none that the planner knows"
                raise UserError(Problem("gpu", row.device, wrong, "see tape_ds/planning/hardware.py"))
            lines.append(compared(row, gpu.name))
        text = markdown_table(HEADER, lines)
        found = path.with_name(path.name.replace("recipe", "planner")).with_suffix(".md")
        storage.write_text(found, f"# The plan of the 7B recipe beside {path.name}\n\n{text}\n")
        print(text)
    return 0


def compared(row: table.BenchmarkRow, gpu: str) -> list[str]:
    """Return one line of the table."""
    plan = Plan(planned(row, gpu))
    peak = max(moment.total - moment.buckets - moment.reserve for moment in plan.memory.moments)
    assert row.total_p50 is not None and row.peak_bytes is not None
    seconds, gigabytes = (plan.step.all, 1e-3 * row.total_p50), (1e-9 * peak, 1e-9 * row.peak_bytes)
    cells = [cell for pair in (seconds, gigabytes) for cell in (*pair, pair[0] / pair[1])]
    return [row.shape, *(f"{cell:,.3f}" for cell in cells)]


def planned(row: table.BenchmarkRow, gpu: str) -> Job:
    """Return the recipe at the row's length, with its documents, and with the attention that ``auto`` takes there."""
    sizes = parse(row.shape)
    tokens = sizes["T"]
    fields = {"train_embeddings": False, "deepspeed": "zero1", "global_batch_size": 1, "target_length": tokens}
    fields["activation_checkpointing"] = True  # as measured
    fields |= {"window": tokens, "rope_parameters.factor": max(2.0, tokens / NATIVE_TOKENS)}
    words = [word for name, value in fields.items() for word in (f"--{name}", str(value).lower())]
    with contextlib.redirect_stdout(sys.stderr):  # what DeepSpeed says when it is imported is no part of the answer
        _, job = ask(*parse_options(["llama2_7b_8k", "--gpus", "1", "--gpu", gpu, *words]))
    width = job.model.head_size
    kind = (row.chip, row.dtype, width, 2 * width, "N" in sizes)
    fused = any(
        each[:5] == kind and each.min_tokens <= tokens <= each.max_tokens and each.backend == "triton"
        for each in backends.table()
    )
    documents = None
    if "N" in sizes:  # the planner's are of equal length: as many of them as cost the same
        documents = tokens**2 / sum(length**2 for length in document_lengths(tokens, sizes["N"]))
    return replace(job, wide_attention=fused, documents=documents)


if __name__ == "__main__":
    sys.exit(main())
