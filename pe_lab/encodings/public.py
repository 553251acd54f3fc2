"""Public names, written by .ci/update.py: the classes that conf/pe names, and those of their interface."""

from pe_lab.encodings.base import PositionalEncoding, UnfitError
from pe_lab.encodings.cache import Cache
from pe_lab.encodings.combine import Heads, Interleave, Sum
from pe_lab.encodings.families.absolute import Integer, Normalized, Sinusoidal
from pe_lab.encodings.families.bias import Alibi, Sandwich
from pe_lab.encodings.families.bias_content import Inkling
from pe_lab.encodings.families.bias_gaussian import BAM
from pe_lab.encodings.families.bias_learned import T5, Fire, KerpleLog, KerplePower, RelativeBias
from pe_lab.encodings.families.contextual import CoPE, Forgetting
from pe_lab.encodings.families.continuous import Continuous, Fourier
from pe_lab.encodings.families.convolution import Canon, ConvolutionalPE
from pe_lab.encodings.families.dape import Dape, DapeV2
from pe_lab.encodings.families.decay import Wall
from pe_lab.encodings.families.dropped import DroPE
from pe_lab.encodings.families.exposb import ExpoSB
from pe_lab.encodings.families.factors import URPE
from pe_lab.encodings.families.grape import GrapeA, GrapeM
from pe_lab.encodings.families.grid import AxialRoPE, Learnable2D, MixedRoPE, Sinusoidal2D
from pe_lab.encodings.families.marked import Abacus, Coupled
from pe_lab.encodings.families.path import PaTH
from pe_lab.encodings.families.polar import PoPE
from pe_lab.encodings.families.randomized import Randomized, Shape
from pe_lab.encodings.families.relative import Deberta, Shaw, TransformerXL
from pe_lab.encodings.families.rotary import ClippedRoPE, LeRoPE, LRoPE, PRoPE, ResonanceRoPE, RoPE, XPos
from pe_lab.encodings.families.rotary_axes import MRoPE
from pe_lab.encodings.families.rotary_content import CARoPE, MapFormer, SelectiveRoPE
from pe_lab.encodings.families.rotary_scaled import DynamicNTKRoPE, InterpolatedRoPE, LongRoPE, NTKRoPE, Yarn
from pe_lab.encodings.families.rotary_shifted import KeyOffsetRoPE
from pe_lab.encodings.families.rotary_updated import TAPE
from pe_lab.encodings.families.rotary_values import VORoPE
from pe_lab.encodings.families.scaled import SSMax, Temperature
from pe_lab.encodings.families.stick import RotaryStickBreaking, StickBreaking
from pe_lab.encodings.families.table import Learnable, Random, SinInit
from pe_lab.encodings.families.tupe import Tupe
from pe_lab.encodings.families.window import HardAlibi, Window
from pe_lab.encodings.layout import PADDING, UNMARKED, Layout
from pe_lab.encodings.memory import Carried
from pe_lab.encodings.options import OptionError
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.stack import LayerInput, PassPositions, Stack
from pe_lab.encodings.terms import Rotary, Softmax, Stick, Terms

__all__ = [
    "BAM",
    "PADDING",
    "T5",
    "TAPE",
    "UNMARKED",
    "URPE",
    "Abacus",
    "Alibi",
    "AxialRoPE",
    "CARoPE",
    "Cache",
    "Canon",
    "Carried",
    "ClippedRoPE",
    "CoPE",
    "Continuous",
    "ConvolutionalPE",
    "Coupled",
    "Dape",
    "DapeV2",
    "Deberta",
    "DroPE",
    "DynamicNTKRoPE",
    "ExpoSB",
    "Fire",
    "Forgetting",
    "Fourier",
    "GrapeA",
    "GrapeM",
    "HardAlibi",
    "Heads",
    "Inkling",
    "Integer",
    "Interleave",
    "InterpolatedRoPE",
    "KerpleLog",
    "KerplePower",
    "KeyOffsetRoPE",
    "LRoPE",
    "LayerInput",
    "Layout",
    "LeRoPE",
    "Learnable",
    "Learnable2D",
    "LongRoPE",
    "MRoPE",
    "MapFormer",
    "MixedRoPE",
    "NTKRoPE",
    "Normalized",
    "OptionError",
    "PRoPE",
    "PaTH",
    "PassPositions",
    "PoPE",
    "PositionalEncoding",
    "Random",
    "Randomized",
    "RelativeBias",
    "ResonanceRoPE",
    "RoPE",
    "Rotary",
    "RotaryStickBreaking",
    "SSMax",
    "Sandwich",
    "SelectiveRoPE",
    "Shape",
    "Shaw",
    "SinInit",
    "Sinusoidal",
    "Sinusoidal2D",
    "Sizes",
    "Softmax",
    "Stack",
    "Stick",
    "StickBreaking",
    "Sum",
    "Temperature",
    "Terms",
    "TransformerXL",
    "Tupe",
    "UnfitError",
    "VORoPE",
    "Wall",
    "Window",
    "XPos",
    "Yarn",
]
