"""Memories of a styled network: recent styles per label, and cached attention maps."""
