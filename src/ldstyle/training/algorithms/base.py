"""What an algorithm may change about a training step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, TypeAlias

from lightning.fabric import Fabric
from torch import Tensor, nn

from ldstyle.functional import label_losses
from ldstyle.functional.training import mean_over_known
from ldstyle.runs.processes import OnHost
from ldstyle.seeding import Streams
from ldstyle.types import StyleContext

Penalty: TypeAlias = Callable[[StyleContext], Tensor | None]
"""Returns the penalty of the observed pass, which is added to its loss."""


class Algorithm(nn.Module):
    """A training step beyond its style; this one changes nothing, which is plain training (ERM).

    The methods are listed in the order in which a step calls them. Parameters are a group of the optimizer;
    :meth:`state_dict` is saved with the run.
    """

    weighs_domains: ClassVar[bool] = False
    """Whether :meth:`average` is anything but the mean."""
    lr_ratio: ClassVar[float] = 1.0
    """Learning rate of the parameters relative to the backbone's."""

    def mix(self, images: Tensor, truth: OnHost[StyleContext], streams: Streams) -> tuple[Tensor, OnHost[StyleContext]]:
        """Change augmented images, (B, 3, S, S), and their labels and domains; draws come from the run's streams."""
        return images, truth

    @contextmanager
    def watch(self, backbone: nn.Module, images: Tensor) -> Iterator[Penalty]:
        """Look at the features of the forward pass made inside, and return its penalty afterwards."""
        yield lambda context: None

    def average(self, losses: Tensor, known: Tensor | None, context: StyleContext) -> Tensor:
        """Average the losses of the labels, (B, L), to the classification loss, over the known ones or by weights."""
        return mean_over_known(losses, known)

    def backward(
        self, fabric: Fabric, model: nn.Module, images: Tensor, truth: OnHost[StyleContext], *, done: float
    ) -> dict[str, Tensor]:
        """Leave the gradient of the step in the parameters.

        Args:
            fabric: Handle on device and precision.
            model: Returns loss and scalars of a batch.
            images: Images, (B, 3, S, S).
            truth: What is known of them.
            done: Fraction of the planned steps made before this one.

        Returns:
            The scalars to log.
        """
        loss, scalars = model(images, truth)
        fabric.backward(loss)
        logged: dict[str, Tensor] = scalars
        return logged

    def after_step(self, net: nn.Module, *, done: float, settled: bool) -> None:
        """Look at the weights after a step.

        Args:
            net: The network.
            done: Fraction of the planned steps made.
            settled: Whether the style of the run is fully on.
        """

    @contextmanager
    def predicting(self, net: nn.Module) -> Iterator[None]:
        """Give the network the weights it predicts with; on exit it has those it trains with."""
        yield

    def extra_repr(self) -> str:
        """Show the settings."""
        config: Any = getattr(self, "config", None)
        return "" if config is None else str(config)


class LabelLoss(nn.Module):
    """Loss of each label; see :func:`ldstyle.functional.label_losses`.

    Args:
        positive_weight: Weight of each label where it is present, (L,).
        negative_weight: Weight of absent labels.
        gamma_positive: Focusing exponent of present labels.
        gamma_negative: Focusing exponent of absent labels.
        margin: Probability up to which an absent label costs nothing.
    """

    positive_weight: Tensor

    def __init__(
        self,
        positive_weight: Tensor,
        *,
        negative_weight: float = 1.0,
        gamma_positive: float = 0.0,
        gamma_negative: float = 0.0,
        margin: float = 0.0,
    ) -> None:
        super().__init__()
        self.register_buffer("positive_weight", positive_weight)
        self.settings = {
            "negative_weight": negative_weight,
            "gamma_positive": gamma_positive,
            "gamma_negative": gamma_negative,
            "margin": margin,
        }

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each label, (B, L)."""
        return label_losses(logits, labels, positive_weight=self.positive_weight, **self.settings)

    def extra_repr(self) -> str:
        """Show the settings."""
        return ", ".join(f"{name}={value}" for name, value in self.settings.items())
