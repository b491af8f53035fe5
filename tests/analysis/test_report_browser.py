"""The report in headless Chromium: sorting, copying, charts, phones, modes, print and accessibility."""

import base64

import pytest
from browser import open_browser
from made_up_runs import make_run, make_runs

from attnorm.analysis.report.content import collect
from attnorm.analysis.report.page import write_report

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


def column(browser, name):
    """The texts of a column of the first table."""
    script = """
        const table = document.querySelector("#results-task-1 table");
        const place = [...table.tHead.rows[0].cells].findIndex((it) => it.textContent.startsWith(arguments[0]));
        return [...table.tBodies[0].rows].map((row) => row.cells[place].textContent.trim());"""
    return browser.run(script, name)


def charts_of(report):
    return [chart for page in report.tasks for chart in page.charts]


SHOWN = "[...document.querySelectorAll('.chart svg')].filter((it) => it.getBoundingClientRect().width > 0)"


@pytest.mark.parametrize("has_scripts", [True, False])
def test_every_chart_is_drawn_without_an_error_a_request_or_javascript(browser, report, path, has_scripts):
    browser.requests(), browser.errors()
    browser.call("Emulation.setScriptExecutionDisabled", value=not has_scripts)
    try:
        browser.open(path)
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
    marks = browser.run(f"return {SHOWN}.map((it) => it.querySelectorAll('path').length)")
    assert len(marks) == len(charts_of(report)) and min(marks) > 4
    assert browser.requests() == [path.resolve().as_uri()]
    assert browser.errors() == []
    assert browser.run("return document.images.length") == 0


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
    chart = report.tasks[0].drawings.curves[0]
    browser.run(f"document.querySelector('#{chart.name} summary').click()")
    texts = "map((row) => [...row.cells].map((it) => it.innerText))"
    assert browser.run(f"return [...document.querySelectorAll('#{chart.name} tr')].{texts}") == chart.values.texts


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_does_not_scroll_sideways(browser, path, width):
    browser.open(path, width=width, height=844)
    browser.run("for (const it of document.querySelectorAll('details')) it.open = true")
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    sizes = browser.run(f"return {SHOWN}.map((it) => it.getBoundingClientRect())")
    assert all(it["left"] >= 0 and it["right"] <= width + 1 for it in sizes)
    letters = browser.run(f"return {SHOWN}.map((it) => it.querySelector('text').getBoundingClientRect().height)")
    assert min(letters) > 10  # pixels


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
    line = 'return getComputedStyle(document.querySelector("#task-1-curve-1 [style*=--c1]")).stroke'
    browser.open(path)
    browser.run("try { localStorage.clear() } catch {}")
    colours = []
    for dark in (False, True):
        browser.open(path, dark=dark)
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
    assert browser.run(f"return {SHOWN}.length") == len(charts_of(report))
    browser.open(path, width=700, dark=True, media="print")
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    browser.run("return document.documentElement.dataset.mode = 'dark'")
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


@pytest.mark.slow
def test_charts_and_tables_have_names_in_the_accessibility_tree(browser, report, path):
    browser.open(path)
    nodes = [node for node in browser.call("Accessibility.getFullAXTree")["nodes"] if not node.get("ignored")]
    named = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes]
    images = [name for role, name in named if role in ("img", "image")]
    assert images == [chart.description for chart in charts_of(report)]
    buttons = [name for role, name in named if role == "button"]
    assert {"LaTeX", "Markdown", "CSV", "Dark mode"} <= set(buttons) and all(buttons)
    assert all(name for role, name in named if role in ("table", "heading", "region", "navigation"))
    assert sum(role == "main" for role, _ in named) == 1
