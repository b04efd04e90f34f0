"""Every public function of the mathematics and of the metrics has an example, and all examples are true."""

from __future__ import annotations

import doctest
import inspect
from importlib import import_module

import pytest

from ldstyle import functional, metrics

MODULES = (
    "data",
    "functional._fast",
    "functional._fast_matching",
    "functional.attention",
    "functional.decomposition",
    "functional.global_styles",
    "functional.operators",
    "functional.pairing",
    "functional.baselines",
    "functional.training",
    "method_files",
    "metrics",
    "types",
)
PUBLIC = [
    *(getattr(functional, name) for name in functional.__all__),
    *(
        value
        for name, value in vars(metrics).items()
        if inspect.isfunction(value) and value.__module__ == metrics.__name__ and name[0] != "_"
    ),
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_are_true(name):
    result = doctest.testmod(import_module(f"ldstyle.{name}"))
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("function", PUBLIC, ids=lambda function: function.__name__)
def test_every_public_function_has_an_example(function):
    assert doctest.DocTestFinder(recurse=False).find(function)[0].examples
