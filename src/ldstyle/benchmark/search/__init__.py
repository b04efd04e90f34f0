"""Hyperparameter search on the source domains."""
