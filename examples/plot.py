"""Draws how far the rollouts of each robot spread, as one picture.

    python examples/plot.py OUT.png NAME=FILE.npy [NAME=FILE.npy ...]
    python examples/plot.py spread.png humanoid=humanoid.npy quadruped=quadruped.npy

Each FILE holds one float64 array of shape (nbatch, nstep, 4): the time in seconds, then x, y and z of the
robot's root in metres. A rollout that ended early has NaN in its remaining rows; it is drawn as far as it
goes, and the median and the band of a step are taken over the rollouts that reached it.

Each robot gets one row of the picture: the height of the root over time on the left, the track of the
root on the ground on the right. A rollout has one colour in both, that of its last height.

Needs numpy and matplotlib, and no display.
"""

import sys
from pathlib import Path
from typing import NoReturn

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import ListedColormap, Normalize

INK = "#22303c"  # text, median, markers
FAINT = "#e4e8ec"  # grid
# Viridis without its last yellow, which is lost on white.
COLORS = ListedColormap(plt.get_cmap("viridis")(np.linspace(0, 0.93, 256)))
ABOVE = {  # a legend in the line of the title
    "loc": "lower right",
    "bbox_to_anchor": (1, 1),
    "ncols": 2,
    "borderaxespad": 0.1,
    "handlelength": 1.6,
    "columnspacing": 1.2,
    "fontsize": 11,
}
STYLE = {
    "font.size": 12,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#9aa5b1",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
}


def fail(message: str) -> NoReturn:
    """Ends the program with one line on stderr and status 2."""
    print(f"plot.py: {message}", file=sys.stderr)
    sys.exit(2)


def load(path: Path) -> np.ndarray:
    """Returns the rollouts in `path`, (nbatch, nstep, 4), with whole rows of NaN where one had ended."""
    try:
        paths = np.load(path)
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror or error}")
    except (ValueError, EOFError):
        fail(f"{path} is not a .npy file of numbers")
    if not isinstance(paths, np.ndarray) or paths.dtype != np.float64:
        fail(f"{path} must hold one float64 array")
    if paths.ndim != 3 or paths.shape[2] != 4:
        fail(f"{path} must have shape (nbatch, nstep, 4), not {paths.shape}")
    paths = np.where(np.isfinite(paths).all(axis=2, keepdims=True), paths, np.nan)
    if not np.isfinite(paths).any():
        fail(f"{path} holds no valid row")
    return paths


def last_rows(paths: np.ndarray) -> np.ndarray:
    """Returns the last valid row of each rollout, (nbatch, 4)."""
    valid = np.isfinite(paths[:, :, 0])
    last = valid.shape[1] - 1 - valid[:, ::-1].argmax(axis=1)
    return paths[np.arange(len(paths)), last]


def draw_lines(ax: Axes, x: np.ndarray, y: np.ndarray, end: np.ndarray, norm: Normalize, strength: float) -> None:
    """Draws a thin line per rollout through `x` and `y`, (nbatch, nstep), coloured by the height in `end`.

    The lines become pixels even in a vector format. The more there are, the fainter each is, down to what
    can still be seen alone.
    """
    alpha = float(np.clip(strength * 60 / len(x), strength * 0.12, 0.9))
    ax.add_collection(
        LineCollection(
            np.stack([x, y], axis=2),
            array=end[:, 3],
            cmap=COLORS,
            norm=norm,
            linewidths=0.7,
            alpha=alpha,
            rasterized=True,
        ),
        autolim=False,
    )
    # NaN would spoil the automatic limits.
    ax.update_datalim([(np.nanmin(x), np.nanmin(y)), (np.nanmax(x), np.nanmax(y))])
    ax.autoscale_view()


