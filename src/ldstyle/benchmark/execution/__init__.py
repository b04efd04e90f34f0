"""Executors that run the cells of a grid: local processes or Ray."""
