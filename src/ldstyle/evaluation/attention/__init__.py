"""Attention sources judged against masks."""
