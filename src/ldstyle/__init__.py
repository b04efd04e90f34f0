"""Label-decoupled style augmentation for domain generalization in multi-label image classification."""
