"""Evaluation of trained networks: predictions, scores, localization and style statistics."""
