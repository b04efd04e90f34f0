"""Whole georeferenced scenes: opened safely, and cut into tiles with labels."""
