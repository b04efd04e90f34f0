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

_HOMES = {
    "BackboneConfig": "config",
    "DataConfig": "config",
    "Interrupted": "interruption",
    "LoadedModel": "model_file",
    "OptimizerConfig": "config",
    "RunConfig": "config",
    "RunRecord": "record",
    "SwadConfig": "config",
    "config_from": "settings",
    "fit": "loop",
    "load_config": "settings",
    "load_model": "model_file",
    "method_settings": "settings",
    "methods": "settings",
    "read_record": "record",
    "settings_of": "settings",
}

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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
