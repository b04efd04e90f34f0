"""Train a styled network with the Trainer of Hugging Face, whose models take a batch by name and return their loss."""

from __future__ import annotations

import tempfile

import timm
import torch
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

import ldstyle


class WithLoss(nn.Module):
    """A styled network that returns its loss, as the Trainer expects."""

    def __init__(self, net: ldstyle.StyledNet, steps_per_epoch: int) -> None:
        super().__init__()
        self.net, self.steps_per_epoch, self.steps = net, steps_per_epoch, 0

    def forward(self, pixel_values: Tensor, labels: Tensor, domain: Tensor) -> dict[str, Tensor]:
        """Return loss and logits."""
        epoch = 1 + self.steps // self.steps_per_epoch
        self.steps += self.training
        output = self.net(pixel_values, labels=labels, domain=domain, epoch=epoch)
        return {"loss": self.net.loss(output, labels), "logits": output.logits}


if __name__ == "__main__":
    torch.manual_seed(0)
    values = zip(torch.randn(32, 3, 64, 64), (torch.rand(32, 6) < 0.5).float(), torch.arange(32) % 2, strict=True)
    data = [dict(zip(("pixel_values", "labels", "domain"), sample, strict=True)) for sample in values]
    net = ldstyle.attach(timm.create_model("test_resnet", num_classes=6), "ld-efdmix", num_labels=6)
    with tempfile.TemporaryDirectory() as out:
        arguments = TrainingArguments(out, num_train_epochs=2, report_to=[], use_cpu=True, save_strategy="no")
        result = Trainer(WithLoss(net, steps_per_epoch=4), arguments, train_dataset=data).train()
    print(f"{result.global_step} steps, loss {result.training_loss:.3f}")
