"""Tensor cores and the movement of their operands, for all warps at once: mma, wgmma, ldmatrix, stmatrix.

Fragments as the PTX manual draws them: in a warp, thread 4 g + t holds elements (g, 2 t) and (g, 2 t + 1) of 8 x 8
matrices. Products are summed in float64 and rounded once; tf32 operands are cut to 10 bits, as tensor cores do.
"""

import numpy as np

from emulation.scalar import widened

Array = np.ndarray
SWIZZLE = {1: (128, 0x70), 2: (64, 0x30), 3: (32, 0x10)}  # bytes of a row, and the address bits that are flipped
TF32 = np.uint32(0xFFFFE000)


def cut(bits: Array) -> Array:
    """Return float32 numbers cut to tf32."""
    return (bits & TF32).view("f4")


def mma(a: list[Array], b: list[Array], c: list[Array], tf32: bool) -> Array:
    """Return the registers of a [16, k] @ b [k, 8] + c of every warp: k = 16 bfloat16, or 8 tf32."""
    fragments = [
        np.array(x).reshape(2, -1, 8, 4) if len(x) == 2 else np.array(x).reshape(2, 2, -1, 8, 4) for x in (a, b)
    ]
    if tf32:
        left, right = (cut(x)[..., None] for x in fragments)
    else:
        left, right = (widened(x.view("u2")).reshape(*x.shape, 2) for x in fragments)
    warps = left.shape[2]
    left = left.transpose(2, 1, 3, 0, 4, 5).reshape(warps, 16, -1)  # registers are (column half, row half)
    right = right.transpose(1, 0, 3, 4, 2).reshape(warps, -1, 8)
    product = left.astype("f8") @ right.astype("f8")
    product = product.reshape(warps, 2, 8, 4, 2).transpose(1, 4, 0, 2, 3).reshape(4, -1)
    return (np.array(c).view("f4") + product).astype("f4").view("u4")


def wgmma_left(registers: list[Array], tf32: bool) -> Array:
    """Return the operand [warp groups, 64, k] that is held in registers [threads]."""
    fragments = np.array(registers).reshape(2, 2, -1, 4, 8, 4)  # column half, row half, group, warp, g, t
    numbers = cut(fragments)[..., None] if tf32 else widened(fragments.view("u2")).reshape(*fragments.shape, 2)
    return numbers.transpose(2, 3, 1, 4, 0, 5, 6).reshape(fragments.shape[2], 64, -1)


def wgmma_places(descriptor: Array, rows: int, transposed: bool) -> Array:
    """Return the addresses of 16-byte pieces of operands [..., rows, 32 bytes], transposed: [..., 16, 2 rows bytes].

    Raises:
        NotImplementedError: a layout without a swizzle, or with a base offset.
    """
    kinds, offsets = np.unique(descriptor >> np.uint64(62)), (descriptor >> np.uint64(49)) & np.uint64(7)
    if len(kinds) != 1 or int(kinds[0]) not in SWIZZLE or offsets.any():
        raise NotImplementedError(f"wgmma descriptors with swizzle {kinds.tolist()} and base offset {offsets.tolist()}")
    width, flipped = SWIZZLE[int(kinds[0])]
    start, leading, stride = (
        (((descriptor >> np.uint64(bit)) & np.uint64(0x3FFF)).astype("i8") << 4)[..., None, None] for bit in (0, 16, 32)
    )
    if transposed:
        k, piece = np.arange(16)[:, None], 16 * np.arange(rows // 8)[None]
        places = start + piece // width * leading + piece % width + k % 8 * width + k // 8 * stride
    else:
        row, piece = np.arange(rows)[:, None], 16 * np.arange(2)[None]
        places = start + row // 8 * stride + row % 8 * width + piece
    return places ^ ((places >> 3) & flipped)


def wgmma_operand(pieces: Array, transposed: bool, tf32: bool) -> Array:
    """Return an operand [..., rows, k] from its 16-byte pieces."""
    if tf32:
        return cut(pieces.view("u4"))
    numbers = widened(pieces.view("u2"))
    return np.swapaxes(numbers, -1, -2) if transposed else numbers


def wgmma_registers(product: Array) -> Array:
    """Return products [warp groups, 64, N] as registers [N / 2, threads]."""
    groups, _, columns = product.shape
    parts = product.reshape(groups, 4, 2, 8, columns // 8, 4, 2)  # warp, row half, g, column block, t, column
    return parts.transpose(4, 2, 6, 0, 1, 3, 5).reshape(columns // 2, -1)


def loaded(rows: Array, transposed: bool) -> Array:
    """Return the registers [matrices, threads] of 8 x 8 matrices, given their rows of 16 bytes [warps, matrices, 8]."""
    elements = rows[..., None].view("u2")
    if transposed:
        elements = np.swapaxes(elements, -1, -2)
    elements = np.ascontiguousarray(elements.transpose(1, 0, 2, 3))
    return elements.view("u4").reshape(elements.shape[0], -1)


def stored(registers: Array, transposed: bool) -> Array:
    """Return the rows of 16 bytes [warps, matrices, 8] of registers [matrices, threads]."""
    matrices, threads = registers.shape
    elements = np.ascontiguousarray(registers).view("u2").reshape(matrices, threads // 32, 8, 8)
    if transposed:
        elements = np.swapaxes(elements, -1, -2)
    return np.ascontiguousarray(elements.transpose(1, 0, 2, 3)).view("c16")[..., 0]
