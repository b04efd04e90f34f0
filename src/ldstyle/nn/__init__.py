"""Any backbone, with style modules at its insertion points."""

from ldstyle.nn.attaching import attach
from ldstyle.nn.backbones.activation_maps import activation_maps
from ldstyle.nn.backbones.head import LinearHead, OpaqueHead, analyse_head
from ldstyle.nn.backbones.insertion import InsertionPoint, insertion_points
from ldstyle.nn.banks import GradCamBank, StyleBank
from ldstyle.nn.global_style import GlobalStyle
from ldstyle.nn.label_decoupled import LabelDecoupledStyle
from ldstyle.nn.llam import LLAM
from ldstyle.nn.styled_net import StyledNet

__all__ = [
    "LLAM",
    "GlobalStyle",
    "GradCamBank",
    "InsertionPoint",
    "LabelDecoupledStyle",
    "LinearHead",
    "OpaqueHead",
    "StyleBank",
    "StyledNet",
    "activation_maps",
    "analyse_head",
    "attach",
    "insertion_points",
]
