"""From image files to training batches: decoding, cache, splits, sampler and augmentation."""