def draw_height(ax: Axes, paths: np.ndarray, end: np.ndarray, norm: Normalize) -> None:
    """Draws the height of the root over time, with the median and the 5-95 % band on top."""
    draw_lines(ax, paths[:, :, 0], paths[:, :, 3], end, norm, strength=1)
    reached = paths[:, np.isfinite(paths[:, :, 0]).any(axis=0)]
    time = np.nanmedian(reached[:, :, 0], axis=0)
    low, median, high = np.nanpercentile(reached[:, :, 3], [5, 50, 95], axis=0)
    ax.fill_between(time, low, high, color=INK, alpha=0.1, linewidth=0, zorder=3, label="5-95 %")
    for edge in (low, high):
        ax.plot(time, edge, color=INK, linewidth=1.1, linestyle=(0, (4, 3)), zorder=4)
    ax.plot(time, median, color="white", linewidth=5, zorder=4)
    ax.plot(time, median, color=INK, linewidth=2.5, zorder=4, label="median")
    ax.margins(x=0)
    ax.set(xlabel="time (s)", ylabel="root height (m)")
    ax.legend(**ABOVE)


def draw_track(ax: Axes, paths: np.ndarray, end: np.ndarray, norm: Normalize) -> None:
    """Draws the track of the root on the ground, from its start (ring) to its end (dot)."""
    x, y = paths[:, :, 1], paths[:, :, 2]
    draw_lines(ax, x, y, end, norm, strength=3)
    start = paths[np.arange(len(paths)), np.isfinite(x).argmax(axis=1)]
    ring = {"s": 80, "facecolors": "none", "rasterized": True}
    ax.scatter(start[:, 1], start[:, 2], **ring, edgecolors="white", linewidths=4.5, zorder=4)
    ax.scatter(start[:, 1], start[:, 2], **ring, edgecolors=INK, linewidths=2, zorder=4, label="start")
    ax.scatter(
        end[:, 1],
        end[:, 2],
        c=end[:, 3],
        cmap=COLORS,
        norm=norm,
        s=12,
        linewidths=0.3,
        edgecolors="white",
        zorder=3,
        rasterized=True,
        label="end",
    )
    ax.set_aspect("equal", adjustable="datalim")
    ax.set(xlabel="x (m)", ylabel="y (m)")
    ax.legend(**ABOVE)


def draw(robots: dict[str, np.ndarray], out: Path) -> None:
    """Draws one row per robot into the picture `out`."""
    nrow = len(robots)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            nrow,
            2,
            figsize=(16, max(9.0, 4.5 * nrow)),
            dpi=100,
            layout="constrained",
            squeeze=False,
            width_ratios=[1.45, 1],
        )
        figure.get_layout_engine().set(h_pad=0.14, w_pad=0.14)
        for (left, right), (name, paths) in zip(axes, robots.items(), strict=True):
            nbatch, nstep, _ = paths.shape
            early = int(np.isnan(paths[:, -1, 0]).sum())
            paths = paths[np.isfinite(paths[:, :, 0]).any(axis=1)]  # the others have nothing to draw
            end = last_rows(paths)
            # A few outliers must not take the colours from the rest, nor all of them the same height.
            low, high = np.percentile(end[:, 3], [2, 98])
            norm = Normalize(low, max(high, low + 0.01))
            draw_height(left, paths, end, norm)
            draw_track(right, paths, end, norm)
            left.set_title(
                f"{name}:  {nbatch} rollouts, {nstep} steps" + (f", {early} ended early" if early else ""),
                loc="left",
                fontsize=13,
                fontweight="bold",
                pad=12,
            )
            right.set_title("ground track of the root", loc="left", fontsize=13, pad=12)
            bar = figure.colorbar(
                ScalarMappable(norm, COLORS),
                ax=right,
                pad=0.02,
                aspect=30,
                extend="both",
                format="%.2f",
                label="last height (m)",
            )
            bar.outline.set_visible(False)
        figure.savefig(out)
        plt.close(figure)


def main(arguments: list[str]) -> None:
    if len(arguments) < 2:
        fail("usage: plot.py OUT.png NAME=FILE.npy [NAME=FILE.npy ...]")
    out, *pairs = arguments
    robots: dict[str, np.ndarray] = {}
    for pair in pairs:
        name, equals, path = pair.partition("=")
        if not (name and equals and path):
            fail(f"expected NAME=FILE.npy, not {pair!r}")
        if name in robots:
            fail(f"{name} is given twice")
        robots[name] = load(Path(path))
    try:
        draw(robots, Path(out))
    except (OSError, ValueError) as error:
        fail(f"cannot write {out}: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
