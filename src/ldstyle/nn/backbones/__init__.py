"""Any network as a backbone: insertion points, layouts of feature maps, heads and class activation maps."""
