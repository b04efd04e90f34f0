"""Label-decoupled style augmentation for domain generalization in multi-label image classification.

The five lines: build a backbone, choose a style, ``attach`` it, call ``net(images, context)`` while training, and save
``net.backbone``. A finished run is used by ``load(path).predict(images)``.

Names are loaded when used, so that ``ldstyle --version`` and ``--help`` do not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from ldstyle.deploy.classifier import load
    from ldstyle.nn import InsertionPoint, StyledNet, attach, insertion_points
    from ldstyle.types import Moments, StyleContext, StyledOutput

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

_PARTS = ("config", "functional", "nn", "types", "seeding")
_HOMES = {
    **{name: "config" for name in __all__ if name.endswith("Config")},
    **dict.fromkeys(("InsertionPoint", "StyledNet", "attach", "insertion_points"), "nn"),
    **dict.fromkeys(("Moments", "StyleContext", "StyledOutput"), "types"),
    "load": "deploy.classifier",
}


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
