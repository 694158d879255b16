"""Are a camera's privacy masks burnt into a stored picture? What is not masked does not leave the box.

Masks are burnt in before anything is stored (`streams.camera`), but a mask that an operator drew today is not in yesterday's samples.
JPEG works in squares of 16 pixels (4:2:0): a square that lies wholly in a mask is black to a few levels; in one that the mask's edge
crosses, the neighbourhood rings into it, so there only the mean must be dark.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streams.masks import Mask, burn_in

#: Side of the squares that JPEG codes together, px.
_SQUARE = 16
#: A decoder smooths colour over so many pixels of the next square.
_BLEED = 2
#: Levels (0-255) up to which a square in a mask is black, and up to which what lies at a mask's edge is dark on average.
BLACK_MAX, EDGE_MEAN_MAX = 12, 64
#: A square with fewer masked pixels says little by itself: those are judged together.
_FEW_PIXELS = 64


def is_masked(image: np.ndarray, masks: Sequence[Mask]) -> bool:
    """image: uint8 (H, W, 3) RGB, decoded from JPEG."""
    if not masks:
        return True
    height, width = image.shape[:2]
    inside = burn_in(np.full((height, width, 3), 255, np.uint8), masks)[:, :, 0] == 0
    few: list[np.ndarray] = []
    for top in range(0, height, _SQUARE):
        for left in range(0, width, _SQUARE):
            part = inside[top : top + _SQUARE, left : left + _SQUARE]
            pixels = image[top : top + _SQUARE, left : left + _SQUARE]
            if part.all() and int(pixels[_BLEED:-_BLEED, _BLEED:-_BLEED].max(initial=0)) > BLACK_MAX:
                return False
            if part.sum() >= _FEW_PIXELS and float(pixels[part].mean()) > EDGE_MEAN_MAX:
                return False
            if 0 < part.sum() < _FEW_PIXELS:
                few.append(pixels[part])
    return not few or float(np.concatenate(few).mean()) <= EDGE_MEAN_MAX
