"""Label-decoupled style augmentation for domain generalization in multi-label image classification.

The five lines: build a backbone, choose a style, ``attach`` it, call ``net(images, context)`` while training, and save
``net.backbone``.
"""

from ldstyle import functional
from ldstyle.config import (
    CSUConfig,
    CSULiteConfig,
    DSUConfig,
    EFDMixConfig,
    GlobalConfig,
    GradCamConfig,
    LabelDecoupledConfig,
    LLAMConfig,
    MixStyleConfig,
    UniformConfig,
)
from ldstyle.nn import InsertionPoint, StyledNet, attach, insertion_points
from ldstyle.nouns import Moments, StyleContext, StyledOutput

__all__ = [
    "CSUConfig",
    "CSULiteConfig",
    "DSUConfig",
    "EFDMixConfig",
    "GlobalConfig",
    "GradCamConfig",
    "InsertionPoint",
    "LLAMConfig",
    "LabelDecoupledConfig",
    "MixStyleConfig",
    "Moments",
    "StyleContext",
    "StyledNet",
    "StyledOutput",
    "UniformConfig",
    "attach",
    "functional",
    "insertion_points",
]
