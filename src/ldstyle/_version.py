"""The version of the package: the one spot it is written in."""

__version__ = "0.1.0.dev0"
