"""Training algorithms that a run may combine with its style, one file each; ``config`` has their settings."""
