"""CUDA's allocator is set up once, before it is used, and never against the user."""

import os

import pytest

from tape_ds.training.environment import ALLOCATOR_VARIABLES, expand_segments


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    """An environment without these variables, restored after a test."""
    for name in ALLOCATOR_VARIABLES:
        monkeypatch.setenv(name, "x")  # so that what a test sets is taken back
        monkeypatch.delenv(name)


def test_segments_grow_unless_they_are_not_wanted():
    assert not expand_segments(False) and not set(ALLOCATOR_VARIABLES) & set(os.environ)
    assert expand_segments() and os.environ["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"


@pytest.mark.parametrize("name", ALLOCATOR_VARIABLES)
def test_the_users_word_counts(name, monkeypatch):
    monkeypatch.setenv(name, "max_split_size_mb:64")
    assert not expand_segments()
    assert {key: os.environ[key] for key in ALLOCATOR_VARIABLES if key in os.environ} == {name: "max_split_size_mb:64"}
