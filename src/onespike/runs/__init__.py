"""Runs: folders that hold a converted network, and the verbs that make, load and search them."""
