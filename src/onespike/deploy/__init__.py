"""Deployment: forms of a converted network that run on integers or elsewhere."""

from onespike.deploy.integer import optimize as optimize
