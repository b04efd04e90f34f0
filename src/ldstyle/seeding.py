"""Randomness that belongs to the run: generators named by purpose, derived from one seed, saved and restored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


def derive_seed(*meaning: int | str) -> int:
    """Derive a 63-bit seed from its purpose, e.g. ``derive_seed("split", "ucm", 3)``.

    Seeds are derived from their meaning, so adding a purpose never moves the draws of another.
    """
    digest = hashlib.blake2b(json.dumps(meaning).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class Streams:
    """Named random generators of one run.

    ``streams["gate"]`` is a NumPy generator that exists from its first use on, seeded from the run's seed and its own
    name. Draws happen on the host, so they are the same on every device, and the global streams stay untouched.

    Args:
        seed: The run's seed.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._generators: dict[str, np.random.Generator] = {}

    def __getitem__(self, name: str) -> np.random.Generator:
        if name not in self._generators:
            self._generators[name] = np.random.Generator(np.random.PCG64DXSM(derive_seed(self.seed, name)))
        return self._generators[name]

    def state_dict(self) -> dict[str, Tensor]:
        """Return the seed and each generator's state as byte tensors, loadable with ``weights_only=True``."""
        state: dict[str, Any] = {name: generator.bit_generator.state for name, generator in self._generators.items()}
        encoded = json.dumps({"seed": self.seed, "generators": state}).encode()
        return {"streams": torch.frombuffer(bytearray(encoded), dtype=torch.uint8)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue where ``state`` was taken; streams it does not hold start afresh from its seed.

        Generators handed out before continue as well.
        """
        decoded = json.loads(bytes(state["streams"].tolist()))
        self.seed = decoded["seed"]
        for name, generator in self._generators.items():
            generator.bit_generator.state = np.random.PCG64DXSM(derive_seed(self.seed, name)).state
        for name, generator_state in decoded["generators"].items():
            self[name].bit_generator.state = generator_state
