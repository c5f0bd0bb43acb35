"""From data specs to training sequences: read, tokenise, pack or draw, mix, and serve sample ``i`` of a run."""
