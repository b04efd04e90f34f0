"""Train a styled network as a LightningModule."""

from __future__ import annotations

import lightning
import timm
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import ldstyle


class Styled(lightning.LightningModule):
    """A backbone with LD-EFDMix."""

    def __init__(self) -> None:
        super().__init__()
        backbone = timm.create_model("test_resnet", num_classes=6)
        self.net = ldstyle.attach(backbone, "ld-efdmix", num_labels=6, image_size=(64, 64))

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Return the method's objective; Lightning counts epochs from 0."""
        images, labels, domain = batch
        loss = self.net.loss(self.net(images, labels=labels, domain=domain, epoch=self.current_epoch + 1), labels)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW over backbone and attention."""
        return torch.optim.AdamW(self.net.parameters(), lr=1e-3)


if __name__ == "__main__":
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(32, 3, 64, 64), (torch.rand(32, 6) < 0.5).float(), torch.arange(32) % 2)
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer.fit(Styled(), DataLoader(data, batch_size=8))
    print(f"{trainer.global_step} steps, loss {trainer.callback_metrics['loss'].item():.3f}")
