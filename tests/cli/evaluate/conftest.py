"""What evaluations start from in miniature: a plain Llama's folder, and runs that trained on it."""

from tests.export.conftest import base, run

__all__ = ["base", "run"]
