"""Checks of a recipe that need the libraries, before any data is read."""
