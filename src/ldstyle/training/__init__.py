"""Training: one visible loop, its settings, and the record of a run.

Names are loaded when used, so that reading a record does not import a deep learning stack.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ldstyle.runs.config import BackboneConfig, DataConfig, OptimizerConfig, RunConfig, SwadConfig
    from ldstyle.runs.interruption import Interrupted
    from ldstyle.runs.model_file import LoadedModel, load_model
    from ldstyle.runs.record import RunRecord, read_record
    from ldstyle.runs.settings import config_from, load_config, method_settings, methods, settings_of
    from ldstyle.training.loop import fit

__all__ = [
    "BackboneConfig",
    "DataConfig",
    "Interrupted",
    "LoadedModel",
    "OptimizerConfig",
    "RunConfig",
    "RunRecord",
    "SwadConfig",
    "config_from",
    "fit",
    "load_config",
    "load_model",
    "method_settings",
    "methods",
    "read_record",
    "settings_of",
]

_HOMES = {
    **dict.fromkeys(("BackboneConfig", "DataConfig", "OptimizerConfig", "RunConfig", "SwadConfig"), "runs.config"),
    **dict.fromkeys(("LoadedModel", "load_model"), "runs.model_file"),
    **dict.fromkeys(("RunRecord", "read_record"), "runs.record"),
    **dict.fromkeys(("config_from", "load_config", "method_settings", "methods", "settings_of"), "runs.settings"),
    "Interrupted": "runs.interruption",
    "fit": "training.loop",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"ldstyle.{_HOMES[name]}"), name)
