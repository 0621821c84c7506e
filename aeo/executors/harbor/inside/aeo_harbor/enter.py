"""Makes and enters the namespaces of one host environment; run as a program, standard library only.

``enter.py start`` reads a view (JSON) on stdin, makes a user, mount and process namespace with that view of the file
system, says ``{"pid": N}`` on stdout and stays as the parent of the namespace's first process. ``enter.py run PID``
reads a command (JSON) on stdin and runs it in there. Whatever runs in there dies with the first process, and that dies
with the program that started it: nothing is left behind, mounts included.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_MS_REC, _MS_BIND, _MS_PRIVATE = 0x4000, 0x1000, 1 << 18
_MS_REMOUNT = 0x20
#: Flags of a file system to those of a mount.
_FLAGS = {
    **{flag: flag for flag in (os.ST_NOSUID, os.ST_NODEV, os.ST_NOEXEC, os.ST_NOATIME, os.ST_NODIRATIME)},
    os.ST_RELATIME: 1 << 21,
}
_NAMESPACES = os.CLONE_NEWUSER | os.CLONE_NEWNS | os.CLONE_NEWPID


class Lacking(Exception):
    """A mount's target is not on this machine."""


def _die_with(parent: int) -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(137)


def _mount(source: str, target: str | Path, kind: str | None, flags: int) -> None:
    done = _LIBC.mount(source.encode(), str(target).encode(), kind.encode() if kind else None, flags, None)
    if done != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot mount {source} on {target}: {os.strerror(code)}")


def _make_view(view: dict) -> None:
    """Show the host's folders, with private ones in place of some."""
    top = Path(view["top"])
    private = view["private"]
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    _mount("tmpfs", top, "tmpfs", 0)
    for source in sorted(Path("/").iterdir()):
        entry = source.name
        if f"/{entry}" in private or entry in ("proc", "lost+found"):
            continue
        if source.is_symlink():
            (top / entry).symlink_to(source.readlink())
        elif source.is_dir():
            (top / entry).mkdir()
            with contextlib.suppress(OSError):  # e.g. a folder this user may not enter
                _mount(str(source), top / entry, None, _MS_REC | _MS_BIND)
    for target, source in private.items():
        place = top / target.lstrip("/")
        place.mkdir(parents=True, exist_ok=True)
        _mount(source, place, None, _MS_REC | _MS_BIND)
    for mount in view["mounts"]:
        _show(Path(mount["source"]), mount["target"], top, private, read_only=mount["read_only"])
    (top / "proc").mkdir()
    try:
        _mount("proc", top / "proc", "proc", 0)
    except OSError:  # inside some containers only the outer /proc may be shown
        _mount("/proc", top / "proc", None, _MS_REC | _MS_BIND)
    os.chroot(top)
    os.chdir("/")


def _show(source: Path, target: str, top: Path, private: dict, *, read_only: bool) -> None:
    """Show a file or folder of this machine at another place."""
    place, first = top / target.lstrip("/"), "/" + Path(target).parts[1]
    if not place.exists():
        if first not in private and os.path.lexists(first):
            raise Lacking(
                f"The mount target {target} does not exist on this machine, and the host environment makes no folders "
                "there. Use one below /app, or an existing one."
            )
        (place if source.is_dir() else place.parent).mkdir(parents=True, exist_ok=True)
        if not source.is_dir():
            place.touch()
    _mount(str(source), place, None, _MS_REC | _MS_BIND)
    if read_only:
        # What was forbidden there before must stay so.
        flags = os.statvfs(place).f_flag
        kept = sum(how for had, how in _FLAGS.items() if flags & had)
        _mount("none", place, None, _MS_REMOUNT | _MS_BIND | os.ST_RDONLY | kept)


def _reap_for_ever() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        signal.sigwait({signal.SIGCHLD})
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def start() -> int:
    view = json.load(sys.stdin)
    parent, user, group = os.getppid(), os.geteuid(), os.getegid()
    try:
        os.unshare(_NAMESPACES)
        # After unshare: a change of credentials clears it.
        _die_with(parent)
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            Path("/proc/self", name).write_text(text)
    except OSError as error:
        print(json.dumps({"error": f"{error.strerror}"}), flush=True)
        return 1
    reading, writing = os.pipe()
    first = os.fork()
    if first == 0:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        try:
            _make_view(view)
            os.write(writing, b"{}")
        except Exception as error:
            said = {"error": str(error), "target": isinstance(error, Lacking)}
            os.write(writing, json.dumps(said).encode())
            os._exit(1)
        null = os.open("/dev/null", os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.close(writing)
        _reap_for_ever()
    os.close(writing)
    said = json.loads(os.read(reading, 65536) or b'{"error": "its first process died"}')
    print(json.dumps(said or {"pid": first}), flush=True)
    return os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) & 0xFF


def run(first: int) -> int:
    command = json.load(sys.stdin)
    parent = os.getppid()
    namespaces = os.pidfd_open(first)
    root = os.open(f"/proc/{first}/root", os.O_RDONLY | os.O_DIRECTORY)
    os.setns(namespaces, _NAMESPACES)
    os.close(namespaces)
    _die_with(parent)
    child = os.fork()
    if child == 0:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.fchdir(root)
        os.chroot(".")
        os.close(root)
        os.umask(0o022)
        try:
            os.chdir(command["cwd"])
            os.execvpe(command["argv"][0], command["argv"], command["env"])  # noqa: S606
        except OSError as error:
            print(f"{error.filename or command['argv'][0]}: {error.strerror}", file=sys.stderr, flush=True)
            os._exit(126)
    status = os.waitpid(child, 0)[1]
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


if __name__ == "__main__":
    os._exit(start() if sys.argv[1] == "start" else run(int(sys.argv[2])))
