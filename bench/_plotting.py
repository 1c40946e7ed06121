"""How the plots look: one style for all of them."""

from typing import Any

INK = "#2b2d42"


def styled_pyplot() -> Any:
    """`matplotlib.pyplot`, drawing to files, in the style of the others."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {
            "font.size": 9,
            "axes.edgecolor": "#c8ccd4",
            "axes.labelcolor": INK,
            "xtick.color": INK,
            "ytick.color": INK,
            "text.color": INK,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": "#eceef2",
            "axes.axisbelow": True,
        }
    )
    return plt
