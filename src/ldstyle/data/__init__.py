"""The data side: files on disk to training batches."""
