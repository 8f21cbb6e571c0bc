"""Draws how far the rollouts of each robot spread, as one picture.

Each robot gets one row of the picture: the height of its root over time on the left,
the track of the root on the ground, seen from above, on the right. A rollout has one
colour in both, that of its last height.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # No display is needed.

import matplotlib.pyplot as plt
import numpy as np
from matplotlib import RcParams
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.layout_engine import ConstrainedLayoutEngine

INK = "#22303c"  # text, median, markers
FAINT = "#e4e8ec"  # grid
FLOOR = "#cfd6dd"
# Viridis without its last yellow, which is lost on white.
COLORS = ListedColormap(plt.get_cmap("viridis")(np.linspace(0, 0.93, 256)))
LEGEND: dict[str, Any] = {  # in the line of the title
    "loc": "lower right",
    "bbox_to_anchor": (1, 1),
    "ncols": 2,
    "borderaxespad": 0.1,
    "handlelength": 1.6,
    "columnspacing": 1.2,
    "fontsize": 11,
}
STYLE: dict[str, Any] = {
    "font.size": 12,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#9aa5b1",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlelocation": "left",
    "axes.titlesize": 13,
    "axes.titlepad": 12,
    "grid.color": FAINT,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
}


def draw(robots: dict[str, np.ndarray], picture: Path) -> None:
    """Draws one row for each robot into the file `picture`.

    Args:
        robots: for each name the paths of its rollouts, nbatch x nrow x 4: time in
            seconds, then x, y and z of the root in metres. The first row is the start. A
            rollout that ended early has NaN in the rows that remain: it is drawn as far
            as it goes, and the median and the band of a row are over those that
            reached it.
        picture: where the picture goes.
    """
    reach = 1.05 * max(np.nanmax(np.abs(paths[:, :, 1:3])) for paths in robots.values())
    with plt.rc_context(RcParams(STYLE)):
        figure, axes = plt.subplots(
            len(robots),
            2,
            figsize=(16, 4.9 * len(robots)),
            dpi=100,
            layout=ConstrainedLayoutEngine(h_pad=0.16, w_pad=0.14),
            squeeze=False,
            width_ratios=[1.95, 1],
        )
        for (left, right), (name, paths) in zip(axes, robots.items()):
            end = last_rows(paths)
            # A few outliers must not take the colours from the rest, nor all of them the
            # same height.
            low, high = np.percentile(end[:, 3], [2, 98])
            norm = Normalize(low, max(high, low + 0.01))
            draw_height(left, paths, end, norm)
            draw_track(right, paths, end, norm)
            left.set_title(title(name, paths), fontweight="bold")
            right.set_title("the same from above")
            right.set(xlim=(-reach, reach), ylim=(-reach, reach))
            bar = figure.colorbar(
                ScalarMappable(norm, COLORS),
                ax=right,
                pad=0.02,
                aspect=30,
                extend="both",
                label="last height of the root (m)",
            )
            plt.setp(bar.outline, visible=False)
        figure.savefig(picture)
        plt.close(figure)


def title(name: str, paths: np.ndarray) -> str:
    """What is drawn, and how many of the rollouts do not go to the end."""
    nbatch, nrow, _ = paths.shape
    early = int(np.isnan(paths[:, -1, 0]).sum())
    text = f"{name}: {nbatch} rollouts of {nrow - 1} steps from one pose"
    return text + (f", {early} ended early" if early else "")


def last_rows(paths: np.ndarray) -> np.ndarray:
    """The last valid row of each rollout, nbatch x 4."""
    nvalid = np.isfinite(paths[:, :, 0]).sum(axis=1)
    return paths[np.arange(len(paths)), nvalid - 1]


def draw_height(ax: Axes, paths: np.ndarray, end: np.ndarray, norm: Normalize) -> None:
    """Draws the height of the root over time, with the median and the band on top."""
    draw_lines(ax, paths[:, :, 0], paths[:, :, 3], end, norm, strength=1)
    reached = paths[:, np.isfinite(paths[:, :, 0]).any(axis=0)]
    time = np.nanmedian(reached[:, :, 0], axis=0)
    low, median, high = np.nanpercentile(reached[:, :, 3], [5, 50, 95], axis=0)
    band: dict[str, Any] = {"color": INK, "zorder": 4}
    ax.fill_between(time, low, high, color=INK, alpha=0.1, linewidth=0, zorder=3)
    ax.plot(time, low, **band, linewidth=1.1, linestyle=(0, (4, 3)))
    ax.plot(time, high, **band, linewidth=1.1, linestyle=(0, (4, 3)), label="90 % lie between")
    ax.plot(time, median, color="white", linewidth=5, zorder=4)
    ax.plot(time, median, **band, linewidth=2.5, label="median")
    ax.axhspan(-1, 0, color=FLOOR, linewidth=0)
    ax.set(xlabel="time (s)", ylabel="height of the root above the floor (m)")
    ax.set(xlim=(time[0], time[-1]), ylim=(-0.03 * np.nanmax(paths[:, :, 3]), None))
    ax.legend(**LEGEND)


def draw_track(ax: Axes, paths: np.ndarray, end: np.ndarray, norm: Normalize) -> None:
    """Draws the tracks of the root on the ground, from the start (ring) to the ends (dots)."""
    draw_lines(ax, paths[:, :, 1], paths[:, :, 2], end, norm, strength=2)
    start = paths[0, 0, 1:3]
    ring: dict[str, Any] = {"s": 80, "facecolors": "none", "zorder": 4}
    ax.scatter(*start, **ring, edgecolors="white", linewidths=4.5)
    ax.scatter(*start, **ring, edgecolors=INK, linewidths=2, label="start")
    ax.scatter(
        end[:, 1],
        end[:, 2],
        c=end[:, 3],
        cmap=COLORS,
        norm=norm,
        s=14,
        linewidths=0.3,
        edgecolors="white",
        zorder=3,
        label="end",
    )
    ax.set_aspect("equal")
    ax.set(xlabel="x, forward (m)", ylabel="y, to the left (m)")
    ax.legend(**LEGEND)


def draw_lines(
    ax: Axes, x: np.ndarray, y: np.ndarray, end: np.ndarray, norm: Normalize, strength: float
) -> None:
    """Draws a thin line for each rollout through `x` and `y`, both nbatch x nrow.

    The more lines there are, the fainter each is, down to what can still be seen alone.
    """
    lines = LineCollection(
        list(np.stack([x, y], axis=2)),
        array=end[:, 3],
        cmap=COLORS,
        norm=norm,
        linewidths=0.7,
        alpha=float(np.clip(strength * 60 / len(x), strength * 0.12, 0.9)),
    )
    ax.add_collection(lines, autolim=False)
    # NaN would spoil the automatic limits.
    ax.update_datalim([(np.nanmin(x), np.nanmin(y)), (np.nanmax(x), np.nanmax(y))])
    ax.autoscale_view()
