"""One of several processes, started by ``test_processes``: either a whole run, or the gradient of one batch.

The names in capitals are given by the test.
"""

import os

import torch

os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(PORT), "TORCHELASTIC_RUN_ID": "test"}  # noqa: F821
os.environ |= {"RANK": str(RANK), "LOCAL_RANK": str(RANK), "GROUP_RANK": "0"}  # noqa: F821
os.environ |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
torch.set_num_threads(1)

from tests.training.runs import well_conditioned  # noqa: E402

from ldstyle.runs.processes import OnHost, Processes, launch  # noqa: E402
from ldstyle.runs.sources import open_sources  # noqa: E402
from ldstyle.training.build import build_net  # noqa: E402
from ldstyle.training.loop import fit  # noqa: E402
from ldstyle.training.step import StyledLoss  # noqa: E402

if BATCHES is None:  # noqa: F821
    with well_conditioned():
        fit(CONFIG)  # noqa: F821
else:
    fabric = launch(CONFIG)  # noqa: F821
    data = open_sources(CONFIG.data, seed=CONFIG.seed)  # noqa: F821
    net = build_net(CONFIG, data, fabric)  # noqa: F821
    model = fabric.setup(StyledLoss(net))
    for images, context in BATCHES[RANK]:  # noqa: F821
        net.zero_grad()
        loss, _ = model(images, OnHost(context))
        fabric.backward(loss)
    grads = {name: value.grad for name, value in net.named_parameters() if value.grad is not None}
    torch.save({"grads": grads, "state": net.state_dict()}, f"{OUT}/{RANK}.pt")  # noqa: F821
    Processes(fabric).close()
