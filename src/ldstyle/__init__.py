"""Label-decoupled style augmentation for domain generalization in multi-label image classification.

The five lines: build a backbone, choose a style, ``attach`` it, call ``net(images, context)`` while training, and save
``net.backbone``. A finished run is used by ``load(path).predict(images)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from ldstyle.deploy.classifier import load

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
    "load",
]


def __getattr__(name: str) -> Any:
    if name == "load":  # on use only: importing the package loads torch and numpy, and nothing more
        from ldstyle.deploy.classifier import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
