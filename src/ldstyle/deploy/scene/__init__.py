"""Label maps of whole georeferenced scenes."""
