"""What pyproject.toml cannot say: a wheel carries the folders beside the package inside it, in ``tape_ds/shipped``.

There they are found by ``tape_ds/installation.py``, and take no name such as ``tools`` in the environment of a user.
"""

from pathlib import PurePath

from setuptools import find_namespace_packages, find_packages, setup

SHIPPED = ("launchers", "evaluation", "tools", "ds_configs", "docs.results", "benchmarks.results")


def shipped(name: str) -> str:
    """The name that a folder has in the wheel."""
    return f"tape_ds.shipped.{name}"


folders = [found for name in SHIPPED for found in find_namespace_packages(include=[name, f"{name}.*"])]

setup(
    packages=[*find_packages(include=["tape_ds", "tape_ds.*"]), *map(shipped, folders)],
    package_dir={shipped(name): str(PurePath(*name.split("."))) for name in SHIPPED},
    package_data={
        "tape_ds.export": ["card.md.jinja"],
        "tape_ds.attention": ["table.json"],
        "tape_ds.scoring": ["tasks/**/*"],
        "tape_ds.scoring.pages": ["page.html"],
        **{shipped(name): ["*"] for name in folders},
    },
)
