"""Train with automatic mixed precision, a gradient scaler and gradient accumulation."""

from __future__ import annotations

import timm
import torch

import ldstyle

ACCUMULATE = 2


def main() -> None:
    """Make four optimizer steps of two batches each."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    backbone = timm.create_model("test_resnet", num_classes=6)
    net = ldstyle.attach(backbone, "ld-efdmix", num_labels=6, image_size=(64, 64)).to(device).train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, enabled=device == "cuda")  # bfloat16 on the CPU needs none
    for step in range(1, 4 * ACCUMULATE + 1):
        images, labels = torch.randn(8, 3, 64, 64, device=device), (torch.rand(8, 6) < 0.5).float()
        # Labels and domains may stay on the host: pairing then costs the device no synchronisation.
        with torch.autocast(device, torch.float16 if device == "cuda" else torch.bfloat16):
            output = net(images, labels=labels, domain=torch.arange(8) % 2, epoch=11)
        loss = net.loss(output, labels) / ACCUMULATE  # statistics and losses are in float32 either way
        scaler.scale(loss).backward()
        if step % ACCUMULATE == 0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            print(f"step {step // ACCUMULATE}: {output.logits.dtype}, loss {ACCUMULATE * loss.item():.3f}")


if __name__ == "__main__":
    main()
