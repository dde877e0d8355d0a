"""The tools around the page: finding Chromium, and comparing the committed page with what its sources build."""

from pathlib import Path

import pytest
from tools import chromium, page_build


def executable(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_chromium_is_found_in_the_path_and_another_can_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LEAFWISE_CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert chromium.find_chromium() is None
    for name in ("google-chrome", "chromium-browser", "chromium"):  # each is preferred to those before
        path = executable(tmp_path / name)
        assert chromium.find_chromium() == path
    other = executable(tmp_path / "other" / "chrome")
    monkeypatch.setenv("LEAFWISE_CHROMIUM", other)
    assert chromium.find_chromium() == other
    monkeypatch.setenv("LEAFWISE_CHROMIUM", str(tmp_path / "nowhere"))
    assert chromium.find_chromium() is None


@pytest.mark.parametrize("works", [False, True])
def test_chromium_is_installed_once_or_its_absence_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], works: bool
) -> None:
    log = tmp_path / "log"
    apt = Path(executable(tmp_path / "bin" / "apt-get"))
    browser = tmp_path / "bin" / "chromium"
    content = '"#!/bin/sh\\necho \\\\<html\\\\>\\n"'
    made = f"printf {content} > {browser} && /bin/chmod 755 {browser}" if works else "exit 100"
    apt.write_text(f'#!/bin/sh\necho "$@" >> {log}\nif [ "$1" = install ]; then {made}; fi\n')
    monkeypatch.delenv("LEAFWISE_CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert chromium.main() == 0
    assert log.read_text().splitlines() == ["update", "install -y --no-install-recommends chromium"]
    said = capsys.readouterr().err
    assert ("NOT tested in a browser" in said) != works
    if works:
        assert chromium.main() == 0
        assert len(log.read_text().splitlines()) == 2  # it costs nothing any more


def test_a_browser_that_does_not_start_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = executable(tmp_path / "chromium")  # it ends at once, and shows nothing
    monkeypatch.setenv("LEAFWISE_CHROMIUM", path)
    assert not chromium.starts(path)
    assert chromium.main() == 0
    assert f"Chromium does not start ({path})" in capsys.readouterr().err


def test_without_rights_nothing_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    executable(tmp_path / "apt-get")
    monkeypatch.delenv("LEAFWISE_CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert chromium.main() == 0
    said = capsys.readouterr()
    assert "apt-get install chromium" in said.err
    assert said.out == ""


def pages(tmp_path: Path) -> tuple[Path, Path]:
    new, committed = tmp_path / "new", tmp_path / "committed"
    for folder in (new, committed):
        folder.mkdir()
        for name in ("app.js", "app.css", "index.html"):
            (folder / name).write_text(name)
    return new, committed


def test_every_difference_of_the_page_is_named(tmp_path: Path) -> None:
    new, committed = pages(tmp_path)
    assert page_build.differences(new, committed) == []
    (new / "app.js").write_text("other")
    (new / "more.js").write_text("")
    (committed / "old.js").write_text("")
    assert page_build.differences(new, committed) == [
        "src/leafwise/web/page/app.js differs from what page/ builds",
        "src/leafwise/web/page/more.js is missing",
        "src/leafwise/web/page/old.js is not part of the page any more",
        "The page must be built again; run: make page",
    ]


def test_a_script_that_is_too_large_is_named(tmp_path: Path) -> None:
    import random

    _, committed = pages(tmp_path)
    assert page_build.size_problems(committed) == []
    (committed / "app.js").write_bytes(random.Random(0).randbytes(page_build.LARGEST))
    assert "it must have less than 150,000" in page_build.size_problems(committed)[0]
    (committed / "app.js").unlink()
    assert "make page" in page_build.size_problems(committed)[0]


@pytest.mark.parametrize("version", [None, "v18.20.0", "v20.18.9"])
def test_without_node_the_page_is_not_compared_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], version: str | None
) -> None:
    if version is not None:
        executable(tmp_path / "npm")
        Path(executable(tmp_path / "node")).write_text(f"#!/bin/sh\necho {version}\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert page_build.main() == 0
    assert "was NOT built and compared: Node" in capsys.readouterr().err


def test_without_a_registry_the_page_is_not_compared_but_an_error_in_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    npm = Path(executable(tmp_path / "npm"))
    Path(executable(tmp_path / "node")).write_text("#!/bin/sh\necho v20.19.0\n")
    npm.write_text("#!/bin/sh\necho npm error code ENOTFOUND >&2\nexit 1\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert page_build.main() == 0
    assert "npm cannot download its packages (ENOTFOUND)" in capsys.readouterr().err
    npm.write_text('#!/bin/sh\nif [ "$1" = run ]; then echo error TS2304: Cannot find name; exit 2; fi\n')
    with pytest.raises(SystemExit, match="TS2304"):
        page_build.main()
