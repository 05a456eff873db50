"""The page in a real browser, over a fleet in a real Redis."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
from playwright.sync_api import Browser, Locator, expect

from dsf import keys
from dsf.messages import make_run_id
from dsf.store.entries import Entry
from dsf.store.notices import CLUSTER_SET, ClusterNotice, ConditionNotice, Notices, ScorerNotice
from dsf.store.schedule import ScheduleStore
from dsf.web.actions import list_acts
from tests.integration.exporter.fleet import SAMPLE, STATIC, Fleet, good_fleet
from tests.integration.web.visitor import TOKEN, Visitor
from tests.support.browser import THEMES, TIMEOUT, Tab
from tests.support.redisserver import RedisServer
from tests.support.wait import wait_for
from tests.support.webprocess import WebProcess

expect.set_options(timeout=TIMEOUT)

PAIR = f"/clusters/worker01/scorers/{SAMPLE}"
#: Tables that are wider than their place. Cards may not be wider; cells without a text are as high as their names.
CUT_OFF = """[...document.querySelectorAll(".scroll:has(.rows)")].filter(
    one => one.scrollWidth > one.clientWidth
).map(one => one.ariaLabel).concat([...document.querySelectorAll(".rows [data-name]:not(.why)")].filter(
    one => one.clientHeight < 18
).map(one => one.dataset.name))"""
#: Share of the table's width that each reason takes.
SHARES = """[...document.querySelectorAll(".rows tbody .why, .rows [data-name='Its API']")].map(
    one => one.offsetWidth / one.closest("table").offsetWidth
)"""
#: How many lines each name above a matrix has, and where the last one is once it is scrolled to.
HEADS = """(() => {
    const heads = [...document.querySelectorAll(".matrix thead a")], range = document.createRange();
    const lines = heads.map(one => (range.selectNodeContents(one), range.getClientRects().length));
    heads.at(-1).scrollIntoView();
    const { left, right } = heads.at(-1).getBoundingClientRect();
    return [lines, left, right];
})()"""
#: A text of Prometheus with a word that is longer than a column.
MESSAGE = """invalid parameter "query": 1:5: parse error: unclosed left parenthesis in
sum(rate(container_cpu_usage_seconds_total{namespace!=""}[5m]) by (namespace, pod)"""
PROBE = "\"'><img src=x onerror=document.title='broken'><script>document.title='broken'</script>"


def failing_fleet(client: redis.Redis) -> Fleet:
    """Something of everything."""
    fleet = good_fleet(client)
    fleet.failure("worker02", message=f"parse error {PROBE}", in_a_row=3)
    fleet.entry("worker01", STATIC)
    fleet.set_skips("worker01", "inactive", 5, scorer=STATIC)
    fleet.cycle("worker02", outcome="error", stage="fetch", reason="bad_query", message=PROBE)
    condition = ConditionNotice(type="ConfigSynced", status="False", reason="MissingInterval", message=PROBE, since=1.0)
    Notices(client).write_scorer(ScorerNotice(name="broken", conditions=(condition,)))
    Notices(client).write_cluster(ClusterNotice(name="worker02", labels={CLUSTER_SET: "eu", "env": "prod"}))
    return fleet


def test_pages_have_no_axe_violations(page: WebProcess, browser: Browser, redis_client: redis.Redis) -> None:
    failing_fleet(redis_client)
    pair = PAIR.replace("01", "02")
    lists = ("/changes", "/find?q=sample", "/parts", "/plans", "/placements")
    with Tab(browser, page.url) as tab:
        for path in ("/", f"/scorers/{SAMPLE}", "/clusters/worker02", pair, *lists, "/scorers/broken", "/nothing"):
            browser_page = tab.open(path)
            if path == "/":
                expect(browser_page.locator("h1")).to_contain_text("fails on worker02")
            assert tab.violations(*THEMES) == [], path
            assert browser_page.title() != "broken", path
            assert tab.nodes < 5000, path
        assert tab.foreign_requests == []


def test_forms_have_no_axe_violations(closed: WebProcess, browser: Browser, redis_client: redis.Redis) -> None:
    fleet = good_fleet(redis_client)
    with Tab(browser, closed.url) as tab:
        page = tab.open(f"/act/pause?scorer={SAMPLE}")
        assert tab.violations(*THEMES) == []
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.locator("main")).to_contain_text("not the token")
        assert tab.violations(*THEMES) == []
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("button", name="Log out")).to_be_visible()
        for act in list_acts():
            tab.open(f"/act/{act}?scorer={SAMPLE}")
            assert tab.violations(*THEMES) == [], act
        # The wrong token was one.
        tab.wrong.clear()
        tab.open(PAIR).get_by_role("link", name="Score now").click()
        expect(page.locator("form.form")).to_contain_text("Affects 1 cluster")
        page.get_by_role("button", name="Score now on 1 cluster").click()
        expect(page.locator("h1")).to_contain_text("1 of 1 run is under way")
        assert tab.violations(*THEMES) == []
        run = page.locator("#page tbody code").first.inner_text()
        fleet.cycle("worker01", run=run, timings={"fetch": 0.02})
        # The page changes by itself.
        expect(page.locator("h1")).to_contain_text("1 of 1 run has ended")
        page.get_by_role("link", name="worker01").click()
        expect(page.locator("tr.asked")).to_contain_text(run)
        assert (tab.foreign_requests, tab.wrong) == ([], [])


def test_print_is_black_on_white_without_controls(
    page: WebProcess, browser: Browser, redis_client: redis.Redis
) -> None:
    failing_fleet(redis_client)
    # On screen only the dark scheme is not black on white.
    with Tab(browser, page.url) as tab:
        tab.page.emulate_media(color_scheme="dark")
        for path in ("/", f"/scorers/{SAMPLE}", PAIR.replace("01", "02")):
            browser_page = tab.open(path)
            browser_page.emulate_media(media="print")
            assert browser_page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
            # Contrast is one of axe's rules.
            assert tab.violations() == [], path
            for pressed in ("nav", "form", "button"):
                assert all(not control.is_visible() for control in browser_page.locator(pressed).all()), (path, pressed)
            assert "sample-scorer" in browser_page.inner_text("main")
            assert browser_page.pdf().startswith(b"%PDF")
            browser_page.emulate_media(media="screen")


def test_pages_never_scroll_sideways(page: WebProcess, browser: Browser, redis_client: redis.Redis) -> None:
    failing_fleet(redis_client)
    with Tab(browser, page.url) as tab:
        for path in ("/", f"/scorers/{SAMPLE}", PAIR):
            browser_page = tab.open(path)
            for width in (3840, 1280, 768, 320):
                browser_page.set_viewport_size({"width": width, "height": 800})
                assert browser_page.evaluate("document.documentElement.scrollWidth") <= width, path
            assert browser_page.evaluate(CUT_OFF) == [], path


def test_reason_column_has_a_third_of_its_table_on_a_laptop(
    page: WebProcess, browser: Browser, redis_client: redis.Redis
) -> None:
    fleet = failing_fleet(redis_client)
    fleet.failure("worker02", message=MESSAGE)
    problem = {"problem": f"HealthCheckFailed: {MESSAGE}"}
    fleet.registry.put_scorer(fleet.registry.read_scorer(STATIC).model_copy(update=problem))
    ScheduleStore(redis_client).set_override(keys.pair("worker01", SAMPLE), interval=3600)
    with Tab(browser, page.url, viewport={"width": 1280, "height": 800}) as tab:
        for path in ("/", f"/scorers/{SAMPLE}", "/clusters/worker02", PAIR.replace("01", "02")):
            # The page keeps its last read for a moment: the previous fleet has narrower reasons, or none.
            until_shown(lambda at=path: min(tab.open(at).evaluate(SHARES), default=0) > 1 / 3, f"reasons at {path}")  # type: ignore[misc]
            assert tab.page.evaluate(CUT_OFF) == [], path


@pytest.mark.parametrize("scorers", [5, 33])
def test_matrix_heads_are_readable(page: WebProcess, browser: Browser, redis_client: redis.Redis, scorers: int) -> None:
    many(redis_client, clusters=15, scorers=scorers)
    with Tab(browser, page.url) as tab:
        until_shown(lambda: tab.open("/").locator(".matrix thead a").count() == scorers, "the fleet to be counted")
        for width in (1280, 320):
            tab.page.set_viewport_size({"width": width, "height": 800})
            # A name such as scorer-12 may go on after its hyphen. The last one can be reached inside the matrix.
            lines, left_edge, right = tab.page.evaluate(HEADS)
            assert max(lines) <= 2
            assert 0 <= left_edge < right <= width
            assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
        # Here it has to be scrolled; another test uses a wide screen.
        assert tab.violations() == []


@pytest.mark.parametrize(("width", "highest"), [(1280, 3300), (390, 5400)])
def test_pair_page_leads_with_the_failure_and_lists_ten_cycles(
    acting: WebProcess, browser: Browser, redis_client: redis.Redis, width: int, highest: int
) -> None:
    fleet = failing_fleet(redis_client)
    fleet.failure("worker02", message=MESSAGE, in_a_row=50)
    runs = [make_run_id(fleet.now - 500 + 10 * number) for number in range(50)]
    for number, run in enumerate(runs):
        failure = {"outcome": "error", "stage": "fetch", "reason": "bad_query", "message": f"{MESSAGE} {number}"}
        fleet.cycle("worker02", run=run, timings={"fetch": 0.02}, counts={"series": 0, "bytes": 211}, **failure)
    path = PAIR.replace("01", "02")
    with Tab(browser, acting.url, viewport={"width": width, "height": 800}) as tab:
        browser_page = tab.open(path)
        actions = browser_page.get_by_role("group", name="What you can do")
        tops = [
            box["y"]
            for element in (browser_page.locator("h1"), browser_page.locator("#failure"), actions)
            if (box := element.bounding_box()) is not None
        ]
        assert tops == sorted(tops)
        assert len(tops) == 3
        assert browser_page.evaluate("document.documentElement.scrollHeight") < highest
        rows = browser_page.locator("#history tbody tr")
        expect(rows).to_have_count(10)
        expect(rows.first).to_contain_text(runs[-1])
        # Commands stay open while the page updates.
        commands = browser_page.get_by_text(f"dsf explain {SAMPLE} --cluster worker02")
        expect(commands).to_be_hidden()
        browser_page.get_by_text("Commands that show more").click()
        expect(commands).to_be_visible()
        fleet.failure("worker02", message="the fifty-first")
        expect(browser_page.locator("#failure")).to_contain_text("the fifty-first")
        expect(commands).to_be_visible()
        assert tab.violations(*THEMES) == []
        browser_page.get_by_role("link", name="40 more cycles").click()
        expect(rows).to_have_count(50)
        browser_page.get_by_role("link", name="only the newest 10 cycles").click()
        expect(rows).to_have_count(10)
        # A link to a run shows it, however old it is.
        expect(tab.open(f"{path}?run={runs[0]}").locator("tr.asked")).to_contain_text(runs[0])


def test_title_and_icon_show_failures_and_the_hub(
    redis_server: RedisServer, browser: Browser, redis_client: redis.Redis, tmp_path: Path
) -> None:
    fleet = good_fleet(redis_client)
    with (
        WebProcess(redis_server.url, tmp_path / "log", hub_name="hub <eu>") as web_process,
        Tab(browser, web_process.url) as tab,
    ):
        browser_page = tab.open("/")
        expect(browser_page).to_have_title("Fleet - hub <eu> - Dynamic scoring")
        expect(browser_page.locator("header")).to_contain_text("hub <eu>")
        icon = browser_page.locator("link[rel=icon]")
        expect(icon).to_have_attribute("href", re.compile("/icon.svg$"))
        # An open tab follows, also in the background of the user's attention.
        fleet.failure("worker01")
        fleet.failure("worker02")
        expect(browser_page).to_have_title("2 failing - hub <eu> - Dynamic scoring")
        expect(icon).to_have_attribute("href", re.compile("/icon-failing.svg$"))
        assert web_process.get(icon.get_attribute("href") or "").headers["content-type"].startswith("image/svg+xml")
        for path, title in (
            (f"/scorers/{SAMPLE}", f"2 failing - Scorer {SAMPLE}"),
            ("/clusters/worker01", "1 failing - Cluster worker01"),
            (PAIR, f"failing - {SAMPLE} on worker01"),
            ("/changes", "Changes"),
        ):
            tab.open(path)
            expect(browser_page).to_have_title(f"{title} - hub <eu> - Dynamic scoring")
        assert tab.violations(*THEMES) == []


def test_documentation_of_the_api_is_dark_in_dark_mode(page: WebProcess, browser: Browser) -> None:
    with Tab(browser, page.url) as tab:
        browser_page = tab.open("/docs")
        expect(browser_page.get_by_text("/api/v1/summary")).to_be_visible()
        background = "getComputedStyle(document.documentElement).backgroundColor"
        for theme, colour in zip(THEMES, ("rgba(0, 0, 0, 0)", "rgb(28, 32, 34)"), strict=True):
            browser_page.emulate_media(color_scheme=theme)
            wait_for(lambda colour=colour: browser_page.evaluate(background) == colour, 20)  # type: ignore[misc]
        assert tab.wrong == []


def test_open_page_follows_changes_without_a_reload(
    page: WebProcess, browser: Browser, redis_client: redis.Redis
) -> None:
    fleet = good_fleet(redis_client)
    with Tab(browser, page.url) as tab:
        browser_page = tab.open("/")
        expect(browser_page.locator("h1")).to_contain_text("All 2 scores are fresh")
        expect(browser_page.locator("html")).to_have_attribute("data-polled", "yes")
        browser_page.evaluate("window.same = true")
        fleet.failure("worker02", message=f"unknown metric {PROBE}")
        expect(browser_page.locator("h1")).to_contain_text("sample-scorer fails on worker02: bad_query")
        expect(browser_page.locator("main")).to_contain_text("unknown metric")
        # Without reloading it; text of strangers stays text as well.
        assert browser_page.evaluate("window.same")
        assert browser_page.title() != "broken"
        assert tab.wrong == []
        assert tab.foreign_requests == []


@pytest.mark.parametrize("seconds", [600, -600])
def test_ages_are_by_the_clock_of_the_hub(
    page: WebProcess, browser: Browser, redis_client: redis.Redis, seconds: int
) -> None:
    good_fleet(redis_client)
    with Tab(browser, page.url) as tab:
        tab.page.add_init_script(f"const now = Date.now; Date.now = () => now() + {1000 * seconds};")
        browser_page = tab.open(f"/clusters/worker01/scorers/{SAMPLE}")
        for _ in range(2):
            texts = browser_page.locator("time[data-age], time[data-until]").all_inner_texts()
            assert len(texts) > 2
            assert [text for text in texts if re.search(r"\b1\d min", text)] == []
            expect(browser_page.locator("html")).to_have_attribute("data-polled", "yes")


def test_change_is_announced_once(page: WebProcess, browser: Browser, redis_client: redis.Redis) -> None:
    """To screen readers, and not again while the text of the page stays the same."""
    fleet = good_fleet(redis_client)
    with Tab(browser, page.url) as tab:
        tab.page.add_init_script("window.ahead = 0; const now = Date.now; Date.now = () => now() + window.ahead;")
        browser_page = tab.open("/")
        expect(browser_page.locator("h1")).to_contain_text("All 2 scores are fresh")
        browser_page.evaluate(
            "window.told = 0; new MutationObserver(() => window.told++).observe("
            "document.getElementById('announce'), { childList: true, characterData: true, subtree: true })"
        )
        fleet.failure("worker02", message="the first text")
        expect(browser_page.locator("#announce")).to_contain_text("fails on worker02")
        browser_page.evaluate("window.ahead = 20000")
        fleet.failure("worker02", message="another text")
        expect(browser_page.locator("main")).to_contain_text("another text")
        assert browser_page.evaluate("window.told") == 1


def test_open_page_reports_a_redis_outage_and_its_end(browser: Browser, tmp_path: Path) -> None:
    with RedisServer(aof=True) as server, WebProcess(server.url, tmp_path / "log", web_auth="local") as page:
        client = server.client()
        fleet = good_fleet(client)
        with Tab(browser, page.url) as tab:
            browser_page = tab.open("/")
            expect(browser_page.locator("html")).to_have_attribute("data-polled", "yes")
            browser_page.evaluate("window.same = true")
            visitor = Visitor(page)
            form = visitor.get(f"/act/pause?scorer={SAMPLE}")
            server.kill()
            answer = wait_for(lambda: [response for response in [page.get("/")] if response.status_code == 503], 20)[0]
            assert "Redis cannot be read" in answer.text
            assert [page.get(path).status_code for path in ("/readyz", "/healthz")] == [503, 200]
            # The browser does not submit a form again by itself.
            status, text, _ = visitor.post("/act/pause", form)
            assert (status, "send it again" in text, "http-equiv" in text) == (503, True, False)
            expect(browser_page.locator("#banner")).to_be_visible()
            expect(browser_page.locator("#banner")).to_contain_text("What you see is old")
            server.restart()
            expect(browser_page.locator("#banner")).to_be_hidden()
            fleet.failure("worker01")
            expect(browser_page.locator("h1")).to_contain_text("fails on worker01")
            assert browser_page.evaluate("window.same")


def test_seven_tabs_of_one_browser_are_served(page: WebProcess, browser: Browser, redis_client: redis.Redis) -> None:
    """Browsers open six connections to a server without TLS; a tab must not keep one."""
    fleet = good_fleet(redis_client)
    with Tab(browser, page.url) as first, ExitStack() as closing:
        tabs = [first.page, *(first.page.context.new_page() for _ in range(6))]
        for tab in tabs:
            closing.callback(tab.close)
            tab.goto(f"{page.url}/")
        for tab in tabs:
            expect(tab.locator("html")).to_have_attribute("data-polled", "yes")
        fleet.failure("worker02", message="after the seventh")
        for tab in tabs:
            expect(tab.locator("main")).to_contain_text("after the seventh")


def test_hidden_tab_stops_polling_until_it_is_visible(
    page: WebProcess, browser: Browser, redis_client: redis.Redis
) -> None:
    fleet = good_fleet(redis_client)
    with Tab(browser, page.url) as tab:
        # Headless browsers hide no tab, so the page's own check is replaced.
        tab.page.add_init_script(
            "window.hid = false; Object.defineProperty(document, 'hidden', { get: () => window.hid });"
        )
        browser_page = tab.open("/")
        expect(browser_page.locator("html")).to_have_attribute("data-polled", "yes")
        show = "(hide) => { window.hid = hide; document.dispatchEvent(new Event('visibilitychange')); }"
        browser_page.evaluate(show, True)
        polled_urls: list[str] = []
        browser_page.on("request", lambda request: polled_urls.append(request.url))
        fleet.failure("worker02", message="while it was hidden")
        wait_for(lambda: "while it was hidden" in page.get("/").text, 20)
        # As long as two polls take.
        browser_page.wait_for_timeout(7000)
        assert polled_urls == []
        browser_page.evaluate(show, False)
        expect(browser_page.locator("main")).to_contain_text("while it was hidden")


def test_tab_with_an_expired_login_shows_the_login(
    closed: WebProcess, browser: Browser, redis_client: redis.Redis
) -> None:
    good_fleet(redis_client)
    with Tab(browser, closed.url) as tab:
        page = tab.open(f"/scorers/{SAMPLE}")
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Log in").click()
        expect(page.locator("html")).to_have_attribute("data-polled", "yes")
        for key in redis_client.keys(keys.web_session("*")):
            redis_client.delete(key)
        expect(page.get_by_label("Token")).to_be_visible()
        assert f"to=%2Fscorers%2F{SAMPLE}" in page.url


def test_keyboard_shortcuts_work(page: WebProcess, browser: Browser, redis_client: redis.Redis) -> None:
    many(redis_client, clusters=40, scorers=3)
    with Tab(browser, page.url) as tab:
        browser_page = tab.page
        until_shown(lambda: "120" in tab.open("/").inner_text("main"), "the fleet to be counted")
        browser_page.keyboard.press("/")
        expect(browser_page.locator("#q")).to_be_focused()
        browser_page.keyboard.type("cluster:c-0001")
        browser_page.keyboard.press("Enter")
        expect(browser_page.locator("h1")).to_contain_text("3 pairs")
        tab.open("/")

        def moves() -> bool:
            """Move the focus between cells. In the first seconds the page may still be redrawn in between."""
            browser_page.locator(".matrix td a").first.focus()
            first = browser_page.evaluate("document.activeElement.pathname || ''")
            browser_page.keyboard.press("ArrowRight")
            browser_page.keyboard.press("ArrowDown")
            second = browser_page.evaluate("document.activeElement.pathname || ''")
            paired_segments = zip(first.split("/"), second.split("/"), strict=False)
            return [before == after for before, after in paired_segments] == [True, True, False, True, False]

        wait_for(moves, 20, "the arrows to lead to another row and column", interval=0.5)
        browser_page.keyboard.press("?")
        expect(browser_page.locator("#keys")).to_be_visible()
        browser_page.keyboard.press("Escape")
        expect(browser_page.locator("#keys")).to_be_hidden()


@pytest.mark.parametrize("script", [True, False])
def test_matrix_of_a_selected_part_is_shown(
    page: WebProcess, browser: Browser, redis_client: redis.Redis, script: bool
) -> None:
    labelled(redis_client)
    with Tab(browser, page.url, java_script_enabled=script) as tab:

        def rows(count: int) -> Locator:
            matrix_rows = tab.page.locator(".matrix tbody tr")
            expect(matrix_rows).to_have_count(count)
            return matrix_rows

        open_all(tab)
        rows(30)
        tab.page.get_by_label("ClusterSet").select_option("eu")
        tab.page.get_by_role("button", name="Show").click()
        assert sorted(rows(10).locator("th").all_inner_texts()) == [f"c-{number:04}" for number in range(10)]
        tab.page.get_by_label("Label").fill("env=prod")
        tab.page.get_by_role("button", name="Show").click()
        rows(5)
        expect(tab.page.locator("#choose")).to_contain_text("5 clusters")
        if script:
            assert tab.violations() == []
        # The address contains the selection, and the page of the parts links to it.
        tab.open("/parts").get_by_role("link", name="The 20 clusters of us east").click()
        rows(20)
        expect(tab.page.get_by_label("ClusterSet")).to_have_value("us east")
        tab.page.get_by_role("link", name="all", exact=True).click()
        rows(30)


def test_typed_input_is_kept_while_the_page_updates(
    page: WebProcess, browser: Browser, redis_client: redis.Redis
) -> None:
    labelled(redis_client)
    with Tab(browser, page.url) as tab:
        open_all(tab)
        browser_page = tab.page
        expect(browser_page.locator("html")).to_have_attribute("data-polled", "yes")
        browser_page.get_by_label("Label").fill("env=x")
        # A new choice appears, so that the form itself is replaced.
        Notices(redis_client).write_cluster(ClusterNotice(name="c-0000", labels={CLUSTER_SET: "eu", "site": "new"}))
        expect(browser_page.locator('#labels option[value="site=new"]')).to_be_attached()
        expect(browser_page.get_by_label("Label")).to_have_value("env=x")
        expect(browser_page.get_by_label("Label")).to_be_focused()


def test_focus_stays_with_its_row_when_the_order_changes(
    page: WebProcess, browser: Browser, redis_client: redis.Redis
) -> None:
    fleet = good_fleet(redis_client)
    with Tab(browser, page.url) as tab:
        browser_page = tab.open("/")
        expect(browser_page.locator("html")).to_have_attribute("data-polled", "yes")
        link = browser_page.locator('tr:has-text("worker01") a[aria-label*="worker01"]').first
        link.focus()
        address = link.get_attribute("href")
        # Failing pairs come first.
        fleet.failure("worker02")
        first = browser_page.locator('table:has(a[aria-label*="worker01"]) tbody tr').first
        expect(first).to_contain_text("worker02")
        assert browser_page.evaluate("document.activeElement.getAttribute('href')") == address


def test_focus_stays_with_its_problem_when_another_one_appears_before_it(
    page: WebProcess, browser: Browser, redis_client: redis.Redis
) -> None:
    fleet = good_fleet(redis_client)
    fleet.set_skips("worker01", "inactive", 5)
    with Tab(browser, page.url) as tab:
        browser_page = tab.open("/")
        expect(browser_page.locator("html")).to_have_attribute("data-polled", "yes")
        link = browser_page.locator("article h3 a").first
        expect(link).to_contain_text("worker01")
        link.focus()
        address = link.get_attribute("href")
        # Failing pairs come before skipped ones.
        fleet.failure("worker02")
        expect(browser_page.locator("article").first).to_contain_text("worker02")
        assert browser_page.evaluate("document.activeElement.getAttribute('href')") == address


def test_typed_filter_stays_when_something_appears_before_it(
    page: WebProcess, browser: Browser, redis_client: redis.Redis
) -> None:
    labelled(redis_client)
    with Tab(browser, page.url) as tab:
        open_all(tab)
        browser_page = tab.page
        expect(browser_page.locator("html")).to_have_attribute("data-polled", "yes")
        browser_page.get_by_label("Label").fill("env=x")
        before = browser_page.locator("h1").inner_text()
        # Its reason appears above the form.
        Fleet(redis_client).failure("c-0001", "scorer-0")
        expect(browser_page.locator("h1")).not_to_have_text(before)
        expect(browser_page.get_by_label("Label")).to_have_value("env=x")
        expect(browser_page.get_by_label("Label")).to_be_focused()


def test_newest_cycle_is_visible_first(page: WebProcess, browser: Browser, redis_client: redis.Redis) -> None:
    fleet = good_fleet(redis_client)
    while redis_client.llen(keys.history_key("worker01", SAMPLE)) < 50:
        fleet.cycle("worker01", timings={"fetch": 0.02})
    visibility_script = """(one) => [...one.querySelectorAll("g")].map(cycle => cycle.getBoundingClientRect()).map(
        cycle => cycle.right > one.getBoundingClientRect().left && cycle.right <= one.getBoundingClientRect().right
    )"""
    with Tab(browser, page.url) as tab:
        for width in (320, 480):
            tab.page.set_viewport_size({"width": width, "height": 800})
            cycle_visibility = tab.open(PAIR).get_by_role("region", name="Cycles as bars").evaluate(visibility_script)
            assert len(cycle_visibility) == 50, width
            assert (cycle_visibility[0], cycle_visibility[-1]) == (False, True), width


def test_pages_work_without_javascript(page: WebProcess, browser: Browser, redis_client: redis.Redis) -> None:
    failing_fleet(redis_client)
    with Tab(browser, page.url, java_script_enabled=False) as tab:
        browser_page = tab.page
        until_shown(lambda: "fails on worker02" in tab.open("/").locator("h1").inner_text(), "the failure")
        expect(browser_page.locator("main")).to_contain_text("s ago")
        browser_page.locator("#q").fill("state:failing")
        browser_page.get_by_role("button", name="Find").click()
        expect(browser_page.locator("h1")).to_contain_text("1 pair")


def test_large_fleet_is_shown_in_small_pages(page: WebProcess, browser: Browser, redis_client: redis.Redis) -> None:
    many(redis_client, clusters=1000, scorers=10)
    with Tab(browser, page.url) as tab:
        # The page may still show data of the previous test.
        until_shown(lambda: "scorer-3 fails on" in tab.open("/").inner_text("main"), "the fleet to be read")
        assert tab.nodes < 5000
        assert tab.violations() == []
        for path in ("/scorers/scorer-3", "/clusters/c-0003", "/find?q=state:ok", "/find?q=cluster:c-00*"):
            browser_page = tab.open(path)
            assert tab.nodes < 5000, path
            assert browser_page.locator("tbody tr").count() <= 200 + 40, path
        assert "of" in tab.open("/find?q=state:ok").inner_text("main")


def many(client: redis.Redis, *, clusters: int, scorers: int) -> None:
    """A fleet of `c-0000`... and `scorer-0`..., of which scorer-3 fails on every fifth cluster."""
    now = time.time()
    names = [f"c-{number:04}" for number in range(clusters)]
    with client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.hset(keys.CLUSTERS, name, json.dumps({"name": name}))
        for number in range(scorers):
            scorer = f"scorer-{number}"
            record = {"name": scorer, "score_name": f"score_{number}", "interval": 30, "validity": 86400}
            pipe.hset(keys.SCORERS, scorer, json.dumps(record))
            for index, name in enumerate(names):
                entry = Entry(cluster=name, scorer=scorer, score_name=f"score_{number}", interval=30)
                pipe.hset(keys.ENTRIES, entry.pair, entry.model_dump_json())
                pipe.zadd(keys.DUE, {entry.pair: now + 30})
                fields: dict[str, object] = {"last_success": now - index % 60, "valid_until": now + 80_000, "items": 1}
                if number == 3 and index % 5 == 0:
                    failure = {"run": "", "stage": "fetch", "reason": "bad_query", "message": "parse error", "at": now}
                    fields |= {"failing": 2, "failure": json.dumps(failure)}
                row = {field: str(value) for field, value in {**fields, "value": index % 100}.items()}
                pipe.hset(keys.ROWS, entry.pair, json.dumps(row))
        pipe.execute()


def labelled(client: redis.Redis) -> None:
    """Thirty clusters with labels, and three scorers on each: pairs enough for a matrix."""
    many(client, clusters=30, scorers=3)
    for number in range(30):
        labels = {CLUSTER_SET: "eu" if number < 10 else "us east", "env": "prod" if number % 2 else "test"}
        Notices(client).write_cluster(ClusterNotice(name=f"c-{number:04}", labels=labels))


def until_shown(is_shown: Callable[[], bool], message: str) -> None:
    """Wait for a page that is opened for each poll, which takes some work."""
    wait_for(is_shown, 60, message, interval=0.5)


def open_all(tab: Tab) -> None:
    """Open the first page once it has all of that fleet, and its labels, which are read now and then."""

    def is_all() -> bool:
        page = tab.open("/")
        return page.locator(".matrix tbody tr").count() == 30 and page.get_by_label("ClusterSet").count() == 1

    until_shown(is_all, "the fleet with its labels")


def test_score_chart_has_both_axes(redis_client: redis.Redis, page: WebProcess, browser: Browser) -> None:
    fleet = good_fleet(redis_client)
    # The last one is at a round time: the text of its mark reaches farthest.
    newest = fleet.now // 300 * 300
    for number in range(30):
        value = None if number in (11, 12) else 40 + number % 7 * 5.5
        outcome: dict[str, object] = {"value": value}
        if value is None:
            outcome = {"outcome": "error", "stage": "fetch", "reason": "timeout"}
        at = newest - (29 - number) * 60
        fleet.cycle("worker01", run=make_run_id(at), at=at, **outcome)
    with Tab(browser, page.url, viewport={"width": 1280, "height": 900}) as tab:
        browser_page = tab.open(PAIR)
        chart = browser_page.get_by_role("img", name="28 scores from 40 to 73")
        expect(chart).to_be_visible()
        expect(chart.locator("circle")).to_have_count(28)
        # Two lines: there is a gap between them.
        expect(chart.locator("path.scores")).to_have_attribute("d", re.compile("^M[^M]+M[^M]+$"))
        texts = chart.locator("text").all_text_contents()
        assert {"40", "50", "60", "70", "80", "time (UTC)", "score"} <= set(texts)
        assert len([text for text in texts if ":" in text]) >= 2
        # Labels of the axes stay inside of the picture and do not overlap.
        boxes = [text.bounding_box() for text in chart.locator("text").all()]
        outer = chart.bounding_box()
        assert outer is not None
        for box in boxes:
            assert box is not None
            assert outer["x"] <= box["x"], texts
            assert box["x"] + box["width"] <= outer["x"] + outer["width"], texts
        chart.scroll_into_view_if_needed()
        for theme in THEMES:
            assert tab.violations(theme) == []
            tab.picture(f"score-{theme}")
        assert tab.wrong == []
