"""Training algorithms that a run may have beside its style, one file each; ``config`` has their settings."""
