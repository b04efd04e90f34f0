"""The benchmark: methods, the grid of cells, who runs them, and the records they leave."""
