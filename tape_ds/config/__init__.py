"""Recipes: read from YAML and the command line, checked as a whole before anything starts, and typed."""
