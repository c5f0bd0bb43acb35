"""The compile gate: the calls of the operators, the launches they make, and the judgement of the compiled kernels."""
