"""Studies: the paper measured again, its theorems, ablations and the demo."""
