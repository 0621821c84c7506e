"""Bare machines: network namespaces with an sshd, a home, a PATH and a cache of their own, where this tree is not.

The controller's machine is the namespace ``head``; it reaches them by the names in a configuration of ssh's.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from chaos.hosts import Net
from chaos.proxy import Proxy
from programs import TOKEN, Api, Program
from waiting import eventually

ROOT = Path(__file__).parents[1]
_API = 7380
#: What a bare machine has not.
_NOT_THERE = ("uv", "uvx", "aeo", "harbor", "docker", "rsync", "pip", "pip3")
_PLACES = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


class Bare:
    """A controller, and machines that have nothing of ours; those in ``with_rsync`` have at least that."""

    def __init__(self, folder: Path, net: Net, *, with_rsync: tuple[str, ...]):
        self.folder, self.net, self.shared = folder, net, folder / "shared"
        self.programs: list[Program] = []
        (folder / "token").write_text(TOKEN)
        self._keys()
        # What runs here, apart: a test changes it, and nobody else does.
        self.tree = folder / "tree"
        for part in ("aeo", "webapp", "deploy"):
            shutil.copytree(ROOT / part, self.tree / part, ignore=shutil.ignore_patterns("__pycache__"))
        for part in ("pyproject.toml", "LICENSE"):
            shutil.copy(ROOT / part, self.tree / part)
        for host in net.addresses:
            self._boot(host, rsync=host in with_rsync)
        arguments = ["controller", "--port", str(_API), "--shared-root", str(self.shared), "--refresh-seconds", "1"]
        self.controller = Program(arguments, folder, self._path(), before=net.before("head"))
        self._web = Proxy(lambda: net.connect("head", _API))
        self.api = Api(f"http://127.0.0.1:{self._web.port}")
        eventually(self.api.healthy, 60, pause=0.1)

    def aeo(self, *arguments: str, timeout: float = 120, code: int = 0) -> str:
        """Run a command on the controller's machine to its end; returns what it said."""
        named = ["--shared-root", str(self.shared)] if arguments[0] in ("provision", "upgrade", "decommission") else []
        told = {**self._path(), "AEO_URL": f"http://127.0.0.1:{_API}"}
        told["AEO_TOKEN"] = TOKEN
        program = Program([*arguments, *named], self.folder, told, before=self.net.before("head"))
        try:
            assert program.ends(timeout) == code, program.output
        finally:
            program.destroy()
        return program.output

    def on(self, host: str, script: str) -> str:
        """What a shell there prints."""
        ssh = str(self.folder / "bin" / "ssh")
        done = subprocess.run(
            [*self.net.before("head"), ssh, host, "sh -s"], input=script, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    def home(self, host: str) -> Path:
        """A machine's home, as it is seen from outside."""
        return self.folder / f"home-{host}"

    def job(self, name: str) -> Path:
        return self.shared / "jobs" / name

    def destroy(self) -> None:
        """End what was started."""
        self.api.close()
        self.controller.destroy()
        self._web.close()

    def _path(self) -> dict[str, str]:
        return {"PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(self.tree)}

    def _keys(self) -> None:
        """Keys and a configuration of ssh that have nothing to do with those of this user."""
        folder = self.folder
        for name in ("host_key", "user_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
        shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        blocks = [
            f"Host {name}\n HostName {address}\n User root\n Port 2222\n"
            for name, address in self.net.addresses.items()
        ]
        own = f" IdentityFile {folder}/user_key\n IdentitiesOnly yes\n UserKnownHostsFile {folder}/known_hosts\n"
        (folder / "ssh_config").write_text("".join(blocks) + "Host *\n" + own)
        (folder / "bin").mkdir()
        ssh = folder / "bin" / "ssh"
        ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
        ssh.chmod(0o755)

    def _boot(self, host: str, *, rsync: bool) -> None:
        folder, home, programs = self.folder, self.home(host), self.folder / f"programs-{host}"
        home.mkdir()
        programs.mkdir()
        python = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
        (programs / python.name).symlink_to(python)
        hidden = [name for name in _NOT_THERE if not (rsync and name == "rsync")]
        found = {path for name in hidden for place in _PLACES if (path := (Path(place) / name).resolve()).exists()}
        # What is unpacked for one need not be unpacked for the other.
        path = ":".join((str(programs), *_PLACES))
        own = f"SetEnv HOME={home} PATH={path} SHELL=/bin/sh UV_CACHE_DIR={folder / 'uv'} TMPDIR=/tmp\n"
        (folder / f"sshd-{host}").write_text(
            f"Port 2222\nListenAddress 0.0.0.0\nHostKey {folder}/host_key\n"
            f"AuthorizedKeysFile {folder}/authorized_keys\n"
            "PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            f"PermitRootLogin prohibit-password\n{own}"
        )
        sshd = shutil.which("sshd") or "/usr/sbin/sshd"
        # Neither this tree is there, nor the controller's folder, nor what a machine may have of its own.
        hide = [f"mount -t tmpfs none {shlex.quote(str(place))}" for place in (ROOT, self.shared)]
        hide += [f"mount --bind /dev/null {shlex.quote(str(path))}" for path in sorted(found)]
        script = " && ".join([*hide, f"exec {sshd} -D -e -f {folder / f'sshd-{host}'}"])
        self.net.start(host, ["unshare", "-m", "sh", "-c", script], folder / f"sshd-{host}.log", 2222, b"SSH-")
