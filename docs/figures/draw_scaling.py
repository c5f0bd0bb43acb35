"""Draw the pictures of docs/scaling.md from the stored table: speed of a GPU against how many there are.

    python docs/figures/draw_scaling.py

Predictions of the planner, see ``tools/plan.py --table``.
"""

import csv
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

HERE = Path(__file__).resolve().parent
STORED = HERE.parent / "results" / "scaling" / "scaling.csv"
GPU = "h100-80"
MODELS = {"llama2-7b": "7B", "llama2-13b": "13B", "llama2-70b": "70B"}
LENGTHS = {8_192: ("#0072B2", "o"), 32_768: ("#E69F00", "s"), 131_072: ("#009E73", "^")}
METHODS = {"full": "-", "frozen base": "--"}


def main() -> None:
    """Write both pictures beside this file."""
    with STORED.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["gpu"] == GPU and row["layout"]]
    for scaling, said in (("strong", "4.2 M tokens a step"), ("weak", "16,384 tokens a step for each GPU")):
        figure, panels = plt.subplots(1, 3, figsize=(13, 4.4))
        for panel, model in zip(panels, MODELS, strict=True):
            draw(panel, [row for row in rows if (row["scaling"], row["model"]) == (scaling, model)])
            panel.set_title(f"Llama-2-{MODELS[model]} with TAPE")
        panels[0].set_ylabel("tokens/s a GPU")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="lower center", ncols=6, frameon=False)
        figure.suptitle(f"{scaling.capitalize()} scaling on H100s, {said}: predicted, not measured", fontsize=12)
        figure.tight_layout(rect=(0, 0.06, 1, 1))
        figure.savefig(HERE / f"scaling_{scaling}.png", dpi=110, facecolor="white")
        plt.close(figure)


def draw(axes: Axes, rows: list[dict[str, str]]) -> None:
    """One model: a line for each length and method."""
    for length, (colour, marker) in LENGTHS.items():
        for method, style in METHODS.items():
            own = [row for row in rows if (int(row["length"]), row["method"]) == (length, method)]
            gpus = [int(row["gpus"]) for row in own]
            speeds = [float(row["tokens_per_second_per_gpu"]) for row in own]
            label = f"{length // 1024}k, {method}"
            axes.plot(gpus, speeds, color=colour, marker=marker, linestyle=style, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks([8, 32, 128, 512, 1024], ["8", "32", "128", "512", "1k"])
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("GPUs")
    axes.grid(alpha=0.3)


if __name__ == "__main__":
    main()
