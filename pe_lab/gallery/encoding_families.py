"""The families of encodings, as they are listed in the documentation and in the gallery."""

FAMILIES = {  # with the modules of pe_lab.encodings
    "No encoding": ["base"],
    "Rotary": [
        *("rotary", "rotary_content", "rotary_updated", "rotary_shifted", "rotary_axes", "rotary_values"),
        *("polar", "dropped"),
    ],
    "Rotary, for longer sequences": ["rotary_scaled"],
    "Added vectors": ["absolute", "table", "continuous", "marked"],
    "Biases by distance": ["bias", "bias_learned", "bias_gaussian", "bias_content", "dape"],
    "Distances that depend on content": ["contextual", "grape", "path", "decay"],
    "Stick-breaking, and gains by position": ["stick", "exposb"],
    "Vectors for distances": ["relative", "tupe"],
    "Random positions": ["randomized"],
    "Windows, scales and factors": ["window", "scaled", "factors"],
    "Convolutions": ["convolution"],
    "Grids": ["grid"],
    "Combinations": ["combine"],
}


def encoding_family(module: str) -> str:
    """Return the family of the encodings in a module; `Other` for a module outside of pe_lab.encodings."""
    name = module.rpartition(".")[2]
    return next((family for family, modules in FAMILIES.items() if name in modules), "Other")
