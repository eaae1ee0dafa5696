"""Studies: the paper measured again, its theorems, ablations."""
