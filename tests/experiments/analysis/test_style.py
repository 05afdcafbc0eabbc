"""The look that figures share: what is written into them overlaps nothing."""

from matplotlib.backends.backend_agg import FigureCanvasAgg

from experiments.analysis.style import make_figure, warn_of_few
from tests.refusals import assert_names


def test_a_pilots_note_meets_neither_title_nor_axes():
    figure = make_figure(6, 4)
    title = figure.suptitle("a title as wide as the figure, " * 3, x=0.01, ha="left", fontsize=9)
    axes = figure.subplots()
    axes.set_title("another title as wide as the axes, " * 2, loc="left", fontsize=9)
    axes.set_xlabel("a label below")
    warn_of_few(figure, 5)
    FigureCanvasAgg(figure).draw()
    (note,) = (text for text in figure.texts if text is not title)
    assert_names(note.get_text(), "5", "seeds")
    box = note.get_window_extent()
    assert not box.overlaps(title.get_window_extent())
    assert not box.overlaps(axes.get_tightbbox())


def test_enough_seeds_carry_no_note():
    figure = make_figure(6, 4)
    warn_of_few(figure, 10)
    assert not figure.get_supxlabel()
