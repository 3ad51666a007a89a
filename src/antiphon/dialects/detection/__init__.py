"""Finds the dialect of a model: probe samples of its chat template, scored for each dialect."""
