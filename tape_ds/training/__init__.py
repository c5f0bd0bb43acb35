"""Training: a recipe turned into a run, followed step by step, stored and resumed."""
