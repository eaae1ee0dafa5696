"""Evaluation: the original and the spiking network side by side, and whether every neuron takes part."""
