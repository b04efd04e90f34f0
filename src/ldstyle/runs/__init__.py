"""A run on disk: its config, folder, checkpoints, record and model file."""
