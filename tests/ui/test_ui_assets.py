"""The files of the dashboard: who gets them, what browsers are told, and that they bring nothing from elsewhere."""

import re
from pathlib import Path

import pytest
from isotherm.api.ui.assets import FOLDER, read_assets
from isotherm.daemon.config import key_digest
from support.api_service import call, make_service
from support.played_daemon import PlayedDaemon

FILES = sorted(path.name for path in FOLDER.iterdir())


def text(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def test_the_door_leads_to_the_page_wherever_a_proxy_has_put_it() -> None:
    response = call(make_service(), "GET", "/ui")
    assert (response.status_code, response.headers["location"]) == (308, "ui/")
    assert call(make_service(), "GET", "/ui/").text == text("index.html")


def test_every_file_is_served_as_it_is_under_a_strict_policy() -> None:
    for name in FILES:
        response = call(make_service(), "GET", f"/ui/{name}")
        assert (response.status_code, response.content) == (200, (FOLDER / name).read_bytes())
        policy = response.headers["content-security-policy"]
        for rule in ("default-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"):
            assert rule in policy
        assert "unsafe" not in policy and response.headers["x-content-type-options"] == "nosniff"


def test_a_browser_that_has_a_file_is_not_sent_it_again() -> None:
    tag = call(make_service(), "GET", "/ui/app.js").headers["etag"]
    again = call(make_service(), "GET", "/ui/app.js", headers={"if-none-match": tag})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert call(make_service(), "GET", "/ui/app.js", headers={"if-none-match": '"other"'}).status_code == 200


def test_a_tag_changes_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("one")
    before = read_assets(tmp_path)["/ui/"].tag
    (tmp_path / "index.html").write_text("two")
    assert read_assets(tmp_path)["/ui/"].tag != before


@pytest.mark.parametrize(
    "path", ["/ui/nothing.js", "/ui/../app.py", "/ui/%2e%2e/routes.py", "/ui//app.js", "/ui/app.js/"]
)
def test_nothing_but_the_files_is_there(path: str) -> None:
    assert call(make_service(), "GET", path).status_code == 404


def test_without_a_key_nothing_but_the_files_is_told() -> None:
    service = PlayedDaemon(hot=2).service(api_keys=frozenset({key_digest("sesame")}))
    files = {f"/ui/{name}": (FOLDER / name).read_bytes() for name in FILES}
    for path, content in {**files, "/ui/": files["/ui/index.html"], "/ui": b""}.items():
        response = call(service, "GET", path)
        assert response.content == content, path  # the same bytes for everybody
    for path in ("/admin/status", "/admin/plan", "/admin/experts", "/v1/models", "/ui/x", "/ui/../admin/status"):
        response = call(service, "GET", path)
        assert response.status_code == 401 and "org/tiny-moe" not in response.text, path
    assert call(service, "POST", "/ui/").status_code == 405


def test_nothing_comes_from_elsewhere_and_no_text_becomes_markup() -> None:
    for name in FILES:
        content = text(name).replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"(?:src|href|url|import|from|fetch)\s*[=(]?\s*[\"'(]?(?:https?:)?//", content), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", content), (
            name
        )


def test_the_page_has_neither_scripts_nor_styles_in_itself() -> None:
    page = text("index.html")
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", page)
