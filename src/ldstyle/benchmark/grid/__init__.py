"""The grid: methods, presets, imagery and cells."""
