"""Fused operations and the plain form that each of them must agree with."""
