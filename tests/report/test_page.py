"""Sections become files that say the same, need nothing else, and never half replace a former report."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from markdown_it import MarkdownIt
from PIL import Image

from lightning_rlvr.report import page
from lightning_rlvr.report.plots import axes, style
from lightning_rlvr.report.section import Plot, Section, Table


def make_section(title="Did an arm win?", name="paired"):
    figure, panel = axes(xlabel="step", ylabel="accuracy")
    panel.plot([1, 2], [0.3, 0.5], label="ot_z & <b>", **style(1))
    frame = pd.DataFrame({"arm": ["ot_z & <b>", "a|b"], "gain": [0.126, float("nan")], "n": [5, 5]})
    return Section(
        title=title,
        text=("**`ot_z`** gains where p < 0.05 & n > 3 <i>.", "```\nrlvr fit -c a.yaml --x '<y>'\n```"),
        tables=(
            Table(name=name, caption="Gains of `ot_z` in %, p < 0.05.", frame=frame, formats={"gain": "{:+.2f}"}),
        ),
        plots=(Plot(name=f"plot_{name}", caption="A & B.", figure=figure),),
        caveats=("Nothing is known of n < 3.",),
    )


SECTIONS = [make_section(), replace(make_section("Length", "length"), plots=())]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    page.write("Report: a<b", SECTIONS, folder)
    return folder


class Elements(HTMLParser):
    """Tags with their attributes, and the text."""

    def __init__(self, text):
        super().__init__()
        self.found, self.words = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)


def test_all_files_are_there(written):
    files = sorted(str(path.relative_to(written)) for path in written.rglob("*") if path.is_file())
    assert files == [
        "plots/plot_paired.pdf", "plots/plot_paired.png", "report.html", "report.md", "table.tex",
        "tables/length.csv", "tables/paired.csv",
    ]  # fmt: skip


def test_plots_are_not_empty(written):
    with Image.open(written / "plots" / "plot_paired.png") as image:
        assert min(image.size) > 400
        assert len(image.convert("L").getcolors(256)) > 10
    assert (written / "plots" / "plot_paired.pdf").read_bytes().startswith(b"%PDF")


def test_the_page_needs_nothing_else(written):
    text = (written / "report.html").read_text()
    elements = Elements(text)
    links = [value for _, attrs in elements.found for name, value in attrs.items() if name in ("src", "href")]
    assert links
    assert all(link.startswith(("data:image/svg+xml;base64,", "#")) for link in links)
    assert not {"script", "link", "iframe"} & {tag for tag, _ in elements.found}
    assert not re.search(r"@import|url\(", text)


def test_the_page_shows_text_as_it_is(written):
    elements = Elements((written / "report.html").read_text())
    words = "".join(elements.words)
    assert "p < 0.05 & n > 3 <i>." in words
    assert "ot_z & <b>" in words
    assert "rlvr fit -c a.yaml --x '<y>'" in words
    assert not {"b", "i", "y"} & {tag for tag, _ in elements.found}


def test_contents_lead_to_sections(written):
    elements = Elements((written / "report.html").read_text())
    targets = {attrs["href"][1:] for tag, attrs in elements.found if tag == "a"}
    assert targets == {attrs["id"] for tag, attrs in elements.found if tag == "section"}
    assert len(targets) == 2


def test_the_page_is_made_for_narrow_screens_and_print(written):
    text = (written / "report.html").read_text()
    assert 'name="viewport"' in text
    assert "@media print" in text
    assert text.count('<div class="scroll"') == 3


def test_markdown_has_tables_plots_and_caveats(written):
    lines = (written / "report.md").read_text().splitlines()
    assert lines[0] == r"# Report: a\<b"
    assert "![plot_paired](plots/plot_paired.png)" in lines
    assert "- Nothing is known of n < 3." in lines
    start = lines.index(next(line for line in lines if line.startswith("| arm")))
    assert [re.sub(" +", " ", line) for line in lines[start : start + 4]] == [
        "| arm | gain | n |", lines[start + 1], r"| ot_z & \<b> | +0.13 | 5 |", r"| a\|b | - | 5 |",
    ]  # fmt: skip
    assert re.fullmatch(r"\|:-+\|-+:\|-+:\|", lines[start + 1])


def test_markdown_renders_names_as_they_are(tmp_path):
    name = r"a`b` <i>*c*</i> |d\e"
    table = Table(name="t", caption="", frame=pd.DataFrame({"arm": [name], name: [1]}))
    page.write(name, [Section(title="T", tables=(table,))], tmp_path)
    elements = Elements(MarkdownIt("commonmark").enable("table").render((tmp_path / "report.md").read_text()))
    assert [word for word in elements.words if "d" in word] == [name] * 3
    assert not {"i", "em", "code"} & {tag for tag, _ in elements.found}


def test_csv_has_whole_numbers(written):
    frame = pd.read_csv(written / "tables" / "paired.csv")
    assert frame["gain"].iloc[0] == 0.126
    assert list(frame) == ["arm", "gain", "n"]


def test_latex_is_booktabs_and_escaped(written):
    text = (written / "table.tex").read_text()
    assert text.count(r"\toprule") == 1, "only the tables that papers print"
    assert r"\caption{Gains of \texttt{ot\_z} in \%, p $<$ 0.05.}" in text
    assert r"ot\_z \& $<$b$>$ & +0.13 & 5 \\" in text
    assert "a$|$b" in text


def test_the_same_sections_make_the_same_files(written, tmp_path):
    page.write("Report: a<b", SECTIONS, tmp_path)
    for path in written.rglob("*.*"):
        assert path.read_bytes() == (tmp_path / path.relative_to(written)).read_bytes(), path


def test_names_are_unique(tmp_path):
    with pytest.raises(ValueError, match="names of tables must be unique, got paired more than once"):
        page.write("Report", [make_section(), make_section()], tmp_path)


# --- replacing ---


def test_a_failed_report_leaves_the_former_one(tmp_path):
    with page.replacing(tmp_path / "out") as new:
        (new / "report.html").write_text("former")
    with pytest.raises(FileNotFoundError), page.replacing(tmp_path / "out") as new:
        (new / "report.html").write_text((new / "report.md").read_text())
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.html"]
    assert (tmp_path / "out" / "report.html").read_text() == "former"


def test_a_new_report_replaces_its_folders_and_keeps_other_files(tmp_path):
    for name in ("former", "latter"):
        with page.replacing(tmp_path) as new:
            (new / "report.html").write_text(name)
            (new / "tables").mkdir()
            (new / "tables" / f"{name}.csv").write_text("")
        (tmp_path / "notes.txt").write_text("mine")
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*"))
    assert files == ["notes.txt", "report.html", "tables/latter.csv"]


@pytest.mark.parametrize("folder", [".", "thesis.tex"])
def test_something_else_is_refused(tmp_path, folder):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ValueError, match="`--out` must be a new folder"), page.replacing(tmp_path / folder):
        pass


def test_what_a_killed_report_left_is_removed(tmp_path):
    (tmp_path / ".unfinished-x" / "plots").mkdir(parents=True)
    (tmp_path / ".unfinished-lock").write_text("")
    with page.replacing(tmp_path) as new:
        (new / "report.html").write_text("")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_report_killed_while_it_took_its_place_is_known_as_one(tmp_path, monkeypatch):
    moved = []
    monkeypatch.setattr(Path, "replace", lambda path, _: moved.append(path.name))
    with page.replacing(tmp_path) as new:
        for name in ("plots", "report.html"):
            (new / name).mkdir()
    assert moved == ["report.html", "plots"]


def test_two_reports_at_once_do_not_collide(tmp_path):
    with page.replacing(tmp_path) as new:
        with pytest.raises(ValueError, match="another process is writing a report into"), page.replacing(tmp_path):
            pass
        (new / "report.html").write_text("first")
    assert (tmp_path / "report.html").read_text() == "first"
