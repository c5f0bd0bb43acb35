"""Commands that say what a model is worth on long text: ``python -m evaluation COMMAND ...``, a module each."""
