"""Scenes as images: each thing drawn in its colour on a grey ground, with smooth edges.

Every pixel is divided into SAMPLES x SAMPLES points, and its colour is the mean over them. Only comparisons and
products of fixed numbers decide which points a shape covers, so the images are the same on every machine.
"""

import numpy as np

from attnorm.data.synthetic.scenes.generate import Scene, Thing

GROUND = (232, 232, 232)
PAINT = {
    "red": (214, 39, 40),
    "green": (44, 150, 44),
    "blue": (40, 90, 220),
    "purple": (130, 50, 170),
    "pink": (244, 140, 190),
    "yellow": (240, 210, 40),
    "orange": (250, 130, 20),
    "brown": (120, 75, 45),
}
SAMPLES = 4  # per side of a pixel
# The corners of a five-pointed star in a box from -1 to 1, clockwise from the top. The inner ones are at 0.42 of the
# outer radius.
STAR = (
    (0.0, -1.0), (0.2469, -0.3398), (0.9511, -0.3090), (0.3994, 0.1298), (0.5878, 0.8090),
    (0.0, 0.42), (-0.5878, 0.8090), (-0.3994, 0.1298), (-0.9511, -0.3090), (-0.2469, -0.3398),
)  # fmt: skip


def draw(things: Scene, side: int) -> np.ndarray:
    """A scene as an image of side x side pixels: uint8 (side, side, 3)."""
    fine = side * SAMPLES
    points = (np.arange(fine) + 0.5) / fine
    canvas = np.empty((fine, fine, 3), np.uint16)
    canvas[:] = GROUND
    for thing in things:
        left, top, right, bottom = (round(edge * fine) for edge in thing.box)
        columns, rows = slice(max(left - 1, 0), right + 2), slice(max(top - 1, 0), bottom + 2)
        canvas[rows, columns][covers(thing, points[None, columns], points[rows, None])] = PAINT[thing.colour]
    sums = canvas.reshape(side, SAMPLES, side, SAMPLES, 3).sum((1, 3), dtype=np.uint32)
    return ((sums + SAMPLES**2 // 2) // SAMPLES**2).astype(np.uint8)


def covers(thing: Thing, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """bool: whether a thing covers the points (x, y), which are shares of the side of the image and broadcast."""
    x, y = (x - thing.x) / (thing.side / 2), (y - thing.y) / (thing.side / 2)  # its box is now from -1 to 1
    if thing.shape in ("circle", "ring"):
        distance = x * x + y * y
        return (distance <= 1) & (distance >= (0.3 if thing.shape == "ring" else 0))
    x_, y_ = np.broadcast_arrays(x, y)
    if thing.shape == "star":
        return _inside(STAR, x_, y_)
    width, height = np.abs(x_), np.abs(y_)
    if thing.shape == "square":
        return np.maximum(width, height) <= 0.88
    if thing.shape == "diamond":
        return width + height <= 1
    assert thing.shape == "cross", thing.shape
    return (np.minimum(width, height) <= 0.32) & (np.maximum(width, height) <= 1)


def _inside(corners: tuple[tuple[float, float], ...], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """bool: whether points lie in a polygon, by the number of edges that a ray to the right crosses."""
    inside = np.zeros(x.shape, bool)
    for (x1, y1), (x2, y2) in zip(corners, corners[1:] + corners[:1], strict=True):
        if y1 != y2:
            inside ^= ((y1 > y) != (y2 > y)) & (x < (x2 - x1) * (y - y1) / (y2 - y1) + x1)
    return inside
