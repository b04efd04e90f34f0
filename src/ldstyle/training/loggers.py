"""Where the metrics of each epoch are shown besides ``metrics.jsonl``."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ldstyle.runs.config import RunConfig

if TYPE_CHECKING:
    from lightning.fabric.loggers.logger import Logger

PACKAGES = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb"}


def open_logger(config: RunConfig, folder: Path) -> Logger | None:
    """Open the logger a run names, empty; the caller replays earlier metrics.

    Args:
        config: Settings of the run.
        folder: Its folder; local logs go below it.

    Raises:
        ValueError: The logger's package is not installed.
    """
    package = PACKAGES.get(config.logger)
    if package is not None and find_spec(package) is None:
        raise ValueError(
            f"logger {config.logger!r} needs the package {package!r}, which is not installed. Install it, or choose "
            "'tensorboard', 'csv' or 'none'."
        )
    match config.logger:
        case "none":
            return None
        case "tensorboard":
            from lightning.fabric.loggers.tensorboard import TensorBoardLogger

            return TensorBoardLogger(_emptied(folder / "tensorboard"), name="", version="")
        case "csv":
            from lightning.fabric.loggers.csv_logs import CSVLogger

            return CSVLogger(_emptied(folder / "csv"), name="", version="")
        case "mlflow":
            import mlflow
            from lightning.pytorch.loggers import MLFlowLogger

            # Lightning's own default is a folder of files, which later versions of mlflow refuse.
            address = mlflow.get_tracking_uri()
            return MLFlowLogger(experiment_name="ldstyle", run_name=folder.name, tracking_uri=address)
        case "wandb":
            from lightning.pytorch.loggers import WandbLogger

            return WandbLogger(project="ldstyle", name=folder.name, save_dir=folder)


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    return folder
