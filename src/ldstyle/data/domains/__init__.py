"""Domains on disk: archives, CSV tables, discovery, vocabulary and checks."""
