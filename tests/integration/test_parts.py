"""`aeo web`, `aeo control`, `aeo sign-in`: a controller in parts, beside a broker of one's own."""

from __future__ import annotations

from pathlib import Path

import httpx
from programs import Api, Program, free_port
from waiting import eventually


def test_a_controller_in_parts(redis_url: str, tmp_path: Path) -> None:
    port, root = free_port(), tmp_path / "root"
    # The broker's address as a file, the token made by whoever comes first.
    (tmp_path / "broker").write_text(redis_url)
    own = {"AEO_BROKER_URL": f"@{tmp_path / 'broker'}", "AEO_SHARED_ROOT": str(root), "AEO_AUTH_TOKEN": ""}
    url = f"http://127.0.0.1:{port}"
    web = Program(["web", "--port", str(port)], tmp_path, own)
    control = Program(["control"], tmp_path, own)
    api = Api(url)
    try:
        eventually(api.healthy, 30, pause=0.1)
        # The control process is there once it holds the root; then there is room for no other.
        eventually(lambda: (root / "controller.lock").exists(), 30, pause=0.1)
        second = Program(["control"], tmp_path, own)
        assert second.ends() == 2
        assert "another controller runs" in second.output
        assert "AEO_" not in " ".join(web.process.cmdline() + control.process.cmdline())
        shown = Program(["sign-in", "--shown", "https://aeo.example.org/"], tmp_path, {**own, "AEO_URL": url})
        assert shown.ends() == 0
        token = (root / "token").read_text().strip()
        assert shown.output == f"Sign in: https://aeo.example.org/?token={token}\n"
        with httpx.Client(base_url=url, follow_redirects=True, trust_env=False, timeout=60) as browser:
            assert browser.get("/workers").url.path == "/sign-in"
            assert browser.get(f"/?token={token}").is_success
            assert browser.get("/workers").url.path == "/workers"
        api.close()
        assert (web.terminate(), control.terminate()) == (0, 0)
        assert token not in web.output + control.output
    finally:
        for program in (web, control):
            program.destroy()


def test_a_sign_in_needs_the_right_token_and_a_controller(tmp_path: Path) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    asked = Program(["sign-in", "--patience", "0"], tmp_path, {"AEO_URL": nowhere})
    assert asked.ends() == 1
    assert "No controller answers" in asked.output
    lost = Program(["sign-in"], tmp_path, {"AEO_URL": nowhere, "AEO_AUTH_TOKEN": "", "AEO_SHARED_ROOT": "none"})
    assert lost.ends() == 2
    assert "--shared-root" in lost.output
