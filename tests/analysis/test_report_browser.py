"""The report in headless Chromium: sorting, copying, charts, phones, modes, print and accessibility."""

import base64

import pytest
from browser import open_browser
from made_up_runs import make_run, make_runs

from attnorm.analysis.report.content import collect
from attnorm.analysis.report.page import write_report
from attnorm.analysis.report.pictures import pictures_of
from attnorm.analysis.report.style import light_colours

EVIL = "</script><img src=x onerror=alert(1)><!--"


@pytest.fixture(scope="module")
def browser():
    with open_browser() as it:
        yield it


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    make_runs(place, {"softmax": 0, "dnas": 0.5, "hnas": 9}, examples=40, steps=600, outputs=[EVIL] * 20, measures=True)
    make_run(place / "failed", "hnas", 4, state="failed", why=EVIL, steps=600)
    return collect([place])


@pytest.fixture(scope="module")
def path(report, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report(report, path)
    return path


def draw(browser):
    browser.chrome.execute_async_script("drawAll().then(arguments[0])")


def column(browser, name):
    """The texts of a column of the first table."""
    script = """
        const table = document.querySelector("#results-task-1 table");
        const place = [...table.tHead.rows[0].cells].findIndex((it) => it.textContent.startsWith(arguments[0]));
        return [...table.tBodies[0].rows].map((row) => row.cells[place].textContent.trim());"""
    return browser.run(script, name)


def test_every_chart_is_drawn_without_an_error_or_a_request(browser, report, path):
    browser.requests(), browser.errors()
    browser.open(path)
    draw(browser)
    figures = [it.chart for it in pictures_of(report).values()]
    marks = browser.run(
        "return [...document.querySelectorAll('[data-chart]')].map((it) => [it.dataset.chart,"
        " it.querySelectorAll('svg .mark-line path, svg .mark-symbol path, svg .mark-rule line').length])"
    )
    assert [name for name, _ in marks] == [figure.name for figure in figures]
    assert all(count > 0 for _, count in marks)
    assert browser.requests() == [path.resolve().as_uri()]
    assert browser.errors() == []
    assert browser.run("return document.images.length") == 0


@pytest.mark.slow
def test_a_chart_is_downloaded_as_the_picture_that_formats_writes(browser, report, path):
    browser.open(path, dark=True)
    browser.run("""
        window.saved = [];
        HTMLAnchorElement.prototype.click = function () { saved.push([this.download, this.href]); };
        window.texts = [];
        const make = URL.createObjectURL;
        URL.createObjectURL = (blob) => { blob.text().then((text) => texts.push(text)); return make(blob); };""")
    name = next(iter(report.tasks[0].drawings.curves)).name
    for kind in ("svg", "png"):
        browser.run(f"document.querySelector('#{name} [data-picture={kind}]').click()")
        browser.wait(f"saved.length == {1 + (kind == 'png')} && texts.length")
    [(svg, _), (png, image)] = browser.run("return saved")
    assert svg.removesuffix(".svg") == png.removesuffix(".png") in pictures_of(report)
    text = browser.run("return texts[0]")
    assert "softmax" in text and light_colours()["--c1"] in text and image.startswith("data:image/png")
    assert browser.errors() == []


@pytest.mark.slow
def test_a_click_and_a_key_sort_a_table(browser, path):
    browser.open(path)
    names = browser.run("return [...document.querySelectorAll('#results-task-1 th')].map((it) => it.textContent)")
    of_scores, of_differences = (
        next(place for place, name in enumerate(names) if name.startswith(start)) for start in ("ROUGE-L", "difference")
    )
    header = "#results-task-1 th:nth-child({}) > button"
    scores = column(browser, "ROUGE-L")
    browser.run(f"document.querySelector('{header.format(of_scores + 1)}').click()")
    assert column(browser, "ROUGE-L") == sorted(scores, key=float, reverse=True)
    from selenium.webdriver.common.keys import Keys

    button = browser.chrome.find_element("css selector", header.format(of_scores + 1))
    button.send_keys(Keys.ENTER)
    assert column(browser, "ROUGE-L") == sorted(scores, key=float)
    sorts = "return [...document.querySelectorAll('#results-task-1 th[aria-sort]')].map((it) => it.ariaSort)"
    assert browser.run(sorts)[of_scores] == "ascending" and set(browser.run(sorts)) == {"ascending", "none"}
    browser.run(f"document.querySelector('{header.format(of_differences + 1)}').click()")  # empty cells come last
    assert column(browser, "difference")[-1] == "" and browser.run(sorts)[of_differences] == "descending"
    browser.run(f"document.querySelector('{header.format(1)}').click()")
    assert column(browser, "arm") == ["dnas", "hnas", "softmax"]


@pytest.mark.slow
def test_a_table_can_be_copied_and_the_data_behind_a_chart_are_a_table(browser, report, path):
    browser.open(path)
    copies = "return [...document.querySelectorAll('#results-task-1 [data-copy]')].map((it) => it.dataset.copy)"
    assert browser.run(copies) == list(report.tasks[0].main.copies.values())
    browser.run("document.querySelector('#results-task-1 [data-copy]').click()")
    browser.wait("document.querySelector('#results-task-1 .said').textContent !== ''")
    figure = report.tasks[0].drawings.curves[0]
    browser.run(f"document.querySelector('#{figure.name} details').open = true")
    browser.wait(f"document.querySelector('#{figure.name} table') !== null")
    texts = "map((row) => [...row.cells].map((it) => it.textContent))"
    rows = browser.run(f"return [...document.querySelectorAll('#{figure.name} tbody tr')].{texts}")
    first = figure.data["rows"][0]
    assert len(rows) == len(figure.data["rows"])
    assert rows[0][:2] == [first["series"], str(first["step"])] and float(rows[0][2]) == first["mean"]


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_does_not_scroll_sideways(browser, path, width):
    browser.open(path, width=width, height=844)
    draw(browser)
    browser.run("for (const it of document.querySelectorAll('details')) it.open = true")
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    widths = browser.run("return [...document.querySelectorAll('.chart svg')].map((it) => it.getBoundingClientRect())")
    assert all(it["left"] >= 0 and it["right"] <= width + 1 for it in widths)


@pytest.mark.slow
def test_tables_fit_a_desktop_and_a_phone_shows_verdicts_and_intervals(browser, path):
    browser.open(path)
    tables = "#results-task-1 .scroll, #metrics-task-1 .scroll"
    sizes = f"return [...document.querySelectorAll('{tables}')].map((it) => [it.scrollWidth, it.clientWidth])"
    assert len(browser.run(sizes)) == 2 and all(needed <= given for needed, given in browser.run(sizes))
    browser.open(path, width=390, height=844)
    row = "document.querySelector('#results-task-1 tbody tr:last-child')"
    assert column(browser, "95 %")[-1].count(" to ") == 1
    edges = browser.run(f"return [...{row}.cells].slice(0, 4).map((it) => it.getBoundingClientRect().right)")
    assert max(edges) <= browser.run(f"return {row}.closest('.scroll').getBoundingClientRect().right")


@pytest.mark.slow
def test_dark_mode_by_the_system_and_by_the_button(browser, path):
    paper = "return getComputedStyle(document.body).backgroundColor"
    line = "return getComputedStyle(document.querySelector('#task-1-curve-1 .mark-line path')).stroke"
    browser.open(path)
    browser.run("try { localStorage.clear() } catch {}")
    colours = []
    for dark in (False, True):
        browser.open(path, dark=dark)
        draw(browser)
        colours.append((browser.run(paper), browser.run(line)))
        assert browser.run("return document.getElementById('mode').ariaPressed") == str(dark).lower()
    light, dark = colours
    assert light[0] == "rgb(255, 255, 255)" and dark[0] != light[0] and dark[1] != light[1]
    browser.run("document.getElementById('mode').click()")
    assert (browser.run(paper), browser.run(line)) == light
    browser.run("try { localStorage.clear() } catch {}")


@pytest.mark.slow
def test_print_contains_all_charts(browser, report, path):
    browser.open(path, dark=True)
    found = browser.call("Page.printToPDF", printBackground=True)
    content = base64.b64decode(found["data"])
    assert content.startswith(b"%PDF") and content.count(b"/Type /Page\n") >= 2
    drawn = browser.run("return document.querySelectorAll('[data-chart] svg').length")
    assert drawn == len(pictures_of(report))
    browser.open(path, width=700, dark=True, media="print")
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    browser.run("return document.documentElement.dataset.mode = 'dark'")
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


@pytest.mark.slow
def test_charts_and_tables_have_names_in_the_accessibility_tree(browser, report, path):
    browser.open(path)
    draw(browser)
    nodes = [node for node in browser.call("Accessibility.getFullAXTree")["nodes"] if not node.get("ignored")]
    named = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes]
    images = [name for role, name in named if role in ("img", "image")]
    assert images == [it.chart.description for it in pictures_of(report).values()]
    buttons = [name for role, name in named if role == "button"]
    assert {"LaTeX", "Markdown", "CSV", "Dark mode"} <= set(buttons) and all(buttons)
    assert all(name for role, name in named if role in ("table", "heading", "region", "navigation"))
    assert sum(role == "main" for role, _ in named) == 1
