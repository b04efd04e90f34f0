"""The GPU path without a GPU: no mixture of devices, and no waiting for the device but where a result is read."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.deploy.models import SIZE, pixels, write_model
from tests.fake_cuda import BACKWARD, FORWARD, fake_cuda, moved
from tests.nn.nets import (
    GLOBAL,
    IMAGE_SIZE,
    LABELS,
    Toy,
    fill_maps,
    label_decoupled,
    make_context,
    make_images,
    seeded,
    styled,
)
from torch import nn

from ldstyle.config import GlobalConfig, MixStyleConfig
from ldstyle.data.loading.augmentation import Augmentation
from ldstyle.deploy.classifier import load
from ldstyle.deploy.explain import Explainer
from ldstyle.evaluation.scores import predict_logits
from ldstyle.runs.processes import OnHost
from ldstyle.training.step import StyledLoss

# A new operator or attention source gets a line here; ``None`` is ERM.
METHODS = {
    "erm": None,
    **GLOBAL,
    "crossdomain": GlobalConfig(MixStyleConfig(), gate_prob=1.0, pairing="crossdomain"),
    "ld-mixstyle": label_decoupled("mixstyle", "llam", bank_size=4),
    "ld-efdmix": label_decoupled("efdmix", "llam"),
    "ld-csu": label_decoupled("csu", "llam"),
    "ld-mixstyle-gc": label_decoupled("mixstyle", "gradcam", bank_size=4),
    "ld-efdmix-gc": label_decoupled("efdmix", "gradcam"),
    "ld-csu-gc": label_decoupled("csu", "gradcam"),
    "ld-mixstyle-uniform": label_decoupled("mixstyle", "uniform"),
}
AUGMENTATION = Augmentation(mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
BATCH = 6


def network(method):
    style = METHODS[method]
    if style is None:
        return seeded(Toy).train()
    net = styled(style)
    fill_maps(net)
    return net


def step(loss, number, device, optimizer=None):
    """Augment, run and, with an optimizer, learn from one batch; labels and draws stay on the host."""
    generator = np.random.default_rng(number)
    images = torch.from_numpy(generator.integers(0, 256, (BATCH, 3, *IMAGE_SIZE), dtype=np.uint8))
    augmented, flips = AUGMENTATION(images.to(device, non_blocking=True), generator)
    context = make_context(BATCH, seed=number, flips=flips)
    value, scalars = loss(augmented, OnHost(replace(context, known=torch.ones(BATCH, LABELS, dtype=torch.bool))))
    if optimizer is not None:
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return value, scalars


# The type of the device matters little, so a few methods are enough for the one without a backward pass.
STEPS = [
    *((method, BACKWARD) for method in METHODS),
    ("erm", FORWARD),
    ("mixstyle", FORWARD),
    ("ld-efdmix-gc", FORWARD),
]


@pytest.mark.parametrize(("method", "device"), STEPS)
def test_a_training_step_never_waits_for_the_device(method, device):
    net = network(method)
    with fake_cuda() as cuda:
        loss = StyledLoss(moved(net, device))
        optimizer = torch.optim.AdamW(loss.parameters()) if device == BACKWARD else None
        step(loss, 0, device, optimizer)
        cuda.waits.clear()  # constants go to the device in the first step
        value, scalars = step(loss, 1, device, optimizer)
    assert value.device == torch.device(device)
    assert cuda.waits == []
    assert "loss" in scalars
    if optimizer is not None:
        assert all(parameter.grad.device == parameter.device for parameter in net.parameters())


class Opaque(Toy):
    """A network whose maps need a backward pass through its head."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Linear(12, 7), nn.Tanh(), nn.Linear(7, LABELS))


@pytest.mark.parametrize(("build", "device"), [(Toy, FORWARD), (Opaque, BACKWARD)])
def test_a_refresh_waits_once_per_batch_for_its_maps_and_what_was_predicted(build, device):
    net = styled(METHODS["ld-efdmix-gc"], build=build)
    contexts = [make_context(BATCH, seed=number) for number in range(2)]
    with fake_cuda() as cuda:
        moved(net, device)
        batches = [(make_images(BATCH).to(device, non_blocking=True), c.present, c.index) for c in contexts]
        net.refresh(iter(batches))
    assert [wait.rsplit(" ", 1)[-1] for wait in cuda.waits] == ["host"] * 4
    assert net.cams.ready


def test_evaluation_waits_once_at_the_end():
    backbone = seeded(Toy)
    images = [torch.zeros(2, 3, *IMAGE_SIZE, dtype=torch.uint8)] * 3
    with fake_cuda() as cuda:
        moved(backbone, FORWARD)
        batches = (AUGMENTATION.normalise(batch.to(FORWARD, non_blocking=True)) for batch in images)
        logits = predict_logits(backbone, batches, device=FORWARD)
    assert (logits.device.type, logits.shape) == ("cpu", (6, LABELS))
    assert [wait.rsplit(" ", 1)[-1] for wait in cuda.waits] == ["host"]


def test_deployment_waits_for_results_alone(tmp_path):
    write_model(tmp_path)
    classifier = load(tmp_path)
    explain = Explainer(classifier)
    images = torch.from_numpy(np.stack([pixels(0), pixels(1), pixels(2)])).permute(0, 3, 1, 2)
    assert images.shape[2:] == (SIZE, SIZE)
    with fake_cuda() as cuda:
        moved(classifier, FORWARD)
        prediction = classifier.predict(images, batch_size=2)
        assert [wait.rsplit(" ", 1)[-1] for wait in cuda.waits] == ["host"]
        assert prediction.present.shape == (3, 3)
        cuda.waits.clear()
        assert explain(images).maps.device.type == "cpu"
        assert [wait.rsplit(" ", 1)[-1] for wait in cuda.waits].count("host") == 2


def test_the_fake_device_finds_mixed_devices_reads_and_waits():
    with fake_cuda() as cuda:
        there, here = torch.zeros(3, device=FORWARD), torch.ones(3)
        assert here.sum().item() == 3
        with pytest.raises(RuntimeError, match="cuda:0 and cpu"):
            there + here
        for read in (torch.Tensor.item, bool, torch.nonzero):
            with pytest.raises(Exception, match=r"_local_scalar_dense|nonzero"):
                read(there[:1])
        assert cuda.waits == []
        _ = here.to(FORWARD, non_blocking=True)
        assert cuda.waits == []
        _ = here.to(FORWARD), there.cpu(), there[torch.tensor([0, 1])]
        assert len(cuda.waits) == 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("method", METHODS)
def test_on_a_gpu_a_step_gives_the_loss_of_the_cpu_and_never_waits(method):
    net = network(method)
    losses = [StyledLoss(copy.deepcopy(net)), StyledLoss(net.to("cuda"))]
    optimizers = [torch.optim.AdamW(loss.parameters()) for loss in losses]
    for loss, optimizer, device in zip(losses, optimizers, ("cpu", "cuda"), strict=True):
        step(loss, 0, device, optimizer)
    alone, _ = step(losses[0], 1, "cpu", optimizers[0])
    torch.cuda.set_sync_debug_mode("error")
    try:
        value, _ = step(losses[1], 1, "cuda", optimizers[1])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    # Sums over about 300 terms in TF32 (2^-11), through five layers and one step of the optimizer.
    torch.testing.assert_close(value.cpu(), alone, rtol=5 * 2**-11 * 300**0.5, atol=0)
