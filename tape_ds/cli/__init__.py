"""The program ``tape-ds``: a module for each command, heavy imports inside the functions that need them."""
